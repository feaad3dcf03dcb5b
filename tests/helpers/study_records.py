"""Records of cells with invented numbers, so that verdicts can be computed by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quatsphere.config.resolve import flat_settings
from quatsphere.study.plan import cell_config
from quatsphere.study.variants import SCALES, VARIANTS

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def make_record(
    row: str, seed: int, accuracy: float, *, scale: str = "lite", dataset: str = "cifar10", **more: Any
) -> dict[str, Any]:
    """Record of a finished cell with a test accuracy in points."""
    config = cell_config(SCALES[scale], dataset, row, seed, data_root=None, settings={})
    epochs = config.train.epochs
    shells = getattr(config.model, "shells", 0)
    return {
        "format": 1,
        "cell": f"{dataset}.{row}.s{seed}",
        "dataset": dataset,
        "variant": row,
        "seed": seed,
        "status": "finished",
        "config": {key: value for key, value in flat_settings(config).items() if key != "data.root"},
        "test_accuracy": accuracy / 100,
        "val_accuracy": accuracy / 100,
        "best_epoch": epochs,
        "epochs": epochs,
        "steps": 1000,
        "parameters": 1000,
        "fingerprint": "0" * 64,
        "commit": "c" * 40,
        "versions": {"torch": "2"},
        "threads": 1,
        "seconds": 60.0,
        "processor": "a processor",
        "per_class": dict.fromkeys(CLASSES, accuracy / 100),
        "nll": 1.0,
        "ece": 0.1,
        "trajectory": make_trajectory(epochs, shells) | more.pop("trajectory", {}),
        "diagnostics": more.pop("diagnostics", {}),
        **more,
    }


def make_trajectory(epochs: int, shells: int) -> dict[str, list[Any]]:
    steps = shells + 2 if shells else 0
    return {
        "train_loss": [2.0 - 0.01 * epoch for epoch in range(epochs)],
        "train_cross_entropy": [2.0 - 0.01 * epoch for epoch in range(epochs)],
        "train_accuracy": [0.5] * epochs,
        "val_accuracy": [0.5] * epochs,
        "images_per_second": [100.0] * epochs,
        "beta": [[0.7] * steps] * epochs,
        "bound": [[0.4] * shells] * epochs,
        "routing_entropy": [[0.99] * steps] * epochs,
        "routing_peak": [[1.3] * steps] * epochs,
        "field_motion": [[], *[[0.02] * shells] * (epochs - 1)],
        "beta_min": [[0.6] * steps] * epochs,
        "beta_max": [[0.8] * steps] * epochs,
    }


def make_records(
    accuracies: Mapping[str, Sequence[float]], seeds: Iterable[int] = (42, 1, 2, 3, 4), **more: Any
) -> list[Any]:
    """Records of several rows, with one accuracy per seed."""
    order = list(seeds)
    return [
        make_record(row, seed, value, **more)
        for row, values in accuracies.items()
        for seed, value in zip(order, values, strict=False)
    ]


PAPER = {
    "full": (85.9, 86.0, 85.95),
    "transport_identity": (81.3, 81.7, 82.1),
    "routing_uniform": (85.3, 86.1, 85.7),
    "routing_absolute": (86.0, 86.5, 86.25),
    "routing_geometric": (85.4, 86.5, 85.95),
    "both_off": (64.1, 64.1, 64.1),
    "frozen_random": (66.5, 66.5, 66.5),
    "attention": (87.1, 87.3, 87.5),
    "attention_value_identity": (86.2, 86.3, 86.5),
    "flat": (90.9, 91.1, 91.3),
    "flat_value_identity": (90.0, 90.1, 90.2),
    "resnet20": (93.2, 93.2, 93.2),
    "attention_wide": (68.6, 68.6, 68.6),
}
"""The paper's CIFAR-10 accuracies as three seeds each; its mean replaces missing seeds."""
assert set(PAPER) <= set(VARIANTS)
