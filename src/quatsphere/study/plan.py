"""Plans: which rows, on which data, with which seeds, at which scale; a cell is one of each and has one RunConfig."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any, get_args, get_type_hints

from quatsphere.config import DataConfig, OptimConfig, QSVConfig, RunConfig, TrainConfig
from quatsphere.config.resolve import rename
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
    epochs: int | None = None
    """Length of the run; none takes the scale's. Cells of a given length have it in their name."""
    stage: int = 0
    """All cells of a stage run before the next stage begins."""


@dataclass(frozen=True)
class Plan:
    """An ordered list of cells at one scale."""

    purpose: str
    scale: str
    blocks: tuple[Block, ...]


FIVE = (42, 1, 2, 3, 4)
THREE = (42, 1, 2)
TWO = (42, 1)
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
MAIN = ("full", "transport_identity", "routing_uniform", "attention", "flat")
REST = ("both_off", "attention_value_identity", "flat_value_identity")
BESIDE = ("resnet20", "frozen_random", "field_static", "transport_projected", "transport_one_sided", "plain")
LONG = ("quaternion_adamw", "bound_none", "zero_init_off", "repulsion_off", "beta_frozen", "beta_warm")
LONGEST = ("full", "transport_identity", "beta_warm", "attention", "attention_value_identity")
CONTROLS = ("transport_lift", "transport_lower", "both_off_mixed", "attention_uniform")
READINGS = ("stencil_pitch", "network_per_shell", "inner_skip", "pooling_per_head", "self_excluded")
CIFAR100 = ("full", "transport_identity", "routing_uniform", "attention", "attention_value_identity")

