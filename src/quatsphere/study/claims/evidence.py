"""What the finished cells say: one number per cell and metric, rows by seed, in the paper's units."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

from quatsphere.optim.schedule import SCHEDULES
from quatsphere.study.datasets import STANDS_FOR
from quatsphere.study.statistics import Samples

Record = Mapping[str, Any]
VEHICLES = ("automobile", "truck", "ship", "frog")
ANIMALS = ("cat", "bird", "dog", "deer")
OTHERS = ("airplane", "horse")


def roughness(record: Record) -> float | None:
    """Standard deviation of the loss differences between epochs after the warm-up: how noisy a loss curve is."""
    losses = [loss for loss in record["trajectory"]["train_loss"] if loss is not None]
    settings = record["config"]
    losses = losses[math.ceil(settings["optim.warmup"] * settings["train.epochs"] - 1e-9) :]
    steps = [after - before for before, after in pairwise(losses)]
    return statistics.stdev(steps) if len(steps) > 1 else None


def falling_share(record: Record) -> float | None:
    """Share of epochs whose training loss is below that of the epoch before."""
    losses = record["trajectory"]["train_loss"]
    pairs = list(pairwise(losses))
    return sum(after < before for before, after in pairs) / len(pairs) if pairs else None


def tracking(record: Record) -> float | None:
    """Correlation over the epochs of validation accuracy and accuracy on augmented training images."""
    curves = (record["trajectory"]["train_accuracy"], record["trajectory"]["val_accuracy"])
    pairs = [(a, b) for a, b in zip(*curves, strict=False) if a is not None and b is not None]
    moving = all(len(set(curve)) > 1 for curve in zip(*pairs, strict=True))
    return statistics.correlation(*zip(*pairs, strict=True)) if len(pairs) > 2 and moving else None


def drift(record: Record) -> float | None:
    """Mean angle in radians between the base quaternions and their start."""
    angles = record.get("diagnostics", {}).get("drift", [])
    return statistics.mean(angles) if angles else None


def orientation_change(record: Record) -> float | None:
    """Orientation spread of the last shell minus that of the first."""
    spreads = _shells(record, record.get("diagnostics", {}).get("orientation_spread", []))
    return spreads[-1] - spreads[0] if len(spreads) > 1 else None


def beta_change(record: Record) -> float | None:
    """Mean beta of the cross-shell steps at the end minus its value after the first epoch."""
    betas = [cross_steps(record, steps) for steps in record["trajectory"]["beta"] if steps]
    return statistics.mean(betas[-1]) - statistics.mean(betas[0]) if len(betas) > 1 and betas[0] else None


def cross_steps(record: Record, steps: list[float]) -> list[float]:
    """The values of the cross-shell steps among those of all steps."""
    return steps[1 : record["config"].get("model.shells", 0)]


def concentration(record: Record) -> float | None:
    """Coulomb energy of the first shell over that of its start, minus 1: above 0 its vertices have moved together.

    The first shell alone: the others get no gradient, and only repulsion moves them.
    """
    inside = record.get("diagnostics", {})
    energy, start = ((inside.get(name) or [None])[0] for name in ("energy", "energy_start"))
    return energy / start - 1 if energy and start else None


def interior_displacement(record: Record) -> float | None:
    """Mean angle by which the vertices of all shells but the first moved, over their spacing."""
    inside = record.get("diagnostics", {})
    moved, spacing = inside.get("displacement", [])[1:], inside.get("spacing", [])[1:]
    return statistics.mean(m / s for m, s in zip(moved, spacing, strict=True)) if moved else None


def easiest_gap(record: Record) -> float | None:
    """Accuracy on the hardest of automobile, truck, ship, frog minus the better of airplane, horse, in points."""
    classes = record.get("per_class", {})
    if not all(name in classes for name in (*VEHICLES, *OTHERS)):
        return None
    return 100 * (min(classes[name] for name in VEHICLES) - max(classes[name] for name in OTHERS))


def weakest_gap(record: Record) -> float | None:
    """Accuracy on the easiest of cat, bird, dog, deer minus that on the hardest of all others, in points."""
    classes = record.get("per_class", {})
    if not all(name in classes for name in (*VEHICLES, *OTHERS, *ANIMALS)):
        return None
    return 100 * (max(classes[name] for name in ANIMALS) - min(classes[name] for name in (*VEHICLES, *OTHERS)))


def class_gap(record: Record) -> float | None:
    """Accuracy on automobile, truck, ship, frog minus that on cat, bird, dog, deer, in points."""
    classes = record.get("per_class", {})
    if not all(name in classes for name in (*VEHICLES, *ANIMALS)):
        return None
    easy, hard = ([100 * classes[name] for name in names] for names in (VEHICLES, ANIMALS))
    return statistics.mean(easy) - statistics.mean(hard)


def cat_gap(record: Record) -> float | None:
    """Accuracy on cat minus that on the hardest other class, in points."""
    classes = record.get("per_class", {})
    others = [value for name, value in classes.items() if name != "cat" and value is not None]
    return 100 * (classes["cat"] - min(others)) if "cat" in classes and others else None


def clean_gap(record: Record) -> float | None:
    """Accuracy on clean training images minus test accuracy, in points."""
    clean = record.get("diagnostics", {}).get("clean_train_accuracy")
    return None if clean is None else 100 * (clean - record["test_accuracy"])


def decay_sum(record: Record) -> float:
    """Σ learning rate * weight decay over the steps made: decay alone shrinks a weight by exp of minus this."""
    settings, steps = record["config"], record["steps"]
    planned = round(steps * settings["train.epochs"] / record["epochs"])
    shape = SCHEDULES[settings["optim.schedule"]]
    arguments = (settings["optim.warmup"], settings["optim.initial_div"], settings["optim.final_div"])
    every = max(1, steps // 1000)
    shares = [shape(step, planned, *arguments) for step in range(0, steps, every)]
    return float(settings["optim.peak_lr"] * settings["optim.weight_decay"] * steps * statistics.mean(shares))


METRICS: dict[str, Callable[[Record], float | None]] = {
    "test": lambda record: 100 * record["test_accuracy"],
    "val": lambda record: 100 * record["val_accuracy"],
    "train": lambda record: 100 * record["trajectory"]["train_accuracy"][-1],
    "clean_train": lambda record: _percent(record.get("diagnostics", {}).get("clean_train_accuracy")),
    "clean_gap": clean_gap,
    "speed": lambda record: max(record["trajectory"]["images_per_second"]),
    "log_speed": lambda record: math.log(max(record["trajectory"]["images_per_second"])),
    "roughness": roughness,
    "falling": falling_share,
    "tracking": tracking,
    "drift": drift,
    "orientation_change": orientation_change,
    "beta_change": beta_change,
    "concentration": concentration,
    "interior": interior_displacement,
    "class_gap": class_gap,
    "cat_gap": cat_gap,
    "easiest_gap": easiest_gap,
    "weakest_gap": weakest_gap,
    "generalisation": lambda record: _difference(clean_gap(record), _shortfall(record)),
    "decay": decay_sum,
}
"""name -> one number of a finished cell; speeds are those of the fastest epoch, which other work disturbs least."""
ACCURACIES = ("test", "val", "train")
"""Metrics whose noise is that of all rows alike; of every other one, only the rows that are compared tell."""

LISTS: dict[str, Callable[[Record], list[float]]] = {
    "entropy": lambda record: _through_training(record, "routing_entropy"),
    "peak": lambda record: _through_training(record, "routing_peak"),
    "orientation": lambda record: _shells(record, record.get("diagnostics", {}).get("orientation_spread", [])),
    "score": lambda record: _shells(record, record.get("diagnostics", {}).get("score_spread", [])),
    "beta": lambda record: record["trajectory"]["beta"][-1],
    "cross_beta": lambda record: _extremes(record, ("beta_min", "beta_max")),
    "agreement": lambda record: record.get("diagnostics", {}).get("agreement", []),
}
"""name -> numbers of a finished cell, one per step or shell."""


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _shells(record: Record, steps: list[float]) -> list[float]:
    """Steps that reach a new shell: the first and the cross-shell ones."""
    return steps[: record["config"].get("model.shells", 0)]


def _through_training(record: Record, name: str) -> list[float]:
    """Shell by shell, epoch by epoch."""
    return [value for steps in record["trajectory"][name] for value in _shells(record, steps)]


def _extremes(record: Record, names: tuple[str, str]) -> list[float]:
    """The least and the largest single value over the heads, of every cross-shell step."""
    inside = record.get("diagnostics", {})
    return [value for name in names for value in cross_steps(record, inside.get(name, []))]


def _shortfall(record: Record) -> float | None:
    """Points of clean training accuracy short of 100."""
    fitted = _percent(record.get("diagnostics", {}).get("clean_train_accuracy"))
    return None if fitted is None else 100 - fitted


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


class Evidence:
    """The finished cells of a results folder, asked by data set and metric."""

    def __init__(self, records: Iterable[Record]) -> None:
        everything = list(records)
        self.records = [record for record in everything if record["status"] == "finished"]
        self.diverged = [record for record in everything if record["status"] == "diverged"]
        self._samples: dict[tuple[str, str], Samples] = {}

    def dataset(self, claimed: str) -> str:
        """The data set that stands for the claimed one here."""
        present = {record["dataset"] for record in self.records}
        fitting = (name for name, paper in STANDS_FOR.items() if claimed in (name, paper))
        return next((name for name in fitting if name in present), claimed)

    def has(self, dataset: str) -> bool:
        """Whether any cell is on a data set or on one that stands for it."""
        name = self.dataset(dataset)
        return any(record["dataset"] == name for record in (*self.records, *self.diverged))

    def of(self, dataset: str, row: str) -> dict[int, Record]:
        """seed -> record of one row."""
        name = self.dataset(dataset)
        return {r["seed"]: r for r in self.records if r["dataset"] == name and r["variant"] == row}

    def samples(self, dataset: str, metric: str) -> Samples:
        """row -> seed -> value, of all rows: what contrasts and a pooled variance rest on; computed once."""
        if (dataset, metric) not in self._samples:
            self._samples[dataset, metric] = self._gather(self.dataset(dataset), metric)
        return self._samples[dataset, metric]

    def _gather(self, name: str, metric: str) -> Samples:
        found: dict[str, dict[int, float]] = {}
        for record in self.records:
            value = METRICS[metric](record) if record["dataset"] == name else None
            if value is not None:
                found.setdefault(record["variant"], {})[record["seed"]] = value
        return found

    def lists(self, dataset: str, row: str, name: str) -> dict[int, list[float]]:
        """seed -> one value per step or shell."""
        found = {seed: LISTS[name](record) for seed, record in self.of(dataset, row).items()}
        return {seed: values for seed, values in found.items() if values}

    def unstable(self, dataset: str, row: str) -> int:
        """How many cells of a row diverged."""
        name = self.dataset(dataset)
        return sum(r["dataset"] == name and r["variant"] == row for r in self.diverged)
