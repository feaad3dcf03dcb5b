"""Summarise finished runs at the paper's size for the results page, one JSON line per run.

    python benchmarks/paper_size.py RUN ... > results/curve/paper_size.jsonl

A run: quatsphere train --preset paper-cifar10 --train.epochs 10 --run-dir RUN --data.root FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

COPIED = ("parameters", "epochs", "test_accuracy", "seed", "commit")


def main() -> None:
    """Print name, size, length, test accuracy in all and by class of every run."""
    for path in map(Path, sys.argv[1:]):
        result = json.loads((path / "result.json").read_text())
        test = {"test_images": result["test"]["images"], "by_class": result["test"]["per_class"]}
        copied = {name: result[name] for name in COPIED}
        print(json.dumps({"run": path.name, "images": result["images_seen"], **copied, **test}))


if __name__ == "__main__":
    main()
