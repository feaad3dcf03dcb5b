"""Fingerprints of `paper-cifar10` for the scales that the paper leaves open: twelve short runs, one JSON line each.

Run again to resume: runs that the file already has are skipped. Each run trains 300 steps of 128 images (one-cycle over
these steps).

    python benchmarks/fingerprint_grid.py RUNS --data ROOT --output results/curve/fingerprints.jsonl
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path

DIVERSITY = {"mean": ("mean", 1e-2), "sum": ("sum", 1e-2), "none": ("mean", 0.0)}
REPULSION = (0.001, 0.05)
START = ("near_identity", "haar")


def quatsphere(*words: str) -> str:
    """Output of one command; its errors end the script."""
    return subprocess.run(
        [sys.executable, "-m", "quatsphere", *words], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def main() -> None:
    """Train what is missing and append one JSON line per run to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    lines = options.output.read_text().splitlines() if options.output.is_file() else []
    finished = {json.loads(line)["run"] for line in lines}
    for start, repulsion, diversity in itertools.product(START, REPULSION, DIVERSITY):
        run = options.runs / f"{diversity}-{repulsion}-{start}"
        if run.name in finished:
            continue
        pairs, coefficient = DIVERSITY[diversity]
        if not (run / "result.json").is_file():
            settings = {
                "data.root": options.data,
                "data.max_train_images": 128 * options.steps,
                "train.epochs": 1,
                "train.compile": False,
                "train.threads": 1,
                "train.head_diversity_pairs": pairs,
                "train.head_diversity": coefficient,
                "optim.repulsion_start": repulsion,
                "model.field_init": start,
            }
            words = [f"--{name}={value}" for name, value in settings.items()]
            quatsphere("train", "--preset=paper-cifar10", f"--run-dir={run}", "--resume", *words)
        found = json.loads(quatsphere("diagnose", str(run), "--fingerprint", "--images=128", "--no-save", "--json"))
        result = json.loads((run / "result.json").read_text())
        line = {"run": run.name, "images": 128 * options.steps, "fingerprint": found}
        line |= {name: result[name] for name in ("test_accuracy", "seed", "commit")}
        with options.output.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
