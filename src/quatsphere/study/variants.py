"""Variants, the rows of the tables as the settings they change, and scales, the settings that they start from.

A variant covers a row of the paper's tables, probes and sweeps, or a further one. It names the row it is compared with
and declares, as patterns of parameter names, how its initial state may differ from that row's; `isolation.py` checks
that nothing else differs. A scale has a preset for each model, data sets with their shapes, and a length of training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quatsphere.config import QSVConfig
from quatsphere.config.presets import LITE, LITE_SHELLS, NO_DROPOUT, PAPER_RECIPE, PRESETS
from quatsphere.data.cache import search_paths
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
class Variant:
    """A row of a table: its title, the settings it changes, and the row it is compared with.

    The last fields are the allowed differences from the initial state of that row, as patterns of parameter names. All
    other parameters keep their name, shape and initial values bit for bit. With `other_model` the models are
    unrelated, and only data order and augmentation are compared.
    """

    title: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    model: str = "qsv"
    reference: str = "full"
    removes: tuple[str, ...] = ()
    """Parameters that are absent, or frozen and thus buffers."""
    adds: tuple[str, ...] = ()
    """Parameters that the reference does not have."""
    reinitialises: tuple[str, ...] = ()
    """Parameters of the same shape, or buffers, with other initial values."""
    other_model: bool = False


NO_PERTURBATION = ("fields.*.bound.logit", "*.perturbation.*")
FIELD_OFF = ("fields.*.base", *NO_PERTURBATION)
POSITIONS = ("layout.shells.*.positions",)
NO_VALUE = ("*.attention.value.*",)
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
    "frozen_random": Variant("Frozen random field", {"model.field_mode": "frozen_random"}, removes=FIELD_OFF),
    "frozen_identity": Variant("Frozen identity field", {"model.field_mode": "frozen_identity"}, removes=FIELD_OFF),
    "attention_value_identity": Variant(
        "Attention W_V -> identity", {"model.value": "identity"}, "attention", "attention", NO_VALUE
    ),
    # table "context"
    "attention": Variant("Matched attention", {}, "attention", other_model=True),
    "attention_wide": Variant(
        "Attention at QSV's width", {"model.dim": SameAsQSV("dim")}, "attention", "attention", other_model=True
    ),
    "flat": Variant(
        "Flat-lattice control", {"model.layout": "plane"}, "attention", "attention", reinitialises=POSITIONS
    ),
    "flat_value_identity": Variant(
        "Flat W_V -> identity", {"model.layout": "plane", "model.value": "identity"}, "attention", "flat", NO_VALUE
    ),
    "resnet20": Variant("ResNet-20, same pipeline", {}, "resnet20", "flat", other_model=True),
    "linear": Variant("Softmax regression on the same samples", {}, "linear", other_model=True),
    # figure "routing-temperature probe"
    "beta_warm": Variant("beta starts at 5", {"model.beta_start": 5.0}, reinitialises=CROSS_BETA),
    "beta_frozen": Variant(
        "beta frozen at 5", {"model.beta_start": 5.0, "model.beta_frozen": True}, removes=CROSS_BETA
    ),
    # section "optimization and geometry"
    "quaternion_adamw": Variant(
        "Quaternions by AdamW + renormalise", {"optim.quaternion_optimizer": "adamw_renormalise"}
    ),
    "quaternion_annealed": Variant("Quaternion rate annealed", {"optim.quaternion_schedule": "annealed"}),
    "schedule_constant": Variant("Constant learning rate", {"optim.schedule": "constant"}),
    "repulsion_off": Variant("Repulsion off", {"optim.repulsion": False}),
    "bound_none": Variant("No bound on the perturbation", {"model.bound": "none"}, removes=("fields.*.bound.logit",)),
    "zero_init_off": Variant(
        "Perturbation not started at zero", {"model.zero_init": False}, reinitialises=("*.perturbation.outer_*",)
    ),
    # the robustness sweep
    "lr_half": Variant("Learning rate x 1/2", {"optim.peak_lr": ScaledBy(0.5)}),
    "lr_double": Variant("Learning rate x 2", {"optim.peak_lr": ScaledBy(2.0)}),
    "quaternion_lr_low": Variant("Quaternion step x 0.4", {"optim.quaternion_lr": ScaledBy(0.4)}),
    "quaternion_lr_high": Variant("Quaternion step x 2", {"optim.quaternion_lr": ScaledBy(2.0)}),
    "repulsion_strong": Variant("Repulsion step x 2", {"optim.repulsion_start": ScaledBy(2.0)}),
    # beyond the paper
    "qsv_plane": Variant("QSV on the plane", {"model.layout": "plane"}, removes=POSITIONS),
    "resample_geometric": Variant("QSV, residual by position", {"model.resample": "geometric"}),
    "attention_resample_geometric": Variant(
        "Attention, residual by position", {"model.resample": "geometric"}, "attention", "attention"
    ),
    "transport_one_sided": Variant("Transport one-sided", {"model.transport": "one_sided"}),
    "transport_projected": Variant(
        "Transport -> linear map per head", {"model.transport": "projected"}, adds=("*.transport.*",)
    ),
    "uniform_projected": Variant(
        "Uniform and linear map per head",
        {"model.routing": "uniform", "model.transport": "projected"},
        adds=("*.transport.*",),
    ),
    "transport_lift": Variant("Transport in alone (lift)", {"model.transport": "lift"}),
    "transport_lower": Variant("Transport out alone (lower)", {"model.transport": "lower"}),
    "both_off_mixed": Variant(
        "Both roles disabled, heads mixed",
        {"model.routing": "uniform", "model.transport": "identity", "model.head_mixing": "linear"},
        reference="both_off",
        adds=("*.head_mixing.weight",),
    ),
    "attention_uniform": Variant(
        "Attention, routing -> uniform 1/k", {"model.routing": "uniform"}, "attention", "attention"
    ),
    "field_static": Variant("Static field", {"model.field_mode": "static"}, removes=NO_PERTURBATION),
    "positions_frozen": Variant("Positions frozen", {"model.positions": "frozen"}, removes=POSITIONS),
    "rounds_none": Variant("No rounds on the last shell", {"model.rounds": 0}, removes=("rounds.*",)),
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
        removes=tuple(f"{step}.perturbation.*" for step in STEPS),
        adds=("fields.*.perturbation.*",),
    ),
    "inner_skip": Variant("Skip within the Hamilton block", {"model.inner_skip": "residual"}),
    "pooling_per_head": Variant("Pooling per head", {"model.pooling": "quaternion_per_head"}),
    "self_excluded": Variant("Self no neighbour", {"model.self_neighbour": False}),
    "plain": Variant(
        "QSV without its asymmetries",
        {**NO_ASYMMETRY, **DROPOUT_OFF, **AUXILIARIES_OFF},
        removes=("rounds.*", *POSITIONS),
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


_PresetGroups = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Scale:
    """Settings that a row starts from."""

    presets: Mapping[str, _PresetGroups]
    """model -> preset."""
    datasets: Mapping[str, Mapping[str, Any]]
    """data set -> its settings: name, shape, schedule."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of every cell; they override the presets."""


