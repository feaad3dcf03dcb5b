"""Seconds of training until a validation accuracy, and images per second, from the published cells of the study.

Usage: python benchmarks/time_to_accuracy.py [--results results/lite] [--accuracy 0.40]

The validation curve is the mean over a row's cells, linear between epochs, from chance before the first one. A cell's
speed is the median over its epochs; a row's is the median, or the fastest, of its cells. Cells were trained at several
commits, on one thread of a shared machine; all have the same batch size and number of images.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

ROWS = {
    "flat": "flat",
    "attention": "attention",
    "resnet20": "ResNet-20",
    "full": "QSV",
    "attention_wide": "attention, wide",
}
CHANCE = 0.1


def epochs_until(curve: list[float], accuracy: float) -> float | None:
    """Epochs until the curve reaches an accuracy, None if it does not."""
    before = CHANCE
    for epoch, value in enumerate(curve):
        if value >= accuracy:
            return epoch + (accuracy - before) / (value - before)
        before = value
    return None


def main() -> None:
    """Print one line per row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results/lite"))
    parser.add_argument("--accuracy", type=float, default=0.40)
    args = parser.parse_args()
    cells: list[dict[str, Any]] = [json.loads(path.read_text()) for path in sorted(args.results.glob("cells/*.json"))]
    settings = {path.stem: json.loads(path.read_text()) for path in args.results.glob("settings/*.json")}
    print(f"row, cells, images/s, the fastest cell's, seconds to {args.accuracy:.0%} at either, accuracy at the end")
    for variant, name in ROWS.items():
        own = [cell for cell in cells if cell["variant"] == variant and cell["dataset"] == "cifar10"]
        if not own:
            continue
        curve = [
            statistics.mean(values)
            for values in zip(*(cell["trajectory"]["val_accuracy"] for cell in own), strict=True)
        ]
        speeds = [statistics.median(cell["trajectory"]["images_per_second"]) for cell in own]
        (images,) = {settings[cell["config"]]["data.train_limit"] for cell in own}
        epochs = epochs_until(curve, args.accuracy)
        rates = [statistics.median(speeds), max(speeds)]
        seconds = [f"{epochs * images / rate:.1f}" if epochs else "never" for rate in rates]
        print(name, len(own), *(f"{rate:.0f}" for rate in rates), *seconds, f"{curve[-1]:.3f}", sep=", ")


if __name__ == "__main__":
    main()
