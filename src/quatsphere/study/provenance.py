"""Which commit made which cell, and which differences pair cells of different commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quatsphere.study.variants import VARIANTS

Record = Mapping[str, Any]


def commits(records: Sequence[Record]) -> str:
    """Short hashes; `+changes` stays visible."""
    whole = [str(record["commit"]) for record in records if record.get("commit")]
    return ", ".join(dict.fromkeys(text[:12] + text[40:] for text in whole)) or "unknown"


def without_commit(records: Sequence[Record]) -> list[str]:
    """Cells that do not say which commit made them."""
    return [record["cell"] for record in records if not record.get("commit")]


def mixed_pairs(records: Sequence[Record]) -> dict[str, tuple[int, int]]:
    """`data set.row` -> pairs with its reference by seed whose commits differ or are unknown, and all its pairs."""
    found = {(record["dataset"], record["variant"], record["seed"]): record.get("commit") for record in records}
    counts: dict[str, tuple[int, int]] = {}
    for (dataset, row, seed), commit in found.items():
        reference = (dataset, VARIANTS[row].reference, seed)
        if row != reference[1] and reference in found:
            mixed, pairs = counts.get(f"{dataset}.{row}", (0, 0))
            apart = commit is None or commit != found[reference]
            counts[f"{dataset}.{row}"] = mixed + apart, pairs + 1
    return counts


def spell_pairs(records: Sequence[Record]) -> str:
    """How many differences between a row and its reference rest on two commits, row by row."""
    counts = mixed_pairs(records)
    mixed, pairs = (sum(count[i] for count in counts.values()) for i in (0, 1))
    rows = ", ".join(f"{row} {some} of {of}" for row, (some, of) in counts.items() if some)
    return f"{mixed} of {pairs} pairs of a cell with its reference are of different commits" + (
        f": {rows}" if rows else ""
    )
