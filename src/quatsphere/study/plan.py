"""Plans: rows, data sets, seeds and a scale; a cell is one combination of them with its RunConfig."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, get_args

from quatsphere.config import QSVConfig, RunConfig
from quatsphere.config.resolve import MODEL_CONFIGS, Layer, field_types, flat_settings, rename, resolve_config
from quatsphere.errors import ConfigError
from quatsphere.models import build_model
from quatsphere.study.variants import SCALES, Scale, data_location, find_variant, resolve_change


@dataclass(frozen=True)
class PlanBlock:
    """Rows on one data set, each with all seeds; within a seed, earlier blocks run first."""

    dataset: str
    rows: tuple[str, ...]
    seeds: tuple[int, ...]
    epochs: int | None = None
    """Length of the run; None for the scale's. A length given here is part of the cell's name."""
    stage: int = 0
    """All cells of a stage run before the next stage begins."""


@dataclass(frozen=True)
class StudyPlan:
    """An ordered list of cells at one scale."""

    purpose: str
    scale: str
    blocks: tuple[PlanBlock, ...]


FIVE_SEEDS = (42, 1, 2, 3, 4)
THREE_SEEDS = (42, 1, 2)
TWO_SEEDS = (42, 1)
KERNEL_ROWS = ("full", "transport_identity", "routing_uniform", "both_off", "attention", "flat")
LAYOUT_ROWS = ("qsv_plane", "resample_geometric", "attention_resample_geometric")
FIELD_ROWS = ("frozen_random", "attention_value_identity", "flat_value_identity", "resnet20", "attention_wide")
ROUTING_ROWS = ("routing_absolute", "routing_geometric", "beta_warm", "beta_frozen")
STABILITY_ROWS = (
    "quaternion_adamw",
    "quaternion_annealed",
    "schedule_constant",
    "repulsion_off",
    "bound_none",
    "zero_init_off",
)
PRECISION_ROWS = ("bf16", "attention_bf16")
SWEEP_ROWS = ("lr_half", "lr_double", "quaternion_lr_low", "quaternion_lr_high", "repulsion_strong")
TRANSPORT_ROWS = ("field_static", "transport_one_sided", "transport_projected", "uniform_projected", "frozen_identity")
ASYMMETRY_ROWS = ("plain", "positions_frozen", "rounds_none", "pooling_mean", "dropout_none", "auxiliaries_none")
MAIN_ROWS = ("full", "transport_identity", "routing_uniform", "attention", "flat")
SECONDARY_ROWS = ("both_off", "attention_value_identity", "flat_value_identity")
FURTHER_ROWS = ("resnet20", "frozen_random", "field_static", "transport_projected", "transport_one_sided", "plain")
LONG_ROWS = ("quaternion_adamw", "bound_none", "zero_init_off", "repulsion_off", "beta_frozen", "beta_warm")
LONGEST_ROWS = ("full", "transport_identity", "beta_warm", "attention", "attention_value_identity")
CONTROL_ROWS = ("transport_lift", "transport_lower", "both_off_mixed", "attention_uniform")
READING_ROWS = ("stencil_pitch", "network_per_shell", "inner_skip", "pooling_per_head", "self_excluded")
"""Rows that replace our reading of an open point of the paper by another."""
CIFAR100_ROWS = ("full", "transport_identity", "routing_uniform", "attention", "attention_value_identity")

PLANS: dict[str, StudyPlan] = {
    "paper": StudyPlan("every row at the paper's size, for GPU owners", "paper", (
        PlanBlock("cifar10", (*KERNEL_ROWS, *FIELD_ROWS, *ROUTING_ROWS, *STABILITY_ROWS), THREE_SEEDS),
        PlanBlock("cifar100", CIFAR100_ROWS, THREE_SEEDS),
        PlanBlock("cifar10", ("linear", *LAYOUT_ROWS, *TRANSPORT_ROWS, *CONTROL_ROWS), THREE_SEEDS),
        PlanBlock("cifar10", (*ASYMMETRY_ROWS, *READING_ROWS, *SWEEP_ROWS, *PRECISION_ROWS), THREE_SEEDS),
    )),
    "lite": StudyPlan("the paper's comparisons at a size that two CPU cores train", "lite", (
        PlanBlock("cifar10", (*KERNEL_ROWS, *LAYOUT_ROWS), FIVE_SEEDS),
        PlanBlock("cifar10", (*FIELD_ROWS, *ROUTING_ROWS, *STABILITY_ROWS), THREE_SEEDS),
        PlanBlock("cifar100-part", ("full", "transport_identity", "routing_uniform"), THREE_SEEDS),
    )),
    "beyond": StudyPlan("other forms of transport, QSV without its asymmetries, lite", "lite", (
        PlanBlock("cifar10", (*TRANSPORT_ROWS, *ASYMMETRY_ROWS), THREE_SEEDS),
        PlanBlock("cifar100-part", ("attention", "attention_value_identity"), THREE_SEEDS),
    )),
    "sweep": StudyPlan("robustness to learning rates, quaternion steps and repulsion, lite", "lite", (
        PlanBlock("cifar10", ("full", *SWEEP_ROWS, "repulsion_off"), THREE_SEEDS),
    )),
    "precision": StudyPlan("bf16 against fp32, lite", "lite", (
        PlanBlock("cifar10", ("full", "attention", *PRECISION_ROWS), FIVE_SEEDS),
    )),
    "tuning": StudyPlan("learning-rate search before plan curve, once per rate: --set optim.peak_lr=X", "curve", (
        PlanBlock("cifar10", ("linear", "attention", "flat", "full", "resnet20"), (1001,), epochs=2),
    )),
    "curve": StudyPlan("contrasts against the length of training (docs/protocol.md)", "curve", (
        PlanBlock("cifar10", ("linear", *MAIN_ROWS, *SECONDARY_ROWS), FIVE_SEEDS, epochs=2, stage=1),
        PlanBlock("cifar10", ("linear", *MAIN_ROWS, *SECONDARY_ROWS), FIVE_SEEDS, epochs=6, stage=2),
        PlanBlock("cifar10", ("linear", *MAIN_ROWS), THREE_SEEDS, epochs=18, stage=3),
        PlanBlock("cifar10", SECONDARY_ROWS, THREE_SEEDS, epochs=18, stage=4),
        PlanBlock("cifar10", (*FURTHER_ROWS, *CONTROL_ROWS), THREE_SEEDS, epochs=6, stage=5),
        PlanBlock("cifar10", READING_ROWS, THREE_SEEDS, epochs=6, stage=6),
        PlanBlock("cifar10", LONG_ROWS, THREE_SEEDS, epochs=18, stage=7),
        PlanBlock("cifar10", LONGEST_ROWS, TWO_SEEDS, epochs=57, stage=8),
    )),
    "smoke": StudyPlan("a tiny model on the embedded digits, to test the study itself", "smoke", (
        PlanBlock("digits", ("full", "transport_identity", "both_off"), (1, 2, 3)),
        PlanBlock("digits", ("routing_uniform", "attention"), (1,)),
    )),
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One row on one data set with one seed, and its configuration."""

    dataset: str
    variant: str
    seed: int
    config: RunConfig = field(repr=False)
    epochs: int | None = None

    @property
    def id(self) -> str:
        """Name of the cell: data set, row, length if the plan has several, seed."""
        return cell_id(self.dataset, self.variant, self.seed, self.epochs)


