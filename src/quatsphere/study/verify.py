"""Train a finished cell again and compare; check that stored numbers agree with each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from quatsphere.errors import ConfigError
from quatsphere.storage.run_folder import RunFolder
from quatsphere.study.plan import make_config
from quatsphere.study.record import finished_record
from quatsphere.study.results import Results
from quatsphere.study.scales import place_of
from quatsphere.train import Reporter, ResumeOptions, train
from quatsphere.train.evaluation import unpack_indices

Record = Mapping[str, Any]
NOISE = 1.96 * math.sqrt(2) * 0.007
"""Accuracies of two trainings that differ in rounding alone differ by less than this, 95 times of 100: the standard
deviation of a cell is 0.7 points (plan `lite`, differences between seeds)."""
SAME_BITS = ("processor", "threads")
"""Facts of a record that must agree before equal weights can be expected, beside the version of torch."""


def retrain(
    results: Results, cell: str, run_dir: Path, data_root: str | None, reporter: Reporter | None = None
) -> dict[str, Any]:
    """Train a cell again with its stored settings and seed, and compare; an interrupted start is resumed."""
    record = results.read(cell)
    if record is None or record["status"] != "finished":
        raise ConfigError(f"no finished cell {cell!r} in {results.path}; see 'quatsphere study status'")
    config = make_config({**record["config"], "data.root": place_of(record["dataset"], data_root)})
    result = train(config, run_dir, ResumeOptions(resume=True), reporter)
    identity = {key: record[key] for key in ("cell", "dataset", "variant", "seed")}
    return compare(record, finished_record(identity, config, RunFolder(run_dir), result))


def compare(stored: Record, again: Record) -> dict[str, Any]:
    """Weights by hash, accuracy by the noise of a cell, predictions image by image."""
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


def inconsistencies(results: Results) -> dict[str, str]:
    """cell -> what disagrees in its file: predictions against accuracy and against accuracy by class."""
    found = {}
    for record in results.finished():
        fault = _fault(record)
        if fault is not None:
            found[record["cell"]] = fault
    return found


def _fault(record: Record) -> str | None:
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
