"""Interleaved laps: every round runs every contender once, so whatever else the machine does falls on all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Pass = Callable[[], object]

WARM_UP = 2
"""Rounds that do not count: loops are compiled, threads started, pages touched."""
SELDOM = (20.0, 4)
"""A contender that takes 20 times as long as the fastest runs in every fourth round only."""


def interleave(passes: Mapping[str, Pass], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of every contender in every round it took part in, warm-up excluded."""
    laps: dict[str, list[float]] = {name: [] for name in passes}
    warm = {name: min(lap(run) for _ in range(WARM_UP)) for name, run in passes.items()}
    times, every = SELDOM
    for number in range(rounds):
        for name, run in passes.items():
            if number % every == 0 or warm[name] < times * min(warm.values()):
                laps[name].append(lap(run))
    return laps


def lap(run: Pass) -> float:
    """Milliseconds of one pass."""
    start = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - start)


def summary(laps: Sequence[float]) -> dict[str, float]:
    """Best and median."""
    return {"best_ms": min(laps), "median_ms": statistics.median(laps)}
