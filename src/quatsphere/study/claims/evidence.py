"""What the finished cells say: one number per cell and metric, rows by seed, in the paper's units."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

from quatsphere.optim.schedule import SCHEDULES
from quatsphere.study.statistics import Samples

Record = Mapping[str, Any]
STANDS_FOR = {"cifar10": ("cifar10", "digits"), "cifar100": ("cifar100", "cifar100-part")}
"""A claim's data set -> the data sets it may be decided on, the first that has cells."""
VEHICLES = ("automobile", "truck", "ship", "frog")
ANIMALS = ("cat", "bird", "dog", "deer")


def roughness(record: Record) -> float | None:
    """Standard deviation of the loss differences between epochs after the warm-up: how noisy a loss curve is."""
    losses = [loss for loss in record["trajectory"]["train_loss"] if loss is not None]
    settings = record["config"]
    losses = losses[round(settings["optim.warmup"] * settings["train.epochs"]) :]
    steps = [after - before for before, after in pairwise(losses)]
    return statistics.stdev(steps) if len(steps) > 1 else None


def falling_share(record: Record) -> float | None:
    """Share of epochs whose training loss is below that of the epoch before."""
    losses = record["trajectory"]["train_loss"]
    pairs = list(pairwise(losses))
    return sum(after < before for before, after in pairs) / len(pairs) if pairs else None


def last_motion(record: Record) -> float | None:
    """Mean angle in radians by which the field moved in the last epoch."""
    motion = [shells for shells in record["trajectory"]["field_motion"] if shells]
    return statistics.mean(motion[-1]) if motion else None


def beta_change(record: Record) -> float | None:
    """Mean beta of the cross-shell steps at the end minus its value after the first epoch."""
    betas = [cross_steps(record, steps) for steps in record["trajectory"]["beta"] if steps]
    return statistics.mean(betas[-1]) - statistics.mean(betas[0]) if len(betas) > 1 and betas[0] else None


def cross_steps(record: Record, steps: list[float]) -> list[float]:
    """The values of the cross-shell steps among those of all steps."""
    return steps[1 : record["config"].get("model.shells", 0)]


def nearest_share(record: Record) -> float | None:
    """Smallest distance between two vertices of a shell over the mean spacing, the least over the shells."""
    inside = record.get("diagnostics", {})
    pairs = zip(inside.get("nearest_min", []), inside.get("spacing", []), strict=True)
    return min((nearest / spacing for nearest, spacing in pairs), default=None)


def interior_displacement(record: Record) -> float | None:
    """Mean angle by which the vertices of all shells but the first moved, over their spacing."""
    inside = record.get("diagnostics", {})
    moved, spacing = inside.get("displacement", [])[1:], inside.get("spacing", [])[1:]
    return statistics.mean(m / s for m, s in zip(moved, spacing, strict=True)) if moved else None


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
    """Σ learning rate * weight decay over the run: decay alone shrinks a weight by exp of minus this."""
    settings, steps = record["config"], record["steps"]
    shape = SCHEDULES[settings["optim.schedule"]]
    arguments = (settings["optim.warmup"], settings["optim.div"], settings["optim.final_div"])
    every = max(1, steps // 1000)
    shares = [shape(step, steps, *arguments) for step in range(0, steps, every)]
    return float(settings["optim.peak_lr"] * settings["optim.weight_decay"] * steps * statistics.mean(shares))


METRICS: dict[str, Callable[[Record], float | None]] = {
    "test": lambda record: 100 * record["test_accuracy"],
    "val": lambda record: 100 * record["val_accuracy"],
    "train": lambda record: 100 * record["trajectory"]["train_accuracy"][-1],
    "clean_train": lambda record: _percent(record.get("diagnostics", {}).get("clean_train_accuracy")),
    "clean_gap": clean_gap,
    "speed": lambda record: statistics.median(record["trajectory"]["images_per_second"]),
    "log_speed": lambda record: math.log(statistics.median(record["trajectory"]["images_per_second"])),
    "roughness": roughness,
    "falling": falling_share,
    "motion": last_motion,
    "beta_change": beta_change,
    "nearest": nearest_share,
    "interior": interior_displacement,
    "class_gap": class_gap,
    "cat_gap": cat_gap,
    "decay": decay_sum,
}
"""name -> one number of a finished cell."""

LISTS: dict[str, Callable[[Record], list[float]]] = {
    "entropy": lambda record: _through_training(record, "routing_entropy"),
    "peak": lambda record: _through_training(record, "routing_peak"),
    "orientation": lambda record: _shells(record, record.get("diagnostics", {}).get("orientation_spread", [])),
    "score": lambda record: _shells(record, record.get("diagnostics", {}).get("score_spread", [])),
    "beta": lambda record: record["trajectory"]["beta"][-1],
    "cross_beta": lambda record: cross_steps(record, record["trajectory"]["beta"][-1]),
    "agreement": lambda record: record.get("diagnostics", {}).get("agreement", []),
}
"""name -> numbers of a finished cell, one per step or shell."""


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _shells(record: Record, steps: list[float]) -> list[float]:
    """Steps that reach a new shell: the first and the cross-shell ones."""
    return steps[: record["config"].get("model.shells", 0)]


def _through_training(record: Record, name: str) -> list[float]:
    """Mean over the steps, epoch by epoch."""
    return [statistics.mean(steps) for steps in record["trajectory"][name] if steps]


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
        return next((name for name in STANDS_FOR[claimed] if name in present), claimed)

    def of(self, dataset: str, row: str) -> dict[int, Record]:
        """seed -> record of one row."""
        name = self.dataset(dataset)
        return {r["seed"]: r for r in self.records if r["dataset"] == name and r["variant"] == row}

    def samples(self, dataset: str, metric: str) -> Samples:
        """row -> seed -> value, of all rows: what the pooled variance rests on; computed once."""
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