DATASET_TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "cifar100-part": "CIFAR-100 part"}
"""Names in headings; other data sets keep their name."""
STANDS_FOR = {"cifar10": "cifar10", "cifar100": "cifar100", "cifar100-part": "cifar100"}
"""data set -> the paper's data set whose claims its cells may decide, preferred first; others decide none."""
ARCHIVES = {"cifar100-part": "cifar100-part.zip"}
"""Data sets that are a single file in the data folder; the others are found by their reader."""

TRAIN_IMAGES = {"cifar10": 45_000, "cifar100": 45_000, "cifar100-part": 9_000, "digits": 1_295}
"""Number of training images without the validation part, for estimates of training time."""

_CIFAR10 = {"data.name": "cifar10", "model.image_size": 32, "model.in_channels": 3, "model.num_classes": 10}
_CIFAR100 = {**_CIFAR10, "data.name": "cifar100", "model.num_classes": 100, "optim.repulsion_neighbours": 16}
_DIGITS = {"data.name": "digits", "model.image_size": 8, "model.in_channels": 1, "model.num_classes": 10}

LITE_SCHEDULE = {"train.epochs": 5, "data.max_train_images": 8_000, "data.val_fraction": 0.04}
"""40,000 images seen, two to three minutes on one core: short cells, so that many seeds are possible."""
PART_SCHEDULE = {"train.epochs": 4}
"""36,000 images seen: the part of CIFAR-100 has 9,000 training images."""
LITE_SIZE = {"dim": 64, "heads": 4}
"""Half the width of preset `lite`, with Q = 4 as in the paper."""
LITE_WIDTH = 6
"""Width of a ResNet-20 with fewer parameters than that QSV: 38,512 of 43,111."""

