"""What each remaining trick of the CPU kernels brings, measured by removing it: one Markdown line per trick and model.

    python benchmarks/removal.py                  # about ten minutes on an idle core

Each trick is taken out of a copy of the package by a replacement in its source. The copy and the package as it is run
in two processes that take turns, step by step. With one thread its processor time counts. The last column is the median
of the ratios of neighbouring steps, with their quartiles: a slow change of the machine's speed cancels.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from paired_steps import alternate, cells, start

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
        (f"{CPU}/loops/real_products.py", "USE_EIGHT_ROWS = has_avx512()", "USE_EIGHT_ROWS = False"),
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--batch", type=int, default=64, help="images per step at the paper's size")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=list(TRICKS), default=list(TRICKS), metavar="TRICK")
    options = parser.parse_args()
    print(
        "| without | model, batch | ms with, best (median) | ms without | without / with, best | paired (quartiles) |"
    )
    print("|---|---|---|---|---|---|")
    sizes = {"paper": (options.batch, options.rounds), "study": (32, 8 * options.rounds)}
    with tempfile.TemporaryDirectory() as folder:
        whole = remove("", Path(folder) / "whole")
        kept = {size: start(str(whole), size, batch, options.threads) for size, (batch, _) in sizes.items()}
        for number, trick in enumerate(options.only):
            without = remove(trick, Path(folder) / str(number))
            for size, (batch, rounds) in sizes.items():
                timers = kept[size], start(str(without), size, batch, options.threads)
                row = [trick, f"{size}, {batch}", *cells(*alternate(timers, rounds))]
                print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
