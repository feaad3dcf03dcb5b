"""Compare a diagnosis with the values that the paper reports for its own model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

REQUIRED_SECTIONS = ("routing", "spread", "beta", "coverage")
"""Sections of a diagnosis that `fingerprint` reads."""


class PaperDiagnostic(NamedTuple):
    """A value reported by the paper: its text, the range it means, and a function that reads ours from a diagnosis."""

    name: str
    paper: str
    low: float
    high: float
    read: Callable[[Mapping[str, Any]], Sequence[float]]


def _interior_displacements(diagnosis: Mapping[str, Any]) -> list[float]:
    """Return the mean displacement of each interior shell's vertices in units of the vertex spacing."""
    shells = diagnosis["coverage"]["shells"][1:]
    return [shell["displacement"]["mean"] / shell["spacing"] for shell in shells if shell["displacement"]]


PAPER_DIAGNOSTICS = (
    PaperDiagnostic("normalised routing entropy", "about 0.99", 0.985, 0.995, lambda d: d["routing"]["entropy"]),
    PaperDiagnostic("peak weight, multiples of 1/k", "1.2-1.4", 1.15, 1.45, lambda d: d["routing"]["peak"]),
    PaperDiagnostic("orientation spread, rad", "0.9 rising to 1.8", 0.85, 1.85, lambda d: d["spread"]["orientation"]),
    PaperDiagnostic("score spread", "0.24-0.46", 0.235, 0.465, lambda d: d["spread"]["score"]),
    PaperDiagnostic("beta, mean of heads", "0.50-0.76", 0.495, 0.765, lambda d: d["beta"]["mean"]),
    PaperDiagnostic("interior vertices moved, spacings", "very little", 0.0, 0.5, _interior_displacements),
)
"""The paper's ranges, widened by half a unit of the last digit; "very little" is read as half a spacing."""


def fingerprint(diagnosis: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each diagnostic with our values (one per step or shell) and a verdict.

    `fits`: all values are in the paper's range; `partly`: some are, or the range is between them; `misses`: none.
    """
    out = []
    for known in PAPER_DIAGNOSTICS:
        values = [float(value) for value in known.read(diagnosis)]
        inside = [known.low <= value <= known.high for value in values]
        around = bool(values) and min(values) < known.low < known.high < max(values)
        verdict = "fits" if all(inside) else "partly" if any(inside) or around else "misses"
        facts = {"name": known.name, "paper": known.paper, "range": [known.low, known.high], "ours": values}
        out.append({**facts, "verdict": verdict if values else "not measured"})
    return out
