"""Diagnostics that the paper prints of its own model, and whether another model shows the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

SECTIONS = ("routing", "spread", "beta", "coverage")
"""Sections of a diagnosis that a fingerprint needs."""


class Mark(NamedTuple):
    """A diagnostic of the paper: its words, the range they stand for, and where a diagnosis has ours."""

    name: str
    paper: str
    low: float
    high: float
    read: Callable[[Mapping[str, Any]], Sequence[float]]


def _interior_moves(found: Mapping[str, Any]) -> list[float]:
    """Mean displacement of each interior shell's vertices, in spacings."""
    shells = found["coverage"]["shells"][1:]
    return [shell["displacement"]["mean"] / shell["spacing"] for shell in shells if shell["displacement"]]


MARKS = (
    Mark("normalised routing entropy", "about 0.99", 0.985, 0.995, lambda found: found["routing"]["entropy"]),
    Mark("peak weight, multiples of 1/k", "1.2-1.4", 1.15, 1.45, lambda found: found["routing"]["peak"]),
    Mark("orientation spread, rad", "0.9 rising to 1.8", 0.85, 1.85, lambda found: found["spread"]["orientation"]),
    Mark("score spread", "0.24-0.46", 0.235, 0.465, lambda found: found["spread"]["score"]),
    Mark("beta, mean of heads", "0.50-0.76", 0.495, 0.765, lambda found: found["beta"]["mean"]),
    Mark("interior vertices moved, spacings", "very little", 0.0, 0.5, _interior_moves),
)
"""Ranges are the paper's, widened by half a unit of the last digit; half a spacing is our reading of "very little"."""


def fingerprint(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each mark with our values (one per step or shell) and `fits`, `partly` or `misses`.

    `fits`: all values lie in the paper's range; `partly`: some do, or the range lies between them; `misses`: none.
    """
    out = []
    for mark in MARKS:
        values = [float(value) for value in mark.read(found)]
        verdict = _verdict(values, mark.low, mark.high)
        out.append(
            {"name": mark.name, "paper": mark.paper, "range": [mark.low, mark.high], "ours": values, "verdict": verdict}
        )
    return out


def _verdict(values: Sequence[float], low: float, high: float) -> str:
    inside = [low <= value <= high for value in values]
    if not values:
        return "not measured"
    if all(inside):
        return "fits"
    return "partly" if any(inside) or min(values) < low < high < max(values) else "misses"
