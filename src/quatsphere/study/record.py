"""What is kept of a finished cell: the numbers that tables and claims need, small enough for version control."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from quatsphere.config import RunConfig
from quatsphere.storage.checkpoint import load_best
from quatsphere.storage.run_folder import RunFolder
from quatsphere.study.plan import flat_settings
from quatsphere.train.provenance import commit, processor, versions

LOSSES = ("loss", "cross_entropy", "accuracy")
BY_EPOCH = ("val_accuracy", "images_per_second", "beta", "bound", "routing_entropy", "routing_peak", "field_motion")
FROM_RESULT = (
    "test_accuracy",
    "val_accuracy",
    "best_epoch",
    "epochs",
    "steps",
    "parameters",
    "fingerprint",
    "commit",
    "versions",
    "threads",
    "seconds",
    "images_seen",
    "predictions",
)


def finished_record(
    identity: dict[str, Any], config: RunConfig, run: RunFolder, result: dict[str, Any]
) -> dict[str, Any]:
    """The record of a cell that trained to its end."""
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
    """The record of a cell whose numbers stopped being finite: a result too, and the same at every repetition."""
    about = {"reason": reason, "commit": commit(), "versions": versions(), "processor": processor()}
    return {**_head(identity, "diverged", config), **about, "trajectory": trajectory(run)}


def _head(identity: dict[str, Any], status: str, config: RunConfig) -> dict[str, Any]:
    """Which cell it is; where a machine keeps its data is its own affair."""
    settings = {key: value for key, value in flat_settings(config).items() if key != "data.root"}
    return {**identity, "status": status, "config": settings}


def trajectory(run: RunFolder) -> dict[str, list[Any]]:
    """name -> value by epoch, from the run's metrics."""
    lines = run.read_metrics()
    train = {f"train_{name}": [line["train"].get(name) for line in lines] for name in LOSSES}
    heads = [line.get("beta_heads") or [] for line in lines]
    band = {f"beta_{pick.__name__}": [[pick(step) for step in steps] for steps in heads] for pick in (min, max)}
    return {**train, **{name: [line.get(name) for line in lines] for name in BY_EPOCH}, **band}


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names, types, shapes and values of a model's weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
