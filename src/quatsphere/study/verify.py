"""Retrain a finished cell and compare; check that the stored numbers of cells are consistent."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from quatsphere.errors import ConfigError
from quatsphere.storage.run_folder import RunFolder
from quatsphere.study.plan import make_config
from quatsphere.study.record import finished_record
from quatsphere.study.results import CellRecord, Results
from quatsphere.study.scales import data_location
from quatsphere.train import Reporter, ResumeOptions, train
from quatsphere.train.evaluation import unpack_indices

NOISE = 1.96 * math.sqrt(2) * 0.007
"""95 % limit of the difference in accuracy between two trainings that differ only in rounding; the standard deviation
of a cell is 0.7 points (plan `lite`, differences between seeds)."""
SAME_BITS = ("processor", "threads")
"""Fields that, with the version of torch, must be equal for bit-identical weights to be expected."""


def retrain(
    results: Results, cell: str, run_dir: Path, data_root: str | None, reporter: Reporter | None = None
) -> dict[str, Any]:
    """Train a cell again with its stored settings and seed, and compare; an interrupted retraining is resumed."""
    record = results.read(cell)
    if record is None or record["status"] != "finished":
        raise ConfigError(f"no finished cell {cell!r} in {results.path}; see 'quatsphere study status'")
    config = make_config({**record["config"], "data.root": data_location(record["dataset"], data_root)})
    result = train(config, run_dir, ResumeOptions(resume=True), reporter)
    identity = {key: record[key] for key in ("cell", "dataset", "variant", "seed")}
    return compare_records(record, finished_record(identity, config, RunFolder(run_dir), result))


def compare_records(stored: CellRecord, again: CellRecord) -> dict[str, Any]:
    """Compare weights by hash, accuracy within the noise of a cell, predictions image by image."""
    low, high = stored["test_accuracy"] - NOISE, stored["test_accuracy"] + NOISE
    alike = stored["versions"]["torch"] == again["versions"]["torch"]
    alike &= all(stored.get(key) == again.get(key) for key in SAME_BITS)
    facts = {
        "cell": stored["cell"],
        "same_weights": stored.get("weights_sha256") == again["weights_sha256"],
        "bits_expected": alike and "weights_sha256" in stored,
        "test_accuracy": [stored["test_accuracy"], again["test_accuracy"]],
        "interval": [low, high],
        "same_predictions": None,
    }
    if "predictions" in stored:
        equal = unpack_indices(stored["predictions"]) == unpack_indices(again["predictions"])
        facts["same_predictions"] = float(np.mean(equal))
    within = low <= again["test_accuracy"] <= high
    same = facts["same_weights"] and facts["same_predictions"] in (None, 1.0)
    return {**facts, "verified": bool(same or (within and not facts["bits_expected"]))}


def describe_comparison(found: CellRecord) -> str:
    """Result of `compare_records` as a few lines of text."""
    stored, again = found["test_accuracy"]
    low, high = found["interval"]
    if found["same_weights"]:
        weights = "the same weights, bit for bit"
    else:
        why = "although processor, threads and torch are the same" if found["bits_expected"] else "on another system"
        weights = f"other weights, {why}"
    same = found["same_predictions"]
    lines = [
        f"{found['cell']}: {weights}",
        f"test accuracy {again:.4f}, stored {stored:.4f} (other machines: {low:.4f} to {high:.4f})",
        *([] if same is None else [f"the same prediction on {same:.2%} of the test images"]),
    ]
    return "\n".join(lines)


def inconsistencies(records: Iterable[CellRecord]) -> dict[str, str]:
    """cell -> contradiction between its predictions and its accuracies."""
    found = {record["cell"]: _inconsistency(record) for record in records}
    return {cell: fault for cell, fault in found.items() if fault is not None}


def _inconsistency(record: CellRecord) -> str | None:
    if record["status"] != "finished" or not {"predictions", "test_counts"} <= record.keys():
        return None
    counts = record["test_counts"]
    if len(counts) != len(record["per_class"]):
        return f"it has {len(counts)} classes and accuracies of {len(record['per_class'])}"
    try:
        predicted = unpack_indices(record["predictions"])
    except ValueError:
        return "its predictions cannot be read"
    if len(predicted) != sum(counts):
        return f"it has {len(predicted)} predictions for {sum(counts)} test images"
    right = predicted == np.repeat(np.arange(len(counts)), counts)
    if abs(right.mean() - record["test_accuracy"]) > 1e-6:
        return f"its predictions give accuracy {right.mean():.4f}, its file says {record['test_accuracy']:.4f}"
    starts = np.cumsum([0, *counts])
    by_class = [right[a:b].mean() if b > a else None for a, b in pairwise(starts)]
    stored = list(record["per_class"].values())
    if any(a is not None and abs(a - b) > 1e-6 for a, b in zip(by_class, stored, strict=True)):
        return "its predictions give other accuracies by class than its file"
    return None