CURVE_SETTINGS = {
    "train.threads": 1,
    "train.head_diversity": 1e-2,
    "train.head_diversity_pairs": PAPER_RECIPE["train"]["head_diversity_pairs"],
    "optim.repulsion_start": PAPER_RECIPE["optim"]["repulsion_start"],
}
"""The paper's losses; the plan sets the length of a run, over all 45,000 training images."""

SMOKE: dict[str, dict[str, Any]] = {
    "data": {"name": "digits", "crop_pad": 1, "flip": False, "trivial_augment": False},
    "optim": {"peak_lr": 16e-3},
    "train": {"epochs": 2, "batch_size": 32, "patience": None, "head_diversity": 0.0},
}
"""Two epochs of all digits, two seconds per cell; the full model reaches about 73 %, chance is 10 %."""
SMOKE_SHELLS: dict[str, Any] = {"base_vertices": 16, "shells": 2, "plane_rows": 4, "neighbours": 4}

LITE_MODELS: dict[str, _PresetGroups] = {
    "qsv": {**PRESETS["lite"], "model": {**PRESETS["lite"]["model"], **LITE_SIZE}},
    "attention": PRESETS["lite-attention"],
    "resnet20": {**PRESETS["lite-resnet20"], "model": {"name": "resnet20", "width": LITE_WIDTH}},
    "linear": {**LITE, "model": {"name": "linear", **LITE_SHELLS}},
}

CURVE_RATES = {"attention": 4e-3, "resnet20": 4e-3}
"""Peak learning rates found by the search of docs/protocol.md; the other models keep 2e-3."""
CURVE_MODELS: dict[str, _PresetGroups] = {
    name: {**groups, "optim": {**groups["optim"], "peak_lr": CURVE_RATES.get(name, groups["optim"]["peak_lr"])}}
    for name, groups in LITE_MODELS.items()
}

SCALES: dict[str, Scale] = {
    "paper": Scale(
        {
            "qsv": PRESETS["paper-cifar10"],
            "attention": PRESETS["paper-attention"],
            "resnet20": PRESETS["paper-resnet20"],
            "linear": PRESETS["paper-linear"],
        },
        {"cifar10": _CIFAR10, "cifar100": _CIFAR100},
    ),
    "lite": Scale(
        LITE_MODELS,
        {"cifar10": {**_CIFAR10, **LITE_SCHEDULE}, "cifar100-part": {**_CIFAR100, **PART_SCHEDULE}},
        {"train.threads": 1},
    ),
    "curve": Scale(CURVE_MODELS, {"cifar10": _CIFAR10}, CURVE_SETTINGS),
    "smoke": Scale(
        {
            "qsv": {
                **SMOKE,
                "model": {"name": "qsv", "dim": 32, "heads": 4, "rounds": 1, **NO_DROPOUT, **SMOKE_SHELLS},
            },
            "attention": {**SMOKE, "model": {"name": "attention", **SMOKE_SHELLS}},
            "resnet20": {**SMOKE, "model": {"name": "resnet20", "width": 4}},
            "linear": {**SMOKE, "model": {"name": "linear", "base_vertices": 16}},
        },
        {"digits": _DIGITS},
        {"train.threads": 1},
    ),
}


def images_per_epoch(dataset: str, limit: int | None) -> int:
    """Number of training images of a data set, with `data.max_train_images` as limit."""
    return TRAIN_IMAGES[dataset] if limit is None else min(limit, TRAIN_IMAGES[dataset])


def dataset_title(dataset: str) -> str:
    """Name of a data set in headings."""
    return DATASET_TITLES.get(dataset, dataset)


def data_location(dataset: str, data_root: str | None) -> str | None:
    """Value of `data.root` for a data set: the given folder, or the archive in it or in QUATSPHERE_DATA."""
    if dataset not in ARCHIVES:
        return data_root
    folders = search_paths(None if data_root is None else Path(data_root))
    found = [folder / ARCHIVES[dataset] for folder in folders if (folder / ARCHIVES[dataset]).is_file()]
    return str(found[0] if found else folders[0] / ARCHIVES[dataset])
