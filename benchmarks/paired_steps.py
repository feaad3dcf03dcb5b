"""Training steps of QSV in two source trees, in turn: one Markdown line per model with the median of the paired ratios.

    python benchmarks/paired_steps.py OLD/src NEW/src --size lite study

Each tree runs in a separate process. The two take turns step by step, so slow changes of the machine's speed cancel.
With one thread the processor time counts. If an older commit needs packages that are no longer installed, name their
folder after a colon, as in PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

BATCH = {"paper": 64, "lite": 32, "study": 32}
SETTINGS = "import json; from quatsphere.bench.step import MODEL_SIZES; print(json.dumps(MODEL_SIZES))"
WORKER = """
import json, sys, time
variant, batch, threads, settings = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
try:
    from quatsphere.runtime import disable_malloc_trimming
except ImportError:
    from quatsphere.allocator import keep_freed_memory as disable_malloc_trimming  # commit e2b300b
disable_malloc_trimming()
import torch
from quatsphere.bench.step import TrainingStep
torch.set_num_threads(threads)
now = time.process_time if threads == 1 else time.perf_counter
step = TrainingStep(variant, batch, **settings)
step(), step()
for _ in sys.stdin:
    start = now()
    step()
    print(1000 * (now() - start), flush=True)
"""
HOMES = tempfile.TemporaryDirectory()
"""Home folders of the processes, with a cache of kernels each."""
Timer = Callable[[], float]


def start(tree: str, size: str, batch: int, threads: int, variant: str = "qsv") -> Timer:
    """Start a process that takes a step and returns its milliseconds at every call."""
    sizes = json.loads(subprocess.run([sys.executable, "-c", SETTINGS], check=True, capture_output=True).stdout)
    settings = {key: value for key, value in sizes[size].get("qsv", {}).items() if key != "name"}
    command = [sys.executable, "-c", WORKER, variant, str(batch), str(threads), json.dumps(settings)]
    changes = {"PYTHONPATH": tree, "OMP_NUM_THREADS": str(threads), "HOME": tempfile.mkdtemp(dir=HOMES.name)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=os.environ | changes, **pipes)
    assert process.stdin is not None
    assert process.stdout is not None
    write, read = process.stdin, process.stdout

    def timed() -> float:
        write.write("\n")
        write.flush()
        return float(read.readline())

    return timed


def alternate(timers: tuple[Timer, Timer], rounds: int) -> list[tuple[float, ...]]:
    """Milliseconds of each of the two; the first round does not count."""
    times = list(zip(*([timer() for timer in timers] for _ in range(rounds + 1)), strict=True))
    return [column[1:] for column in times]


def cells(first: tuple[float, ...], second: tuple[float, ...]) -> list[str]:
    """Best and median times of both, second over first by best times, median and quartiles of the paired ratios."""
    times = [f"{min(x):.1f} ({statistics.median(x):.1f})" for x in (first, second)]
    low, middle, high = statistics.quantiles((b / a for a, b in zip(first, second, strict=True)), n=4)
    return [*times, f"{min(second) / min(first):.3f}", f"{middle:.3f} ({low:.3f}-{high:.3f})"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="folder with the package quatsphere")
    parser.add_argument("new", help="the other folder")
    parser.add_argument("--size", nargs="+", choices=list(BATCH), default=["lite", "study"])
    parser.add_argument("--bf16", action="store_true", help="under bf16 autocast")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    print("| model, batch | ms old, best (median) | ms new | old / new, best | paired (quartiles) |")
    print("|---|---|---|---|---|")
    for size in options.size:
        variant = "qsv bf16" if options.bf16 else "qsv"
        new, old = (start(tree, size, BATCH[size], options.threads, variant) for tree in (options.new, options.old))
        new_times, old_times = alternate((new, old), options.rounds)
        new_cell, old_cell, *ratios = cells(new_times, old_times)
        row = [f"{size}, {BATCH[size]}", old_cell, new_cell, *ratios]
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
