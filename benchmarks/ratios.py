"""Throughput of QSV relative to its attention baseline in one training step, for one or several source trees in turn.

    python benchmarks/ratios.py                        # this installation
    python benchmarks/ratios.py OLD/src NEW/src        # two checkouts, alternating, with the same settings

Each row runs `quatsphere bench step` in a new process, where the models take turns, and compares the fastest form of
each model. The AVX2 row emulates an older processor by environment variables for torch, MKL, oneDNN and Numba.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+bmi,+bmi2,+popcnt,+sse4.2",
}
PAPER, STUDY = ["--batch", "64", "--threads", "2"], ["--size", "study", "--batch", "32", "--threads", "1"]
ROWS: dict[str, tuple[list[str], dict[str, str], str]] = {
    "paper, fp32": (PAPER, {}, "fp32"),
    "paper, bf16": ([*PAPER, "--precision", "bf16"], {}, "bf16"),
    "paper, fp32, AVX2": (PAPER, AVX2, "fp32"),
    "lite, fp32": (["--size", "lite", "--batch", "32", "--threads", "1"], {}, "fp32"),
    "study, fp32": (STUDY, {}, "fp32"),
}
"""name -> words of `bench step`, environment, precision of the rows that count."""


def measure(name: str, tree: str, rounds: int) -> dict[str, tuple[float, float]]:
    """Model -> (best, median) milliseconds of its fastest form."""
    words, changes, precision = ROWS[name]
    environment = os.environ | changes | ({"PYTHONPATH": tree} if tree else {})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.json"
        command = [sys.executable, "-m", "quatsphere", "bench", "step", "--no-memory", "--rounds", str(rounds), *words]
        subprocess.run([*command, "--json", str(file)], check=True, env=environment, stdout=subprocess.DEVNULL)
        rows = json.loads(file.read_text())["step"]
    found: dict[str, tuple[float, float]] = {}
    for row in rows:
        if ("bf16" in row["variant"]) == (precision == "bf16"):
            model = "QSV" if row["variant"].lower().startswith("qsv") else "attention"
            times = row["best_ms"], row["median_ms"]
            found[model] = min(found.get(model, times), times)
    return found


def main() -> None:
    """Print one line of a Markdown table per row and tree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", default=[""], help="folders with a package quatsphere [the installed one]")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeat", type=int, default=1, help="how often the trees take turns")
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW")
    options = parser.parse_args()
    print("| row | tree | QSV, best (median) ms | attention | ratio of best | of medians |\n|---|---|---|---|---|---|")
    for name in options.only:
        for tree in options.trees * options.repeat:
            found = measure(name, tree, options.rounds)
            qsv, attention = found["QSV"], found["attention"]
            ratios = [f"{attention[i] / qsv[i]:.2f}" for i in (0, 1)]
            cells = [f"{best:.1f} ({median:.1f})" for best, median in (qsv, attention)]
            print("| " + " | ".join([name, tree or "installed", *cells, *ratios]) + " |", flush=True)


if __name__ == "__main__":
    main()
