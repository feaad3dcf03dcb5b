"""Records of finished cells: accuracies, trajectory and diagnostics of the trained model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from quatsphere.config import RunConfig
from quatsphere.config.resolve import flat_settings
from quatsphere.diagnostics.measures import beta_band
from quatsphere.errors import ConfigError
from quatsphere.storage.checkpoint import load_best, read_pointer
from quatsphere.storage.run_folder import RunFolder
from quatsphere.study.plan import make_config
from quatsphere.study.results import CellRecord, Results
from quatsphere.study.variants import data_location
from quatsphere.train import Reporter, ResumeOptions, train
from quatsphere.train.evaluation import unpack_indices
from quatsphere.train.load import load
from quatsphere.train.provenance import commit, processor, versions

LOSSES = ("loss", "cross_entropy", "accuracy")
BY_EPOCH = ("val_accuracy", "images_per_second", "beta", "bound", "routing_entropy", "routing_peak", "field_motion")
FROM_RESULT = (
    *("test_accuracy", "val_accuracy", "best_epoch", "epochs", "steps", "parameters", "fingerprint"),
    *("commit", "versions", "threads", "seconds", "images_seen", "predictions"),
)
"""Fields copied from the run's result."""
DIAGNOSED_SECTIONS = ("accuracy", "routing", "spread", "beta", "drift", "coverage", "graphs")
"""Sections of the diagnosis that claims need."""
TRACED_IMAGES = 128
"""Validation images whose traces are diagnosed."""
EVALUATED_IMAGES = 2000
"""Maximum number of training images without augmentation, and of validation images, that are evaluated."""


def finished_record(
    identity: dict[str, Any], config: RunConfig, run: RunFolder, result: dict[str, Any]
) -> dict[str, Any]:
    """Record of a cell that trained to its end."""
    return {
        **_head(identity, "finished", config),
        **{name: result[name] for name in FROM_RESULT},
        "processor": processor(),
        "per_class": result["test"]["per_class"],
        "test_counts": [sum(row) for row in result["test"]["confusion"]],
        "nll": result["test"]["nll"],
        "ece": result["test"]["ece"],
        "weights_sha256": weights_digest(load_best(run.checkpoints).weights),
        "trajectory": trajectory(run),
    }


def diverged_record(identity: dict[str, Any], config: RunConfig, run: RunFolder, reason: str) -> dict[str, Any]:
    """Record of a cell whose numbers stopped being finite: also a result, since it repeats exactly."""
    facts = {"reason": reason, "commit": commit(), "versions": versions(), "processor": processor()}
    return {**_head(identity, "diverged", config), **facts, "trajectory": trajectory(run)}


def _head(identity: dict[str, Any], status: str, config: RunConfig) -> dict[str, Any]:
    """Identity and settings of a cell, without the machine's data folder."""
    settings = {key: value for key, value in flat_settings(config).items() if key != "data.root"}
    return {**identity, "status": status, "config": settings}


def trajectory(run: RunFolder) -> dict[str, list[Any]]:
    """name -> value by epoch, from the run's metrics."""
    lines = run.read_metrics()
    train = {f"train_{name}": [line.get("train", {}).get(name) for line in lines] for name in LOSSES}
    return {**train, **{name: [line.get(name) for line in lines] for name in BY_EPOCH}, **beta_band(lines)}


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names, types, shapes and values of a model's weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def diagnose_run(run: RunFolder, config: RunConfig) -> dict[str, Any]:
    """Diagnose the weights of the best validation accuracy of a finished run, on the data of `config`."""
    trained = load(run.path, note=lambda message: None)
    sizes = {"images": TRACED_IMAGES, "accuracy_images": EVALUATED_IMAGES}
    return summarise_diagnosis(trained.diagnose(config.data.root, only=DIAGNOSED_SECTIONS, **sizes))


def summarise_diagnosis(found: dict[str, Any]) -> dict[str, Any]:
    """Values of a diagnosis that claims are decided on; values that a model lacks are left out."""
    shells = found["coverage"].get("shells", [])
    values = {
        "steps": [step["name"] for step in found["steps"]],
        "clean_train_accuracy": found["accuracy"]["train"]["accuracy"],
        "clean_val_accuracy": found["accuracy"]["held_out"]["accuracy"],
        "entropy": found["routing"].get("entropy"),
        "peak": found["routing"].get("peak"),
        "orientation_spread": found["spread"].get("orientation"),
        "score_spread": found["spread"].get("score"),
        **{f"beta_{name}": found["beta"].get(name) for name in ("mean", "min", "max")},
        "drift": found["drift"].get("angle"),
        "displacement": [shell["displacement"]["mean"] for shell in shells if shell["displacement"]],
        "energy": [shell["energy"] for shell in shells],
        "energy_start": [shell["start"]["energy"] for shell in shells if shell["start"]],
        "nearest_min": [shell["nearest"]["min"] for shell in shells],
        "spacing": [shell["spacing"] for shell in shells],
        "agreement": [min(pairs.values()) for pairs in found["graphs"].get("agreement", [])],
    }
    return {name: value for name, value in values.items() if value not in (None, [])}


def add_diagnostics(
    results: Results, data_root: str | None, *, again: bool = False, note: Callable[[str], None] = print
) -> tuple[int, int]:
    """Diagnose finished cells that have no diagnostics, or all with `again`.

    Returns the number of cells diagnosed and the number whose weights are gone.
    """
    results.require()
    diagnosed = without_weights = 0
    with results.open():
        for record in results.finished():
            if record["status"] != "finished" or (record.get("diagnostics") and not again):
                continue
            run = results.run(record["cell"])
            if read_pointer(run.checkpoints, "best") is None or not any(run.checkpoints.glob("step-*")):
                without_weights += 1
                continue
            config = make_config({**record["config"], "data.root": data_location(record["dataset"], data_root)})
            results.write(record["cell"], {**record, "diagnostics": diagnose_run(run, config)})
            diagnosed += 1
            note(f"{record['cell']}: measured")
    return diagnosed, without_weights


NOISE = 1.96 * math.sqrt(2) * 0.007
"""95 % limit of the difference in accuracy between two trainings that differ only in rounding; the standard deviation
of a cell is 0.7 points (plan `lite`, differences between seeds)."""
SAME_BITS = ("processor", "threads", "commit")
"""Fields that, with the version of torch, must be equal for bit-identical weights to be expected: kernels of another
commit may round differently."""


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
        why = "at another commit or on another system"
        if found["bits_expected"]:
            why = "although commit, processor, threads and torch are the same"
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
