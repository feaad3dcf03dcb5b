"""Print the results of a benchmark as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quatsphere.bench.gpu import summary
from quatsphere.bench.measure import compare_benchmarks
from quatsphere.bench.step import exponent

Column = tuple[str, str, str]
"""(key, heading, format)."""

TIMES: list[Column] = [("batch", "batch", "d"), ("best_ms", "best ms", ".2f"), ("median_ms", "median ms", ".2f")]
SPEED: list[Column] = [
    ("images_per_second", "images/s", ",.1f"),
    ("gflop_per_image", "GFLOP/image", ".3f"),
    ("gflops", "GFLOPS", ".1f"),
    ("share_of_sgemm", "of sgemm", ".0%"),
]
MEMORY: list[Column] = [("peak_mb", "peak MB", ",.1f")]
COUNTS: list[Column] = [("launches", "launches", "d"), ("graph_launches", "graphs", "d"), ("waits", "waits", "d")]
VARIANT: Column = ("variant", "", "s")
GPU: list[Column] = [VARIANT, *TIMES, SPEED[0], *COUNTS, *MEMORY]
BENCH_TABLES: dict[str, tuple[str, list[Column]]] = {
    "kernel": ("operators, forward + backward", [
        VARIANT, *TIMES, *MEMORY, ("times_fused", "x fused", ".1f"), ("times_fused_memory", "x memory", ".1f"),
    ]),
    "step": ("training step", [VARIANT, *TIMES, *SPEED, *MEMORY]),
    "profile": ("where a training step goes", [
        VARIANT, ("part", "part", "s"), ("ms", "ms", ".1f"), ("share", "share", ".1%"),
    ]),
    "inference": ("inference", [VARIANT, *TIMES, *SPEED, *MEMORY]),
    "graphs": ("graph layers, forward + backward", [
        ("graph", "graph", "s"), ("nodes", "nodes", ",d"), ("degree", "degree", "d"), TIMES[0], VARIANT, *TIMES[1:],
        ("cpu_ms", "CPU ms", ".2f"), *MEMORY, ("times_best", "x time", ".1f"), ("times_cpu", "x CPU", ".1f"),
    ]),
    "scaling": ("training step of QSV, batch 1", [
        ("vertices", "vertices", ",d"), ("dim", "dim", "d"), ("seconds", "seconds", ".3f"), *MEMORY,
    ]),
    "gpu": ("training step on the GPU", GPU),
    "gpu_inference": ("inference on the GPU", GPU),
    "gpu_failures": ("failed on the GPU", [("subject", "", "s"), VARIANT, ("error", "", "s")]),
}  # fmt: skip

COMPARISON: list[Column] = [
    ("what", "", "s"),
    ("before", "before", ".3f"),
    ("after", "after", ".3f"),
    ("faster", "x faster", ".2f"),
    ("smaller", "x smaller", ".2f"),
]


def print_record(record: Mapping[str, Any]) -> None:
    """Print the machine and every table of the record."""
    machine = record["machine"]
    print(f"{machine['processor']}, {machine['threads']} threads, {machine['vectors']}")
    print(", ".join(f"{name} {version}" for name, version in machine["versions"].items()))
    print(f"kernel {machine['backend']}: {machine['backend_reason']}")
    for row in record.get("step", [])[:1] or record.get("inference", [])[:1]:
        print(f"sgemm peak, measured among the laps: {row['sgemm_gflops']:.0f} GFLOPS")
    for subject, (title, columns) in BENCH_TABLES.items():
        if record.get(subject):
            print_table(title, columns, record[subject])
    if "gpu_device" in record:
        print(f"\nfor an issue:\n{summary(record)}")
    points = record.get("scaling", [])
    if len(points) > 1:
        print(f"time ~ V^{exponent(points, 'seconds'):.2f}, memory ~ V^{exponent(points, 'peak_mb'):.2f}")


def print_comparison(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Print time and memory before and after."""
    rows = compare_benchmarks(dict(before), dict(after))
    if rows:
        print_table("before and after", COMPARISON, rows)
    else:
        print("\nnothing in both: no comparison")


def print_table(title: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print aligned columns, text to the left, numbers to the right; '-' for missing values."""
    cells = [[heading for _, heading, _ in columns]]
    for row in rows:
        values = [(row.get(key), kind) for key, _, kind in columns]
        cells.append(["-" if value is None else format(value, kind) for value, kind in values])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    words = [kind == "s" for *_, kind in columns]
    print(f"\n{title}")
    for line in cells:
        parts = (t.ljust(w) if left else t.rjust(w) for t, w, left in zip(line, widths, words, strict=True))
        print("  " + "  ".join(parts).rstrip())
