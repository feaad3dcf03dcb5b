"""Claims that look at every seed by itself: ranges, orders, the best cell. No intervals; nothing below n = 3."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from quatsphere.study.claims.claim import Finding
from quatsphere.study.claims.evidence import Evidence
from quatsphere.study.statistics import LEAST


@dataclass(frozen=True)
class Within:
    """Every number of a list (one per step, shell or epoch) lies in a range, on average over the seeds."""

    name: str
    low: float
    high: float
    row: str = "full"
    dataset: str = "cifar10"

    def decide(self, evidence: Evidence) -> Finding:
        """Each entry's mean is compared: these are measured properties, and seeds hardly differ in them."""
        found = evidence.lists(self.dataset, self.row, self.name)
        if not found:
            return Finding("undecided", f"no measure of {self.name} on {self.row}")
        length = min(len(values) for values in found.values())
        means = [sum(values[i] for values in found.values()) / len(found) for i in range(length)]
        ours, n = (min(means), max(means)), len(found)
        if n < LEAST:
            return Finding("undecided", f"n = {n}, needs {LEAST}", n, ours)
        return Finding("holds" if self.low <= ours[0] and ours[1] <= self.high else "fails", "", n, ours)


@dataclass(frozen=True)
class EverySeed:
    """Every seed of a row lies in a range."""

    row: str
    low: float
    high: float
    metric: str = "test"

    def decide(self, evidence: Evidence) -> Finding:
        """The least and the largest."""
        return ranged_finding(evidence, self.row, self.metric, lambda v: self.low <= min(v) and max(v) <= self.high)


@dataclass(frozen=True)
class Disjoint:
    """Every seed of a row lies above every seed of another."""

    row: str
    reference: str

    def decide(self, evidence: Evidence) -> Finding:
        """Seed ranges that do not overlap."""
        below = ranged_finding(evidence, self.reference, "test", lambda values: True)
        top = below.ours[1] if isinstance(below.ours, tuple) else 0.0
        found = ranged_finding(evidence, self.row, "test", lambda values: min(values) > top)
        return found if below.verdict == "holds" else below


@dataclass(frozen=True)
class Best:
    """The best single cell of several rows reaches a value within a margin."""

    rows: tuple[str, ...]
    value: float
    margin: float
    metric: str = "test"

    def decide(self, evidence: Evidence) -> Finding:
        """The maximum over rows and seeds."""
        samples = evidence.samples("cifar10", self.metric)
        found = [value for row in self.rows for value in samples.get(row, {}).values()]
        if len(found) < LEAST:
            return Finding("undecided", f"n = {len(found)}, needs {LEAST}", len(found), max(found, default=None))
        best = max(found)
        return Finding("holds" if abs(best - self.value) <= self.margin else "fails", "", len(found), best)


@dataclass(frozen=True)
class SeedSpread:
    """The seeds of every one of several rows differ by at most so much."""

    rows: tuple[str, ...]
    limit: float

    def decide(self, evidence: Evidence) -> Finding:
        """The widest row decides."""
        samples = evidence.samples("cifar10", "test")
        spreads = {row: max(samples[row].values()) - min(samples[row].values()) for row in self.rows if row in samples}
        n = min((len(samples[row]) for row in spreads), default=0)
        if n < LEAST or len(spreads) < len(self.rows):
            return Finding("undecided", f"n = {n}, needs {LEAST} of every row", n, max(spreads.values(), default=None))
        row, widest = max(spreads.items(), key=lambda item: item[1])
        return Finding("holds" if widest <= self.limit else "fails", f"widest: {row}", n, widest)


@dataclass(frozen=True)
class SameOrder:
    """The classes come in about the same order in every seed: the least rank correlation of two seeds."""

    limit: float
    row: str = "full"

    def decide(self, evidence: Evidence) -> Finding:
        """Spearman's, of the accuracies by class."""
        classes = [list(record.get("per_class", {}).values()) for record in evidence.of("cifar10", self.row).values()]
        orders = [ranks(values) for values in classes if None not in values and len(set(values)) > 1]
        n = len(orders)
        if n < LEAST:
            return Finding("undecided", f"n = {n}, needs {LEAST}", n)
        least = min(statistics.correlation(one, other) for one, other in combinations(orders, 2))
        return Finding("holds" if least > self.limit else "fails", "", n, least)


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the smallest; equal values share the mean of their ranks."""
    return [1 + sum(other < value for other in values) + (values.count(value) - 1) / 2 for value in values]


def ranged_finding(evidence: Evidence, row: str, metric: str, good: Callable[[list[float]], bool]) -> Finding:
    """A verdict on the values of all seeds, with their range."""
    values = list(evidence.samples("cifar10", metric).get(row, {}).values())
    if len(values) < LEAST:
        ours = (min(values), max(values)) if values else None
        return Finding("undecided", f"n = {len(values)} of {row}, needs {LEAST}", len(values), ours)
    return Finding("holds" if good(values) else "fails", "", len(values), (min(values), max(values)))
