"""Variants: every row of the paper's tables, probes and sweeps, and further ones, as the settings it changes.

A variant names the row it is compared with and declares, as patterns of parameter names, how its initial state may
differ from that row's; `isolation.py` checks that nothing else differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quatsphere.config import QSVConfig
from quatsphere.errors import ConfigError


@dataclass(frozen=True)
class ScaledBy:
    """A setting as a multiple of the scale's value."""

    factor: float


@dataclass(frozen=True)
class SameAsQSV:
    """A setting copied from the full QSV of the scale."""

    field: str


@dataclass(frozen=True)
class AllowedStateChange:
    """Allowed differences from the initial state of the reference, as patterns of parameter names.

    All other parameters keep their name, shape and initial values bit for bit. With `other_model` the models are
    unrelated, and only data order and augmentation are compared.
    """

    removes: tuple[str, ...] = ()
    """Parameters that are absent, or frozen and thus buffers."""
    adds: tuple[str, ...] = ()
    """Parameters that the reference does not have."""
    reinitialises: tuple[str, ...] = ()
    """Parameters of the same shape, or buffers, with other initial values."""
    other_model: bool = False


@dataclass(frozen=True)
class Variant:
    """A row of a table: its title, the settings it changes, and the row it is compared with."""

    title: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    model: str = "qsv"
    reference: str = "full"
    state: AllowedStateChange = AllowedStateChange()


OTHER_MODEL = AllowedStateChange(other_model=True)
FIELD_OFF = AllowedStateChange(removes=("fields.*.base", "fields.*.bound.logit", "*.perturbation.*"))
NO_PERTURBATION = AllowedStateChange(removes=("fields.*.bound.logit", "*.perturbation.*"))
NO_ROUNDS = AllowedStateChange(removes=("rounds.*",))
FROZEN_POSITIONS = AllowedStateChange(removes=("layout.shells.*.positions",))
OTHER_POSITIONS = AllowedStateChange(reinitialises=("layout.shells.*.positions",))
NO_VALUE = AllowedStateChange(removes=("*.attention.value.*",))
CROSS_BETA = ("cross.*.routing.beta_logit",)
STEPS = ("within", "cross.*", "rounds.*")
AUXILIARIES_OFF = {"train.smoothness": 0.0, "train.head_diversity": 0.0, "train.beta_penalty": 0.0}
DROPOUT_OFF = {"model.attention_dropout": 0.0, "model.output_dropout": 0.0}
NO_ASYMMETRY = {"model.positions": "frozen", "model.rounds": 0, "model.pooling": "mean"}