def cell_id(dataset: str, variant: str, seed: int, epochs: int | None = None) -> str:
    """`cifar10.full.s42`, or `cifar10.full.e6.s42` for a run of six epochs in a plan of several lengths."""
    length = "" if epochs is None else f".e{epochs}"
    return f"{dataset}.{variant}{length}.s{seed}"


def plan_cells(
    plan: StudyPlan,
    *,
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    data_root: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """Cells of a plan in the order they run: all rows with the first seed, then the second, and so on.

    Args:
        plan: one of PLANS.
        seeds: replace the plan's.
        only: globs of cell ids or rows to keep.
        data_root: folder with the data.
        settings: `group.field` -> value, applied to the scale before a row changes its own fields.

    Rows that change nothing at this scale are left out.
    """
    keyed = [
        ((block.stage, position, index), (block.dataset, row, seed, block.epochs))
        for index, block in enumerate(plan.blocks)
        for row in block.rows
        for position, seed in enumerate(dict.fromkeys(block.seeds if seeds is None else seeds))
    ]
    names = [name for _, name in sorted(keyed, key=lambda item: item[0])]
    globs = only or ["*"]
    chosen = [n for n in names if any(fnmatchcase(cell_id(*n), glob) or fnmatchcase(n[1], glob) for glob in globs)]
    if not chosen:
        raise ConfigError(
            f"no cell matches --only {' '.join(only)}; rows are {', '.join(sorted({n[1] for n in names}))}"
        )
    scale = SCALES[plan.scale]

    @functools.cache
    def config_of(dataset: str, row: str, seed: int, epochs: int | None) -> RunConfig:
        length = {} if epochs is None else {"train.epochs": epochs}
        return cell_config(scale, dataset, row, seed, data_root=data_root, settings={**length, **(settings or {})})

    cells = [Cell(*name[:3], config_of(*name), name[3]) for name in chosen]
    references = [config_of(c.dataset, find_variant(c.variant).reference, c.seed, c.epochs) for c in cells]
    return [
        cell
        for cell, reference in zip(cells, references, strict=True)
        if cell.config != reference or not find_variant(cell.variant).changes
    ]


def find_plan(name: str) -> StudyPlan:
    """Return the plan of a name, or raise ConfigError."""
    if name not in PLANS:
        raise ConfigError(f"unknown plan {name!r}; choose one of {', '.join(PLANS)}")
    return PLANS[name]


def reference_of(cell: Cell, plan: StudyPlan) -> Cell:
    """Return the cell that a cell is compared with: same data, same seed."""
    row = find_variant(cell.variant).reference
    length = {"train.epochs": cell.config.train.epochs}
    config = cell_config(SCALES[plan.scale], cell.dataset, row, cell.seed, data_root=None, settings=length)
    config = replace(config, data=replace(config.data, root=cell.config.data.root))
    return Cell(cell.dataset, row, cell.seed, config, cell.epochs)


def cell_config(
    scale: Scale, dataset: str, row: str, seed: int, *, data_root: str | None, settings: Mapping[str, Any]
) -> RunConfig:
    """Configuration of a row: the scale's preset for its model, data set and schedule, then the row's changes."""
    variant = find_variant(row)
    changed = frozenset(settings.items())
    base = base_settings(scale, dataset, variant.model, changed)
    qsv = full_model(scale, dataset, changed)
    matched = {"model.budget": parameter_count(qsv)} if variant.model == "attention" else {}
    changes = {key: resolve_change(key, value, base, qsv) for key, value in variant.changes.items()}
    location = data_location(dataset, data_root)
    return make_config({**base, **matched, **changes, "train.seed": seed, "data.root": location})


_Settings = frozenset[tuple[str, Any]]


@functools.cache
def base_settings(scale: Scale, dataset: str, model: str, settings: _Settings = frozenset()) -> Mapping[str, Any]:
    """All settings of a model at a scale on a data set, before a row changes any: `group.field` -> value.

    Fields and choices that only other models have are left out.
    """
    preset = {f"{group}.{name}": value for group, part in scale.presets[model].items() for name, value in part.items()}
    given = rename({**preset, **scale.settings, **scale.datasets[dataset], **dict(settings), "model.name": model})
    for key in given:
        if not any(key in field_types(name) for name in MODEL_CONFIGS):
            raise ConfigError(f"unknown setting {key!r}; see 'quatsphere train --help'")
    own = field_types(model)
    return flat_settings(make_config({k: v for k, v in given.items() if k in own and not _is_foreign(model, k, v)}))


@functools.cache
def full_model(scale: Scale, dataset: str, settings: _Settings) -> QSVConfig:
    """Full QSV of a scale and data set; its number of parameters is the budget of the baselines."""
    config = make_config(base_settings(scale, dataset, "qsv", settings)).model
    assert isinstance(config, QSVConfig)
    return config


@functools.cache
def parameter_count(config: QSVConfig) -> int:
    """Number of parameters of a QSV."""
    return sum(parameter.numel() for parameter in build_model(config).parameters())


def make_config(settings: Mapping[str, Any]) -> RunConfig:
    """Build a RunConfig from `group.field` -> value."""
    return resolve_config([Layer("study", rename(settings))])


def _is_foreign(model: str, key: str, value: Any) -> bool:
    """Return True if only other models' fields of the same name have a value as a choice."""
    choices = {name: get_args(field_types(name).get(key)) for name in MODEL_CONFIGS}
    return value not in choices[model] and any(value in others for others in choices.values())
