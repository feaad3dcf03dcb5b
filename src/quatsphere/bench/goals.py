"""What the figures should be, and whether they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quatsphere.bench.scaling import exponent

Row = dict[str, Any]

KERNEL = [
    ("quaternion: reference", "times_fused", 60.0, "fused kernel: times faster than the per-edge form"),
    (
        "quaternion: reference",
        "times_fused_memory",
        15.0,
        "fused kernel: times less memory than the per-edge form",
    ),
    ("quaternion: factored", "times_fused", 4.0, "fused kernel: times faster than eager factored"),
    ("quaternion: sdpa dense", "times_fused", 2.0, "fused kernel: times faster than dense masked SDPA"),
]


def goals(record: Row) -> list[Row]:
    """Every goal whose figures are in the record."""
    by_variant = {row["variant"]: row for row in record.get("kernel", [])}
    found = [
        at_least(wanted, by_variant[variant][key], text)
        for variant, key, wanted, text in KERNEL
        if by_variant.get(variant, {}).get(key)
    ]
    for bf16 in (False, True):
        name = "bf16" if bf16 else "fp32"
        found += ratio_goals(in_precision(record.get("step", []), bf16), f"training step, {name}")
        for batch in sorted({row["batch"] for row in record.get("inference", [])}):
            rows = [row for row in record["inference"] if row["batch"] == batch]
            found += ratio_goals(in_precision(rows, bf16), f"inference, batch {batch}, {name}")
    plain = [row for row in in_precision(record.get("step", []), False) if row["variant"].startswith("qsv")]
    if plain:
        found.append(at_least(0.4, max(row["share_of_sgemm"] for row in plain), "QSV step: share of the sgemm peak"))
    if len(record.get("scaling", [])) > 1:
        power = exponent(record["scaling"], "seconds")
        text = "exponent of time per step in the number of vertices, at most"
        found.append({"goal": text, "wanted": 1.1, "found": power, "met": power <= 1.1})
    return found


def in_precision(rows: Sequence[Row], bf16: bool) -> list[Row]:
    """The rows of one precision."""
    return [row for row in rows if ("bf16" in row["variant"].split()) == bf16]


def ratio_goals(rows: Sequence[Row], where: str) -> list[Row]:
    """Throughput of QSV over that of attention, each at its fastest."""
    fastest = [
        max((row["images_per_second"] for row in rows if row["variant"].startswith(model)), default=None)
        for model in ("qsv", "attention")
    ]
    if fastest[0] is None or fastest[1] is None:
        return []
    return [at_least(0.7, fastest[0] / fastest[1], f"{where}: QSV's throughput over attention's, each at its fastest")]


def at_least(wanted: float, found: float, text: str) -> Row:
    """A figure that should not be smaller."""
    return {"goal": text, "wanted": wanted, "found": found, "met": found >= wanted}