VARIANTS: dict[str, Variant] = {
    # table "ablation"
    "full": Variant("Full kernel (baseline)"),
    "transport_identity": Variant("Transport -> identity", {"model.transport": "identity"}),
    "routing_uniform": Variant("Routing -> uniform 1/k", {"model.routing": "uniform"}),
    "routing_absolute": Variant("Routing on |Re(r)|", {"model.routing": "absolute"}),
    "routing_geometric": Variant("Geometric routing", {"model.routing": "geometric"}),
    "both_off": Variant("Both roles disabled", {"model.routing": "uniform", "model.transport": "identity"}),
    "frozen_random": Variant("Frozen random field", {"model.field_mode": "frozen_random"}, state=FIELD_OFF),
    "frozen_identity": Variant("Frozen identity field", {"model.field_mode": "frozen_identity"}, state=FIELD_OFF),
    "attention_value_identity": Variant(
        "Attention W_V -> identity", {"model.value": "identity"}, "attention", "attention", NO_VALUE
    ),
    # table "context"
    "attention": Variant("Matched attention", {}, "attention", state=OTHER_MODEL),
    "attention_wide": Variant(
        "Attention at QSV's width", {"model.dim": SameAsQSV("dim")}, "attention", "attention", OTHER_MODEL
    ),
    "flat": Variant("Flat-lattice control", {"model.layout": "plane"}, "attention", "attention", OTHER_POSITIONS),
    "flat_value_identity": Variant(
        "Flat W_V -> identity", {"model.layout": "plane", "model.value": "identity"}, "attention", "flat", NO_VALUE
    ),
    "resnet20": Variant("ResNet-20, same pipeline", {}, "resnet20", "flat", OTHER_MODEL),
    "linear": Variant("Softmax regression on the same samples", {}, "linear", state=OTHER_MODEL),
    # figure "routing-temperature probe"
    "beta_warm": Variant(
        "beta starts at 5", {"model.beta_start": 5.0}, state=AllowedStateChange(reinitialises=CROSS_BETA)
    ),
    "beta_frozen": Variant(
        "beta frozen at 5",
        {"model.beta_start": 5.0, "model.beta_frozen": True},
        state=AllowedStateChange(removes=CROSS_BETA),
    ),
    # section "optimization and geometry"
    "quaternion_adamw": Variant(
        "Quaternions by AdamW + renormalise", {"optim.quaternion_optimizer": "adamw_renormalise"}
    ),
    "quaternion_annealed": Variant("Quaternion rate annealed", {"optim.quaternion_schedule": "annealed"}),
    "schedule_constant": Variant("Constant learning rate", {"optim.schedule": "constant"}),
    "repulsion_off": Variant("Repulsion off", {"optim.repulsion": False}),
    "bound_none": Variant(
        "No bound on the perturbation",
        {"model.bound": "none"},
        state=AllowedStateChange(removes=("fields.*.bound.logit",)),
    ),
    "zero_init_off": Variant(
        "Perturbation not started at zero",
        {"model.zero_init": False},
        state=AllowedStateChange(reinitialises=("*.perturbation.outer_*",)),
    ),
    # the robustness sweep
    "lr_half": Variant("Learning rate x 1/2", {"optim.peak_lr": ScaledBy(0.5)}),
    "lr_double": Variant("Learning rate x 2", {"optim.peak_lr": ScaledBy(2.0)}),
    "quaternion_lr_low": Variant("Quaternion step x 0.4", {"optim.quaternion_lr": ScaledBy(0.4)}),
    "quaternion_lr_high": Variant("Quaternion step x 2", {"optim.quaternion_lr": ScaledBy(2.0)}),
    "repulsion_strong": Variant("Repulsion step x 2", {"optim.repulsion_start": ScaledBy(2.0)}),
    # beyond the paper
    "qsv_plane": Variant("QSV on the plane", {"model.layout": "plane"}, state=FROZEN_POSITIONS),
    "resample_geometric": Variant("QSV, residual by position", {"model.resample": "geometric"}),
    "attention_resample_geometric": Variant(
        "Attention, residual by position", {"model.resample": "geometric"}, "attention", "attention"
    ),
    "transport_one_sided": Variant("Transport one-sided", {"model.transport": "one_sided"}),
    "transport_projected": Variant(
        "Transport -> linear map per head",
        {"model.transport": "projected"},
        state=AllowedStateChange(adds=("*.transport.*",)),
    ),
    "uniform_projected": Variant(
        "Uniform and linear map per head",
        {"model.routing": "uniform", "model.transport": "projected"},
        state=AllowedStateChange(adds=("*.transport.*",)),
    ),
    "transport_lift": Variant("Transport in alone (lift)", {"model.transport": "lift"}),
    "transport_lower": Variant("Transport out alone (lower)", {"model.transport": "lower"}),
    "both_off_mixed": Variant(
        "Both roles disabled, heads mixed",
        {"model.routing": "uniform", "model.transport": "identity", "model.head_mixing": "linear"},
        reference="both_off",
        state=AllowedStateChange(adds=("*.head_mixing.weight",)),
    ),
    "attention_uniform": Variant(
        "Attention, routing -> uniform 1/k", {"model.routing": "uniform"}, "attention", "attention"
    ),
    "field_static": Variant("Static field", {"model.field_mode": "static"}, state=NO_PERTURBATION),
    "positions_frozen": Variant("Positions frozen", {"model.positions": "frozen"}, state=FROZEN_POSITIONS),
    "rounds_none": Variant("No rounds on the last shell", {"model.rounds": 0}, state=NO_ROUNDS),
    "pooling_mean": Variant("Mean pooling", {"model.pooling": "mean"}),
    "dropout_none": Variant("No dropout", DROPOUT_OFF),
    "auxiliaries_none": Variant("No auxiliary losses", AUXILIARIES_OFF),
    "bf16": Variant("QSV, matrix products in bf16", {"train.precision": "bf16"}),
    "attention_bf16": Variant(
        "Attention, matrix products in bf16", {"train.precision": "bf16"}, "attention", "attention"
    ),
    # readings of the paper's wording
    "stencil_pitch": Variant("Stencil by pitch", {"model.stencil": "pitch"}),
    "network_per_shell": Variant(
        "Perturbation network per shell",
        {"model.perturbation": "shell"},
        state=AllowedStateChange(
            removes=tuple(f"{step}.perturbation.*" for step in STEPS), adds=("fields.*.perturbation.*",)
        ),
    ),
    "inner_skip": Variant("Skip within the Hamilton block", {"model.inner_skip": "residual"}),
    "pooling_per_head": Variant("Pooling per head", {"model.pooling": "quaternion_per_head"}),
    "self_excluded": Variant("Self no neighbour", {"model.self_neighbour": False}),
    "plain": Variant(
        "QSV without its asymmetries",
        {**NO_ASYMMETRY, **DROPOUT_OFF, **AUXILIARIES_OFF},
        state=AllowedStateChange(removes=(*NO_ROUNDS.removes, *FROZEN_POSITIONS.removes)),
    ),
}
"""name -> variant; the name is part of a cell's id."""


def find_variant(name: str) -> Variant:
    """Return the variant of a name, or raise ConfigError."""
    if name not in VARIANTS:
        raise ConfigError(f"unknown variant {name!r}; choose one of {', '.join(VARIANTS)}")
    return VARIANTS[name]


def resolve_change(key: str, value: Any, base: Mapping[str, Any], qsv: QSVConfig) -> Any:
    """Plain value of a changed setting, from the scale's settings and its full QSV."""
    if isinstance(value, ScaledBy):
        return base[key] * value.factor
    if isinstance(value, SameAsQSV):
        return getattr(qsv, value.field)
    return value
