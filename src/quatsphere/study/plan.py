"""Plans: which rows, on which data, with which seeds, at which scale; a cell is one of each and has one RunConfig."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from quatsphere.config import DataConfig, OptimConfig, QSVConfig, RunConfig, TrainConfig
from quatsphere.errors import ConfigError
from quatsphere.models import MODELS, build_model
from quatsphere.study.scales import SCALES, Scale, place_of
from quatsphere.study.variants import find_variant, settle


@dataclass(frozen=True)
class Block:
    """Rows on one data set, each with all of these seeds; earlier blocks run first within a seed."""

    dataset: str
    rows: tuple[str, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """An ordered list of cells at one scale."""

    purpose: str
    scale: str
    blocks: tuple[Block, ...]


FIVE = (42, 1, 2, 3, 4)
THREE = (42, 1, 2)
KERNEL = ("full", "transport_identity", "routing_uniform", "both_off", "attention", "flat")
LAYOUT = ("qsv_plane", "resample_geometric", "attention_resample_geometric")
FIELD = ("frozen_random", "attention_value_identity", "flat_value_identity", "resnet20", "attention_wide")
ROUTING = ("routing_absolute", "routing_geometric", "beta_warm", "beta_frozen")
STABILITY = (
    "quaternion_adamw",
    "quaternion_annealed",
    "schedule_constant",
    "repulsion_off",
    "bound_none",
    "zero_init_off",
)
PRECISION = ("bf16", "attention_bf16")
SWEEP = ("lr_half", "lr_double", "quaternion_lr_low", "quaternion_lr_high", "repulsion_strong")
FORMS = ("field_static", "transport_one_sided", "transport_projected", "uniform_projected", "frozen_identity")
SEAMS = ("plain", "positions_frozen", "rounds_none", "pooling_mean", "dropout_none", "auxiliaries_none")
CIFAR100 = ("full", "transport_identity", "routing_uniform", "attention", "attention_value_identity")

PLANS: dict[str, Plan] = {
    "paper": Plan(
        "every row at the paper's size, for GPU owners",
        "paper",
        (
            Block("cifar10", (*KERNEL, *FIELD, *ROUTING, *STABILITY), THREE),
            Block("cifar100", CIFAR100, THREE),
            Block("cifar10", (*LAYOUT, *FORMS, *SEAMS, *SWEEP, *PRECISION), THREE),
        ),
    ),
    "lite": Plan(
        "the paper's comparisons at a size that two CPU cores train",
        "lite",
        (
            Block("cifar10", (*KERNEL, *LAYOUT), FIVE),
            Block("cifar10", (*FIELD, *ROUTING, *STABILITY), THREE),
            Block("cifar100-part", ("full", "transport_identity", "routing_uniform"), THREE),
        ),
    ),
    "beyond": Plan("forms of transport and the seams of a fair match, lite", "lite", (
        Block("cifar10", (*FORMS, *SEAMS), THREE),
        Block("cifar100-part", ("attention", "attention_value_identity"), THREE),
    )),
    "sweep": Plan("robustness to learning rates, quaternion steps and repulsion, lite", "lite", (
        Block("cifar10", ("full", *SWEEP, "repulsion_off"), THREE),
    )),
    "precision": Plan("bf16 against fp32, lite", "lite", (
        Block("cifar10", ("full", "attention", *PRECISION), FIVE),
    )),
    "smoke": Plan("a tiny model on the embedded digits, to test the study itself", "smoke", (
        Block("digits", ("full", "transport_identity", "routing_uniform", "both_off"), (1, 2, 3)),
        Block("digits", ("attention",), (1,)),
    )),
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One row on one data set with one seed, and everything that follows from that."""

    dataset: str
    variant: str
    seed: int
    config: RunConfig = field(repr=False)

    @property
    def id(self) -> str:
        """Stable and readable: data set, row, seed."""
        return f"{self.dataset}.{self.variant}.s{self.seed}"


