"""Summarise finished runs at the paper's size for the results page, one JSON line per run.

    python benchmarks/paper_size.py RUN ... > results/curve/paper_size.jsonl

A run: quatsphere train --preset paper-cifar10 --train.epochs 10 --run-dir RUN --data.root FOLDER
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

COPIED = ("parameters", "epochs", "test_accuracy", "seed", "commit")


def fingerprint(run: Path) -> list[dict[str, Any]]:
    """Diagnostics that the paper reports, with a verdict each; empty for models without a quaternion field."""
    words = ["diagnose", str(run), "--fingerprint", "--images=256", "--no-save", "--json"]
    done = subprocess.run([sys.executable, "-m", "quatsphere", *words], stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else []


def main() -> None:
    """Print name, size, length, accuracy by epoch and class, and fingerprint of every run."""
    for path in map(Path, sys.argv[1:]):
        result = json.loads((path / "result.json").read_text())
        metrics = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        found = {
            "run": path.name,
            "images": result["images_seen"],
            **{name: result[name] for name in COPIED},
            "test_images": result["test"]["images"],
            "by_class": result["test"]["per_class"],
            "validation": [line["val_accuracy"] for line in metrics if "val_accuracy" in line],
            "fingerprint": fingerprint(path),
        }
        print(json.dumps(found))


if __name__ == "__main__":
    main()
