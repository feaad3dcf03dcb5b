"""Metrics of finished cells: one number per cell and metric, by row and seed, in the paper's units."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from quatsphere.optim.optimisers import SCHEDULES
from quatsphere.study.results import CellRecord
from quatsphere.study.statistics import Samples
from quatsphere.study.variants import STANDS_FOR

Names = tuple[str, ...]
Pick = Callable[[list[float]], float]
VEHICLES = ("automobile", "truck", "ship", "frog")
ANIMALS = ("cat", "bird", "dog", "deer")
OTHERS = ("airplane", "horse")


def roughness(record: CellRecord) -> float | None:
    """Standard deviation of the loss differences between epochs after the warm-up."""
    losses = [loss for loss in record["trajectory"]["train_loss"] if loss is not None]
    settings = record["config"]
    losses = losses[math.ceil(settings["optim.warmup"] * settings["train.epochs"] - 1e-9) :]
    steps = [after - before for before, after in pairwise(losses)]
    return statistics.stdev(steps) if len(steps) > 1 else None


def falling_share(record: CellRecord) -> float | None:
    """Share of epochs whose training loss is below that of the previous epoch."""
    falls = [after < before for before, after in pairwise(record["trajectory"]["train_loss"])]
    return sum(falls) / len(falls) if falls else None


def tracking(record: CellRecord) -> float | None:
    """Correlation over the epochs between validation accuracy and accuracy on augmented training images."""
    curves = (record["trajectory"]["train_accuracy"], record["trajectory"]["val_accuracy"])
    pairs = [(a, b) for a, b in zip(*curves, strict=False) if a is not None and b is not None]
    varies = all(len(set(curve)) > 1 for curve in zip(*pairs, strict=True))
    return statistics.correlation(*zip(*pairs, strict=True)) if len(pairs) > 2 and varies else None


def orientation_change(record: CellRecord) -> float | None:
    """Orientation spread of the last shell minus that of the first."""
    spreads = _shells(record, _diagnostic(record, "orientation_spread"))
    return spreads[-1] - spreads[0] if len(spreads) > 1 else None


def beta_change(record: CellRecord) -> float | None:
    """Mean beta of the cross-shell steps at the end minus its value after the first epoch."""
    betas = [_shells(record, steps, 1) for steps in record["trajectory"]["beta"] if steps]
    return statistics.mean(betas[-1]) - statistics.mean(betas[0]) if len(betas) > 1 and betas[0] else None


def concentration(record: CellRecord) -> float | None:
    """Relative increase of the first shell's Coulomb energy over training; positive if its vertices moved together.

    Only the first shell: the others get no gradient, and only repulsion moves them.
    """
    energy, start = ((_diagnostic(record, name) or [None])[0] for name in ("energy", "energy_start"))
    return energy / start - 1 if energy and start else None


def interior_displacement(record: CellRecord) -> float | None:
    """Mean angular displacement of the vertices of all shells but the first, as a multiple of their spacing."""
    moved, spacing = _diagnostic(record, "displacement")[1:], _diagnostic(record, "spacing")[1:]
    return statistics.mean(m / s for m, s in zip(moved, spacing, strict=True)) if moved else None


def class_gap(record: CellRecord, pick: Pick, names: Names, pick_other: Pick, others: Names) -> float | None:
    """Mean, smallest or largest accuracy on some classes minus that on others, in points."""
    one, other = _class_accuracies(record, names), _class_accuracies(record, others)
    return 100 * (pick(one) - pick_other(other)) if one and other else None


def cat_gap(record: CellRecord) -> float | None:
    """Accuracy on cat minus that on the hardest other class, in points."""
    classes = record.get("per_class", {})
    others = [value for name, value in classes.items() if name != "cat" and value is not None]
    return 100 * (classes["cat"] - min(others)) if classes.get("cat") is not None and others else None


def clean_train(record: CellRecord, *, gap: bool = False) -> float | None:
    """Accuracy on training images without augmentation in points, or its difference to test accuracy."""
    share = record.get("diagnostics", {}).get("clean_train_accuracy")
    return None if share is None else 100 * (share - (record["test_accuracy"] if gap else 0.0))


def generalisation(record: CellRecord) -> float | None:
    """The gap from clean training to test accuracy minus that from 100 % to clean training accuracy, in points."""
    clean, gap = clean_train(record), clean_train(record, gap=True)
    return None if clean is None or gap is None else gap - (100 - clean)


def decay_sum(record: CellRecord) -> float:
    """Sum of learning rate x weight decay over the steps; decay alone shrinks a weight by exp(-sum)."""
    settings, steps = record["config"], record["steps"]
    planned = round(steps * settings["train.epochs"] / record["epochs"])
    schedule = SCHEDULES[settings["optim.schedule"]]
    arguments = (settings["optim.warmup"], settings["optim.initial_div"], settings["optim.final_div"])
    every = max(1, steps // 1000)
    factors = [schedule(step, planned, *arguments) for step in range(0, steps, every)]
    return float(settings["optim.peak_lr"] * settings["optim.weight_decay"] * steps * statistics.mean(factors))


def _diagnostic(record: CellRecord, name: str) -> list[Any]:
    return list(record.get("diagnostics", {}).get(name, []))


def _class_accuracies(record: CellRecord, names: tuple[str, ...]) -> list[float]:
    """Accuracies of classes as fractions; empty unless all are known."""
    classes = record.get("per_class", {})
    return [classes[name] for name in names] if all(classes.get(name) is not None for name in names) else []


def _shells(record: CellRecord, steps: list[float], first: int = 0) -> list[float]:
    """Values of the steps that reach a new shell: the first and the cross-shell ones (from `first` = 1)."""
    return steps[first : record["config"].get("model.shells", 0)]


def _through_training(record: CellRecord, name: str) -> list[float]:
    """Values by epoch and shell."""
    return [value for steps in record["trajectory"][name] for value in _shells(record, steps)]


CELL_METRICS: dict[str, Callable[[CellRecord], float | None]] = {
    "test": lambda record: 100 * record["test_accuracy"],
    "val": lambda record: 100 * record["val_accuracy"],
    "train": lambda record: 100 * record["trajectory"]["train_accuracy"][-1],
    "clean_train": clean_train,
    "clean_gap": lambda record: clean_train(record, gap=True),
    "speed": lambda record: max(record["trajectory"]["images_per_second"]),
    "log_speed": lambda record: math.log(max(record["trajectory"]["images_per_second"])),
    "roughness": roughness,
    "falling": falling_share,
    "tracking": tracking,
    "drift": lambda record: statistics.mean(angles) if (angles := _diagnostic(record, "drift")) else None,
    "orientation_change": orientation_change,
    "beta_change": beta_change,
    "concentration": concentration,
    "interior": interior_displacement,
    "class_gap": lambda record: class_gap(record, statistics.mean, VEHICLES, statistics.mean, ANIMALS),
    "cat_gap": cat_gap,
    "easiest_gap": lambda record: class_gap(record, min, VEHICLES, max, OTHERS),
    "weakest_gap": lambda record: class_gap(record, max, ANIMALS, min, (*VEHICLES, *OTHERS)),
    "generalisation": generalisation,
    "decay": decay_sum,
}
"""name -> one number of a finished cell. Speeds are those of the fastest epoch, the least disturbed by other work."""
ACCURACIES = ("test", "val", "train")
"""Metrics whose variance is pooled over all rows; for other metrics only the compared rows are used."""

CELL_LISTS: dict[str, Callable[[CellRecord], list[float]]] = {
    "entropy": lambda record: _through_training(record, "routing_entropy"),
    "peak": lambda record: _through_training(record, "routing_peak"),
    "orientation": lambda record: _shells(record, _diagnostic(record, "orientation_spread")),
    "score": lambda record: _shells(record, _diagnostic(record, "score_spread")),
    "beta": lambda record: record["trajectory"]["beta"][-1],
    "cross_beta": lambda record: [
        value for name in ("beta_min", "beta_max") for value in _shells(record, _diagnostic(record, name), 1)
    ],
    "agreement": lambda record: _diagnostic(record, "agreement"),
}
"""name -> numbers of a finished cell, one per step or shell."""


def collect(records: Iterable[CellRecord], metric: Callable[[CellRecord], float | None]) -> Samples:
    """row -> seed -> value, for the records that have the metric."""
    found: dict[str, dict[int, float]] = {}
    for record in records:
        value = metric(record)
        if value is not None:
            found.setdefault(record["variant"], {})[record["seed"]] = value
    return found


class Evidence:
    """Finished cells of a results folder, indexed by data set, row and metric."""

    def __init__(self, records: Iterable[CellRecord]) -> None:
        everything = list(records)
        self.records = [record for record in everything if record["status"] == "finished"]
        self.diverged = [record for record in everything if record["status"] == "diverged"]
        self._samples: dict[tuple[str, str], Samples] = {}

    def available_dataset(self, claimed: str) -> str:
        """Return the data set with cells that represents the paper's, or the paper's own name if there is none."""
        present = {record["dataset"] for record in self.records}
        candidates = (name for name, paper in STANDS_FOR.items() if claimed in (name, paper))
        return next((name for name in candidates if name in present), claimed)

    def has_cells(self, dataset: str) -> bool:
        """Return True if a cell, finished or diverged, is on a data set or its substitute."""
        return self.available_dataset(dataset) in {record["dataset"] for record in (*self.records, *self.diverged)}

    def row_records(self, dataset: str, row: str) -> dict[int, CellRecord]:
        """seed -> record of one row."""
        name = self.available_dataset(dataset)
        return {r["seed"]: r for r in self.records if r["dataset"] == name and r["variant"] == row}

    def samples(self, dataset: str, metric: str) -> Samples:
        """row -> seed -> value for all rows; cached."""
        if (dataset, metric) not in self._samples:
            name = self.available_dataset(dataset)
            cells = [record for record in self.records if record["dataset"] == name]
            self._samples[dataset, metric] = collect(cells, CELL_METRICS[metric])
        return self._samples[dataset, metric]

    def lists(self, dataset: str, row: str, metric: str) -> dict[int, list[float]]:
        """seed -> one value per step or shell."""
        found = {seed: CELL_LISTS[metric](record) for seed, record in self.row_records(dataset, row).items()}
        return {seed: values for seed, values in found.items() if values}

    def diverged_count(self, dataset: str, row: str) -> int:
        """Number of diverged cells of a row."""
        name = self.available_dataset(dataset)
        return sum(r["dataset"] == name and r["variant"] == row for r in self.diverged)