def plan_cells(
    plan: Plan,
    *,
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    data_root: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """The cells of a plan, all rows at the first seed first; `seeds` replaces the plan's, `only` are globs of ids.

    `settings` change the scale before a row changes its own fields. Rows that change nothing here are left out.
    """
    wanted = [
        (position, index, row, seed)
        for index, block in enumerate(plan.blocks)
        for row in block.rows
        for position, seed in enumerate(dict.fromkeys(block.seeds if seeds is None else seeds))
    ]
    ordered = sorted(wanted, key=lambda item: item[:2])
    names = [(plan.blocks[index].dataset, row, seed) for _, index, row, seed in ordered]
    chosen = [name for name in names if is_chosen(name, only)]
    if not chosen:
        raise ConfigError(f"no cell fits --only {' '.join(only)}; rows are {', '.join(sorted({n[1] for n in names}))}")
    scale = SCALES[plan.scale]

    @functools.cache
    def config_of(dataset: str, row: str, seed: int) -> RunConfig:
        return cell_config(scale, dataset, row, seed, data_root=data_root, settings=settings or {})

    cells = [Cell(*name, config_of(*name)) for name in chosen]
    return [c for c in cells if not is_idle(c, config_of(c.dataset, find_variant(c.variant).reference, c.seed))]


def reference_of(cell: Cell, plan: Plan, settings: Mapping[str, Any] | None = None) -> Cell:
    """The cell that a cell is compared with: same data, same seed."""
    row = find_variant(cell.variant).reference
    config = cell_config(SCALES[plan.scale], cell.dataset, row, cell.seed, data_root=None, settings=settings or {})
    return Cell(cell.dataset, row, cell.seed, replace(config, data=replace(config.data, root=cell.config.data.root)))


def is_idle(cell: Cell, reference: RunConfig) -> bool:
    """Whether a row changes nothing at this scale: what it removes is off already."""
    return bool(find_variant(cell.variant).changes) and cell.config == reference


def is_chosen(name: tuple[str, str, int], only: Sequence[str]) -> bool:
    """Whether one of the globs fits the cell's id or its row; no globs choose everything."""
    dataset, row, seed = name
    return not only or any(fnmatchcase(f"{dataset}.{row}.s{seed}", glob) or fnmatchcase(row, glob) for glob in only)


def cell_config(
    scale: Scale, dataset: str, row: str, seed: int, *, data_root: str | None, settings: Mapping[str, Any]
) -> RunConfig:
    """A row's configuration: the scale's preset for its model, data set and schedule, then what the row changes."""
    variant = find_variant(row)
    changed = frozenset(settings.items())
    base = base_settings(scale, dataset, variant.model, changed)
    qsv = full_model(scale, dataset, changed)
    matched = {"model.budget": parameter_count(qsv)} if variant.model == "attention" else {}
    changes = {key: settle(key, value, base, qsv) for key, value in variant.changes.items()}
    place = place_of(dataset, data_root)
    return make_config({**base, **matched, **changes, "train.seed": seed, "data.root": place})


Settings = frozenset[tuple[str, Any]]


@functools.cache
def base_settings(scale: Scale, dataset: str, model: str, settings: Settings = frozenset()) -> Mapping[str, Any]:
    """Every setting of a model at a scale on a data set, before any row changes one: `group.field` -> value."""
    preset = {f"{group}.{name}": value for group, part in scale.presets[model].items() for name, value in part.items()}
    given = {**preset, **scale.settings, **scale.datasets[dataset], **dict(settings)}
    return flat_settings(make_config({**given, "model.name": model}, lenient=True))


@functools.cache
def full_model(scale: Scale, dataset: str, settings: Settings) -> QSVConfig:
    """The full QSV of a scale and data set: the model whose parameters are the baselines' budget."""
    config = make_config(base_settings(scale, dataset, "qsv", settings)).model
    assert isinstance(config, QSVConfig)
    return config


@functools.cache
def parameter_count(config: QSVConfig) -> int:
    """Parameters of a model."""
    return sum(parameter.numel() for parameter in build_model(config).parameters())


def make_config(settings: Mapping[str, Any], *, lenient: bool = False) -> RunConfig:
    """The RunConfig of `group.field` -> value; `lenient` leaves out fields that only other models have."""
    name = settings["model.name"]
    kinds = {"data": DataConfig, "model": MODELS[name][0], "optim": OptimConfig, "train": TrainConfig}
    groups: dict[str, dict[str, Any]] = {group: {} for group in kinds}
    for key, value in settings.items():
        group, _, setting = key.partition(".")
        known = group in kinds and setting in {f.name for f in fields(kinds[group])}
        if not known and not (lenient and group == "model" and setting in EVERY_MODEL_FIELD):
            raise ConfigError(f"unknown setting {key!r}; see 'quatsphere train --help'")
        if known:
            groups[group][setting] = value
    return RunConfig(**{group: kind(**groups[group]) for group, kind in kinds.items()})


EVERY_MODEL_FIELD = {f.name for kind, _ in MODELS.values() for f in fields(kind)}


def flat_settings(config: RunConfig) -> dict[str, Any]:
    """A configuration as `group.field` -> value."""
    return {f"{group}.{name}": value for group, part in asdict(config).items() for name, value in part.items()}