PLANS: dict[str, Plan] = {
    "paper": Plan(
        "every row at the paper's size, for GPU owners",
        "paper",
        (
            Block("cifar10", (*KERNEL, *FIELD, *ROUTING, *STABILITY), THREE),
            Block("cifar100", CIFAR100, THREE),
            Block("cifar10", ("linear", *LAYOUT, *FORMS, *CONTROLS, *SEAMS, *READINGS, *SWEEP, *PRECISION), THREE),
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
    "tuning": Plan("the rate search before plan curve, one start per rate: --set optim.peak_lr=X", "curve", (
        Block("cifar10", ("linear", "attention", "flat", "full", "resnet20"), (1001,), epochs=2),
    )),
    "curve": Plan("contrasts against the length of training (docs/protocol.md)", "curve", (
        Block("cifar10", ("linear", *MAIN, *REST), FIVE, epochs=2, stage=1),
        Block("cifar10", ("linear", *MAIN, *REST), FIVE, epochs=6, stage=2),
        Block("cifar10", ("linear", *MAIN), THREE, epochs=18, stage=3),
        Block("cifar10", REST, THREE, epochs=18, stage=4),
        Block("cifar10", (*BESIDE, *CONTROLS), THREE, epochs=6, stage=5),
        Block("cifar10", READINGS, THREE, epochs=6, stage=6),
        Block("cifar10", LONG, THREE, epochs=18, stage=7),
        Block("cifar10", LONGEST, TWO, epochs=57, stage=8),
    )),
    "smoke": Plan("a tiny model on the embedded digits, to test the study itself", "smoke", (
        Block("digits", ("full", "transport_identity", "both_off"), (1, 2, 3)),
        Block("digits", ("routing_uniform", "attention"), (1,)),
    )),
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One row on one data set with one seed, and everything that follows from that."""

    dataset: str
    variant: str
    seed: int
    config: RunConfig = field(repr=False)
    epochs: int | None = None

    @property
    def id(self) -> str:
        """Stable and readable: data set, row, length where the plan has several, seed."""
        return cell_id(self.dataset, self.variant, self.seed, self.epochs)


def cell_id(dataset: str, variant: str, seed: int, epochs: int | None = None) -> str:
    """`cifar10.full.s42`, or `cifar10.full.e6.s42` for a run of six epochs in a plan of several lengths."""
    length = "" if epochs is None else f".e{epochs}"
    return f"{dataset}.{variant}{length}.s{seed}"


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
        (block.stage, position, index, row, seed)
        for index, block in enumerate(plan.blocks)
        for row in block.rows
        for position, seed in enumerate(dict.fromkeys(block.seeds if seeds is None else seeds))
    ]
    ordered = sorted(wanted, key=lambda item: item[:3])
    blocks = plan.blocks
    names = [(blocks[index].dataset, row, seed, blocks[index].epochs) for *_, index, row, seed in ordered]
    chosen = [name for name in names if is_chosen(name, only)]
    if not chosen:
        raise ConfigError(f"no cell fits --only {' '.join(only)}; rows are {', '.join(sorted({n[1] for n in names}))}")
    scale = SCALES[plan.scale]

    @functools.cache
    def config_of(dataset: str, row: str, seed: int, epochs: int | None) -> RunConfig:
        length = {} if epochs is None else {"train.epochs": epochs}
        return cell_config(scale, dataset, row, seed, data_root=data_root, settings={**length, **(settings or {})})

    cells = [Cell(*name[:3], config_of(*name), name[3]) for name in chosen]
    references = [config_of(c.dataset, find_variant(c.variant).reference, c.seed, c.epochs) for c in cells]
    return [cell for cell, reference in zip(cells, references, strict=True) if not is_idle(cell, reference)]


def reference_of(cell: Cell, plan: Plan, settings: Mapping[str, Any] | None = None) -> Cell:
    """The cell that a cell is compared with: same data, same seed."""
    row = find_variant(cell.variant).reference
    given = {"train.epochs": cell.config.train.epochs, **(settings or {})}
    config = cell_config(SCALES[plan.scale], cell.dataset, row, cell.seed, data_root=None, settings=given)
    config = replace(config, data=replace(config.data, root=cell.config.data.root))
    return Cell(cell.dataset, row, cell.seed, config, cell.epochs)


def is_idle(cell: Cell, reference: RunConfig) -> bool:
    """Whether a row changes nothing at this scale: what it removes is off already."""
    return bool(find_variant(cell.variant).changes) and cell.config == reference


def is_chosen(name: tuple[str, str, int, int | None], only: Sequence[str]) -> bool:
    """Whether one of the globs fits the cell's id or its row; no globs choose everything."""
    return not only or any(fnmatchcase(cell_id(*name), glob) or fnmatchcase(name[1], glob) for glob in only)


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
    """The RunConfig of `group.field` -> value; `lenient` leaves out what only other models have or can take."""
    name = settings["model.name"]
    kinds = {"data": DataConfig, "model": MODELS[name][0], "optim": OptimConfig, "train": TrainConfig}
    groups: dict[str, dict[str, Any]] = {group: {} for group in kinds}
    for key, value in rename(settings).items():
        group, _, setting = key.partition(".")
        known = group in kinds and setting in {f.name for f in fields(kinds[group])}
        if not known and not (lenient and group == "model" and setting in EVERY_MODEL_FIELD):
            raise ConfigError(f"unknown setting {key!r}; see 'quatsphere train --help'")
        if known and not (lenient and group == "model" and is_foreign(name, setting, value)):
            groups[group][setting] = value
    return RunConfig(**{group: kind(**groups[group]) for group, kind in kinds.items()})


def is_foreign(model: str, setting: str, value: Any) -> bool:
    """Whether a model cannot make a choice that another model's field of the same name has."""
    choices = {name: get_args(get_type_hints(kind).get(setting)) for name, (kind, _) in MODELS.items()}
    return value not in choices[model] and any(value in others for others in choices.values())


EVERY_MODEL_FIELD = {f.name for kind, _ in MODELS.values() for f in fields(kind)}


def flat_settings(config: RunConfig) -> dict[str, Any]:
    """A configuration as `group.field` -> value."""
    return {f"{group}.{name}": value for group, part in asdict(config).items() for name, value in part.items()}
