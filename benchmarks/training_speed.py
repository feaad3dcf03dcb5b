"""Images per second of real training with one thread, for one or several source trees in turn.

    python benchmarks/training_speed.py --data ROOT                     # this installation
    python benchmarks/training_speed.py OLD/src NEW/src --data ROOT     # two checkouts, alternating

Each run trains preset `lite` (with `--size study` at the study's width) on CIFAR-10 in a new process, with loading
and augmentation; the speed is that of the second epoch, when everything is compiled. If an older commit needs packages
that are no longer installed, name their folder after a colon, as in PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = {"lite": [], "study": ["--model.dim=64", "--model.heads=4"]}


def images_per_second(tree: str, size: str, options: argparse.Namespace) -> float:
    """Speed of the last epoch of a short run."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = [f"--data.root={options.data}", f"--data.train_limit={options.images}", "--data.val_fraction=0.02"]
        words += ["--train.epochs=2", "--train.threads=1", f"--run-dir={run}", *SIZES[size]]
        environment = os.environ | ({"PYTHONPATH": tree} if tree else {})
        command = [sys.executable, "-m", "quatsphere", "train", "--preset=lite", *words]
        found = subprocess.run(command, env=environment, capture_output=True, text=True)
        if found.returncode:
            sys.exit(found.stderr)
        epochs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return float([epoch["images_per_second"] for epoch in epochs if "images_per_second" in epoch][-1])


def main() -> None:
    """Print one line of a Markdown table per size and tree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", default=[""], help="folders with a package quatsphere [the installed one]")
    parser.add_argument("--data", required=True, help="CIFAR-10")
    parser.add_argument("--size", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--images", type=int, default=4480, help="training images of an epoch")
    parser.add_argument("--rounds", type=int, default=3, help="how often the trees take turns")
    options = parser.parse_args()
    print("| size | tree | images/s, each run | best, times the first tree | medians |\n|---|---|---|---|---|")
    for size in options.size:
        speeds: dict[str, list[float]] = {tree: [] for tree in options.trees}
        for _ in range(options.rounds):
            for tree in speeds:
                speeds[tree].append(images_per_second(tree, size, options))
        first = speeds[options.trees[0]]
        for tree, found in speeds.items():
            ratios = max(found) / max(first), statistics.median(found) / statistics.median(first)
            numbers = ", ".join(f"{speed:.0f}" for speed in found)
            print(f"| {size} | {tree or 'installed'} | {numbers} | {ratios[0]:.2f} | {ratios[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
