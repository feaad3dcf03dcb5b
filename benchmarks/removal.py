"""Effect of each optimisation of the CPU kernels, measured by removing it: one Markdown line per removal and model.

    python benchmarks/removal.py                  # about ten minutes on an idle core

Each optimisation is removed from a copy of the package by a replacement in its source. The copy and the unchanged
package run in two processes that take turns, step by step; with one thread, times are processor time. The last column
is the median of the ratios of neighbouring steps, with their quartiles, so that slow changes of the machine's speed
cancel.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import quatsphere

CPU = "kernels/cpu"
STEP = "    def supports_step(self, tokens: Tensor, base: Tensor) -> str | None:\n"
PRECISION = '        """One precision throughout, or float32 with products in bfloat16 under autocast."""\n'
TRICKS: dict[str, list[tuple[str, str, str]]] = {
    "a whole step as one operator": [("kernels/backends.py", STEP + PRECISION, f'{STEP}        return "removed"\n')],
    "lanes shared by few heads": [
        (f"{CPU}/attention.py", "max(1, min(LANES // heads, images))", "1"),
        (f"{CPU}/field.py", "range(1, max(1, LANES // heads) + 1)", "range(1, 2)"),
    ],
    "GELU by sixteen polynomials": [(f"{CPU}/loops/elementwise.py", "gelu_by_table if has_avx512() else ", "")],
    "tiles of six tokens and eight rows": [
        (f"{CPU}/loops/hamilton_products.py", "USE_SIX_TOKENS = has_avx512()", "USE_SIX_TOKENS = False"),
        (f"{CPU}/loops/feed_forward.py", "USE_EIGHT_ROWS = has_avx512()", "USE_EIGHT_ROWS = False"),
    ],
    "prefetching": [
        (
            f"{CPU}/loops/simd.py",
            "builder.call(function, [address, integer(0)",
            "(lambda *_: 0)(function, [address, integer(0)",
        )
    ],
    "three images per task": [(f"{CPU}/loops/step.py", "IMAGES_PER_TASK = 3", "IMAGES_PER_TASK = 1 << 30")],
    "products of 16 images at a time": [(f"{CPU}/step.py", "IMAGES_PER_BLOCK = 16", "IMAGES_PER_BLOCK = 1 << 30")],
    "malloc without trimming": [("runtime.py", "    return all(mallopt(name", "    return False and all(mallopt(name")],
}
"""trick -> (file, text, replacement)."""
WORKER = """
import sys, time
from quatsphere import runtime
runtime.disable_malloc_trimming()
import torch
from quatsphere.bench.step import MODEL_SIZES, TrainingStep
size, batch, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
now = time.process_time if threads == 1 else time.perf_counter
step = TrainingStep("qsv", batch, **MODEL_SIZES[size].get("qsv", {}))
step(), step()
for _ in sys.stdin:
    start = now()
    step()
    print(1000 * (now() - start), flush=True)
"""
Timer = Callable[[], float]


def remove(trick: str, folder: Path) -> Path:
    """Copy of the package without a trick; the folder to import it from."""
    source = Path(quatsphere.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "pretrained")
    shutil.copytree(source, folder / "quatsphere", ignore=ignored)
    for name, text, replacement in TRICKS.get(trick, []):
        path = folder / "quatsphere" / name
        content = path.read_text()
        if content.count(text) != 1:
            raise SystemExit(f"{name} does not contain {text!r} once; correct the table of this script")
        path.write_text(content.replace(text, replacement))
    return folder


def start(folder: Path, size: str, batch: int, threads: int) -> Timer:
    """Start a process that takes a step and returns its milliseconds at every call."""
    command = [sys.executable, "-c", WORKER, size, str(batch), str(threads)]
    environment = {
        "PYTHONPATH": str(folder),
        "OMP_NUM_THREADS": str(threads),
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
    }
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    write, read = process.stdin, process.stdout

    def timed() -> float:
        write.write("\n")
        write.flush()
        return float(read.readline())

    return timed


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--batch", type=int, default=64, help="images per step at the paper's size")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=list(TRICKS), default=list(TRICKS), metavar="TRICK")
    options = parser.parse_args()
    print(
        "| without | model, batch | ms with, best (median) | without | time without / with, best | paired (quartiles) |"
    )
    print("|---|---|---|---|---|---|")
    sizes = {"paper": (options.batch, options.rounds), "study": (32, 8 * options.rounds)}
    with tempfile.TemporaryDirectory() as folder:
        whole = remove("", Path(folder) / "whole")
        kept = {size: start(whole, size, batch, options.threads) for size, (batch, _) in sizes.items()}
        for number, trick in enumerate(options.only):
            without = remove(trick, Path(folder) / str(number))
            for size, (batch, rounds) in sizes.items():
                timers = kept[size], start(without, size, batch, options.threads)
                times = list(zip(*([timer() for timer in timers] for _ in range(rounds + 1)), strict=True))
                print_row(trick, f"{size}, {batch}", *(column[1:] for column in times))


def print_row(trick: str, model: str, kept: tuple[float, ...], removed: tuple[float, ...]) -> None:
    """Print best and median times, the ratio of the best ones and the median of the paired ratios."""
    cells = [f"{min(x):.1f} ({statistics.median(x):.1f})" for x in (kept, removed)]
    low, middle, high = statistics.quantiles((b / a for a, b in zip(kept, removed, strict=True)), n=4)
    ratios = [f"{min(removed) / min(kept):.3f}", f"{middle:.3f} ({low:.3f}-{high:.3f})"]
    print("| " + " | ".join([trick, model, *cells, *ratios]) + " |", flush=True)


if __name__ == "__main__":
    main()
