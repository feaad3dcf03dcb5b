"""Interleaved laps: every round runs every contender once, so whatever else the machine does falls on all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence

Pass = Callable[[], object]

WARM_UP = 2
"""Rounds that do not count: loops are compiled, threads started, pages touched."""
SELDOM = 4
"""A contender that is a hundred times slower than the others runs in every fourth round only."""


def interleave(passes: Mapping[str, Pass], rounds: int, seldom: Collection[str] = ()) -> dict[str, list[float]]:
    """Milliseconds of every contender in every round it took part in, warm-up excluded."""
    laps: dict[str, list[float]] = {name: [] for name in passes}
    for number in range(-WARM_UP, rounds):
        for name, run in passes.items():
            if number < 0 or number % SELDOM == 0 or name not in seldom:
                laps[name].append(lap(run))
    return {name: times[WARM_UP:] for name, times in laps.items()}


def lap(run: Pass) -> float:
    """Milliseconds of one pass."""
    start = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - start)


def summary(laps: Sequence[float]) -> dict[str, float]:
    """Best and median."""
    return {"best_ms": min(laps), "median_ms": statistics.median(laps)}
