"""Learning rates as functions of the step, without scheduler state."""

from __future__ import annotations

import math
from collections.abc import Callable


def one_cycle(step: int, total: int, warmup: float, div: float, final_div: float) -> float:
    """Fraction of the peak rate at a step: 1/div -> 1 over the warm-up, then 1 -> 1/(div final_div), cosine-shaped.

    Equal to torch's OneCycleLR with cosine annealing at every step.
    """
    top = warmup * total - 1
    if step <= top:
        return _cosine(1 / div, 1.0, step / top if top > 0 else 1.0)
    return _cosine(1.0, 1 / (div * final_div), (step - top) / (total - 1 - top) if total - 1 > top else 1.0)


def constant(step: int, total: int, warmup: float, div: float, final_div: float) -> float:
    """The peak rate at every step."""
    return 1.0


def decay(step: int, total: int, until: float) -> float:
    """1 -> 0 along a half cosine over the fraction `until` of the run, then 0: for the step of the repulsion."""
    end = until * total
    return 0.0 if step >= end else 0.5 * (1 + math.cos(math.pi * step / end))


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))


SCHEDULES: dict[str, Callable[[int, int, float, float, float], float]] = {"one_cycle": one_cycle, "constant": constant}
