"""Before and after: the rows that two records share, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quatsphere.errors import ConfigError

Row = dict[str, Any]
TIMES = {"kernel": "best_ms", "step": "best_ms", "inference": "best_ms", "scaling": "seconds"}
"""subject -> its time."""


def compare(before: Row, after: Row) -> list[Row]:
    """One row per measurement in both: time before, after, and how many times faster; memory likewise."""
    if before.get("format") != after["format"]:
        raise ConfigError(
            f"cannot compare with format {before.get('format')!r}, this is {after['format']}; "
            "make the file with 'quatsphere bench --json FILE'"
        )
    old = dict(keyed(before))
    rows = []
    for key, row in keyed(after):
        if key in old:
            time = TIMES[key[0]]
            memory = (old[key].get("peak_mb"), row.get("peak_mb"))
            rows.append(
                {
                    "what": " ".join(map(str, key)),
                    "before": old[key][time],
                    "after": row[time],
                    "faster": old[key][time] / row[time],
                    "smaller": memory[0] / memory[1] if memory[0] and memory[1] else None,
                }
            )
    return rows


def keyed(record: Row) -> Iterator[tuple[tuple[str, str], Row]]:
    """(subject, what) -> row."""
    for subject in TIMES:
        for row in record.get(subject, []):
            what = f"{row['vertices']:,} vertices" if subject == "scaling" else f"{row['variant']}, {row['batch']}"
            yield (subject, what), row
