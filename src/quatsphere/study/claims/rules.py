"""Rules that decide claims: intervals of estimates, ranges over seeds, arithmetic.

No rule about trained cells decides anything with fewer than three seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from quatsphere.study.claims.claim import Finding, Number
from quatsphere.study.claims.evidence import ACCURACIES, Evidence
from quatsphere.study.statistics import LEVEL, MIN_SEEDS, Estimate, by_seed, estimate_contrast, mean

SEVERITY = ("fails", "undecided", "holds")
"""Verdicts, worst first."""


def difference(row: str, reference: str) -> dict[str, float]:
    """Weights of row - reference."""
    return {row: 1.0, reference: -1.0}


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of rows, paired by seed."""

    weights: Mapping[str, float]
    metric: str = "test"
    dataset: str = "cifar10"
    own_variance: bool = False
    """Use only the seeds that all rows have, with the variance of the sum itself even if there are few."""

    def estimate(self, evidence: Evidence) -> Estimate | None:
        """Estimate the sum; a pooled variance covers all rows for accuracies, only these rows for other metrics."""
        samples = evidence.samples(self.dataset, self.metric)
        if self.own_variance:
            return mean(by_seed(samples, self.weights))
        if self.metric not in ACCURACIES:
            samples = {row: samples[row] for row in self.weights if row in samples}
        return estimate_contrast(samples, self.weights)

    def no_data(self, evidence: Evidence) -> Finding:
        """Finding for rows without a common seed."""
        samples = evidence.samples(self.dataset, self.metric)
        rows = [row for row in self.weights if row not in samples] or list(self.weights)
        return Finding("undecided", f"no cells of {', '.join(rows)} on {evidence.available_dataset(self.dataset)}")


@dataclass(frozen=True)
class RowMean:
    """Mean of a metric of one row over its seeds, with the row's own variance."""

    metric: str
    row: str = "full"
    dataset: str = "cifar10"

    def estimate(self, evidence: Evidence) -> Estimate | None:
        """Estimate the mean."""
        return mean(evidence.samples(self.dataset, self.metric).get(self.row, {}))

    def no_data(self, evidence: Evidence) -> Finding:
        """Finding for a row without cells, or whose cells lack the metric."""
        what = "cells" if not evidence.row_records(self.dataset, self.row) else f"measure '{self.metric}'"
        return Finding("undecided", f"no {what} of {self.row} on {evidence.available_dataset(self.dataset)}")


Quantity = Contrast | RowMean


@dataclass(frozen=True)
class LiesBetween:
    """A quantity lies between two limits, of which one may be infinite.

    With one finite limit the claim holds when the 95 % interval lies on the claimed side; with two it holds by two
    one-sided tests at 5 % each. It fails when the 95 % interval lies below `refuted_below` or above `refuted_above`
    (by default the limits themselves) and it does not hold.
    """

    quantity: Quantity
    low: float = -math.inf
    high: float = math.inf
    refuted_below: float = -math.inf
    refuted_above: float = math.inf
    comparisons: int = 1
    """Number of claims tested together; refutations are adjusted by Bonferroni's rule."""

    def decide(self, evidence: Evidence) -> Finding:
        """Test the claim, then its refutation."""
        found = self.quantity.estimate(evidence)
        if found is None:
            return self.quantity.no_data(evidence)
        numbers = (found.n, found.value, found.interval())
        if found.n < MIN_SEEDS:
            return Finding("undecided", f"n = {found.n}, needs {MIN_SEEDS}", *numbers)
        if found.freedom < 1:
            return Finding("undecided", "no variance known", *numbers)
        p_holds = max(found.above(self.low), found.below(self.high)) * (1 if self.two_sided else 2)
        p_refuted = 2 * self.comparisons * min(found.below(self.refuted_below), found.above(self.refuted_above))
        if min(p_holds, p_refuted) >= LEVEL:
            return Finding("undecided", f"{self._not_cleared()}: {self._seeds_needed(found)}", *numbers)
        verdict: Finding = Finding("holds" if p_holds < LEVEL else "fails", "", *numbers)
        if not self.is_equivalence or p_refuted >= LEVEL:
            return verdict
        within = "within" if verdict.verdict == "holds" else "not shown to be within"
        return replace(verdict, why=f"{within} {self.margin_text()} of 0; differs from 0 by {found.value:+.2f}")

    @property
    def two_sided(self) -> bool:
        """True if both limits are finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def is_equivalence(self) -> bool:
        """True for the claim "no effect": any difference from 0 refutes it, unless it is within the limits."""
        return self.refuted_below == self.refuted_above == 0

    def margin_text(self) -> str:
        """`1 point` or `0.5 points`."""
        return f"{self.high:g} point" + ("" if self.high == 1 else "s")

    def share_within(self, interval: tuple[float, float] | None) -> float:
        """Share of an interval on the claimed side of the only finite limit; beyond 0 or 1 where it is clear of it."""
        start, end = interval or (-math.inf, math.inf)
        if not math.isfinite(end - start) or end == start:
            return 0.0
        return ((self.high - start) if math.isfinite(self.high) else (end - self.low)) / (end - start)

    def _not_cleared(self) -> str:
        if self.is_equivalence:
            return f"neither within +-{self.high:g} nor away from 0"
        limits = [self.high, self.low, self.refuted_above, self.refuted_below]
        finite = dict.fromkeys(f"{limit:g}" for limit in limits if math.isfinite(limit))
        return f"the interval contains {' or '.join(finite) if self.two_sided else ' and '.join(finite)}"

    def _seeds_needed(self, found: Estimate) -> str:
        """Smallest number of seeds that would decide the claim if the value stayed as it is."""
        inside = min(found.value - self.low, self.high - found.value)
        outside = max(self.refuted_below - found.value, found.value - self.refuted_above)
        counts = (
            found.seeds_to_clear(inside, 2 * LEVEL if self.two_sided else LEVEL),
            found.seeds_to_clear(outside, LEVEL / self.comparisons),
        )
        seeds = min((count for count in counts if count is not None), default=0)
        return f"more seeds needed (about {seeds:,})" if seeds > found.n else "more seeds needed"


def below(quantity: Quantity, limit: float = 0.0) -> LiesBetween:
    """quantity < limit."""
    return LiesBetween(quantity, high=limit, refuted_above=limit)


def above(quantity: Quantity, limit: float = 0.0) -> LiesBetween:
    """quantity > limit."""
    return LiesBetween(quantity, low=limit, refuted_below=limit)


def costs(quantity: Quantity, points: float) -> LiesBetween:
    """quantity < 0; refuted when a loss of half the paper's `points` is ruled out."""
    return LiesBetween(quantity, high=0.0, refuted_above=-points / 2)


def equivalent(quantity: Quantity, margin: float, comparisons: int = 1) -> LiesBetween:
    """|quantity| < margin; refuted by any difference from 0 that is not shown to be within the margin."""
    return LiesBetween(quantity, -margin, margin, 0.0, 0.0, comparisons)


def near(quantity: Quantity, value: float, margin: float) -> LiesBetween:
    """|quantity - value| < margin."""
    low, high = value - margin, value + margin
    return LiesBetween(quantity, low, high, low, high)


@dataclass(frozen=True)
class All:
    """Several one-sided rules: holds if all hold, fails if one fails; the numbers are those of the worst."""

    rules: tuple[LiesBetween, ...]

    def decide(self, evidence: Evidence) -> Finding:
        """Return the worst finding; of several undecided ones the one whose interval is least on its side."""
        found = [(rule, rule.decide(evidence)) for rule in self.rules]
        order = [(SEVERITY.index(each.verdict), rule.share_within(each.interval)) for rule, each in found]
        return found[order.index(min(order))][1]


@dataclass(frozen=True)
class AllEquivalent:
    """Every row is equivalent to a reference: holds if all are, fails if one is not."""

    rows: tuple[str, ...]
    reference: str
    margin: float

    def decide(self, evidence: Evidence) -> Finding:
        """Return the worst row's verdict with the range of all differences."""
        found = {
            row: equivalent(Contrast(difference(row, self.reference)), self.margin, len(self.rows)).decide(evidence)
            for row in self.rows
        }
        row, worst = min(found.items(), key=lambda item: SEVERITY.index(item[1].verdict))
        values = [each.ours for each in found.values() if isinstance(each.ours, float)]
        n = min(each.n for each in found.values())
        why = f"{row}: {worst.why or 'differs'}" if worst.verdict != "holds" else ""
        return Finding(worst.verdict, why, n, (min(values), max(values)) if values else None, worst.interval)


@dataclass(frozen=True)
class LessStable:
    """A row is less stable than its reference: more cells diverge, or its loss curve is rougher."""

    row: str
    reference: str = "full"
    min_epochs: int = 12
    """Roughness of shorter loss curves reflects the initial fall."""

    def decide(self, evidence: Evidence) -> Finding:
        """Compare divergences first (three more than the reference decide), then roughness."""
        diverged, other = (evidence.diverged_count("cifar10", row) for row in (self.row, self.reference))
        found = above(Contrast(difference(self.row, self.reference), "roughness")).decide(evidence)
        if diverged - other >= MIN_SEEDS:
            return Finding("holds", f"{diverged} cells diverged", diverged + found.n, found.ours, found.interval)
        epochs = [record["epochs"] for record in evidence.row_records("cifar10", self.row).values()]
        if found.n and min(epochs, default=self.min_epochs) < self.min_epochs:
            why = f"{diverged} cells diverged; roughness needs {self.min_epochs} epochs, has {min(epochs)}"
            return replace(found, verdict="undecided", why=why)
        return found


@dataclass(frozen=True)
class RatioAbove:
    """The ratio of a row's metric to its reference's exceeds a limit; `metric` is a logarithm."""

    row: str
    reference: str
    metric: str
    limit: float = 1.0

    def decide(self, evidence: Evidence) -> Finding:
        """Compare logarithms and return the ratio."""
        quantity = Contrast(difference(self.row, self.reference), self.metric)
        found = above(quantity, math.log(self.limit)).decide(evidence)
        ours = math.exp(found.ours) if isinstance(found.ours, float) else None
        interval = (math.exp(found.interval[0]), math.exp(found.interval[1])) if found.interval else None
        why = found.why.replace(f"{math.log(self.limit):g}", f"{self.limit:g}")
        return replace(found, why=why, ours=ours, interval=interval)


@dataclass(frozen=True)
class EntriesBetween:
    """Every entry of a list metric (one per step, shell or epoch) lies in a range on average over the seeds.

    Means are compared without intervals: these properties hardly differ between seeds.
    """

    metric: str
    low: float
    high: float
    row: str = "full"
    dataset: str = "cifar10"

    def decide(self, evidence: Evidence) -> Finding:
        """Compare the smallest and the largest mean with the range."""
        found = evidence.lists(self.dataset, self.row, self.metric)
        if not found:
            return Finding("undecided", f"no measure of {self.metric} on {self.row}")
        length = min(len(values) for values in found.values())
        means = [sum(values[i] for values in found.values()) / len(found) for i in range(length)]
        is_true = self.low <= min(means) and max(means) <= self.high
        return _seedwise(is_true, len(found), (min(means), max(means)))


@dataclass(frozen=True)
class EverySeedBetween:
    """Every seed of a row lies in a range."""

    row: str
    low: float
    high: float

    def decide(self, evidence: Evidence) -> Finding:
        """Compare the smallest and the largest value with the range."""
        return _seed_range(evidence, self.row, lambda values: self.low <= min(values) and max(values) <= self.high)


@dataclass(frozen=True)
class RangesApart:
    """Every seed of a row is above every seed of another."""

    row: str
    reference: str

    def decide(self, evidence: Evidence) -> Finding:
        """Compare the smallest value of the row with the largest of the reference."""
        lower = _seed_range(evidence, self.reference, lambda values: True)
        top = lower.ours[1] if isinstance(lower.ours, tuple) else 0.0
        found = _seed_range(evidence, self.row, lambda values: min(values) > top)
        return found if lower.verdict == "holds" else lower


@dataclass(frozen=True)
class BestCell:
    """The best single cell of several rows reaches a value within a margin."""

    rows: tuple[str, ...]
    value: float
    margin: float
    metric: str = "test"

    def decide(self, evidence: Evidence) -> Finding:
        """Compare the maximum over rows and seeds with the value."""
        samples = evidence.samples("cifar10", self.metric)
        found = [value for row in self.rows for value in samples.get(row, {}).values()]
        best = max(found, default=None)
        return _seedwise(best is not None and abs(best - self.value) <= self.margin, len(found), best)


@dataclass(frozen=True)
class SeedSpread:
    """In each of several rows the best and the worst seed differ by at most a limit."""

    rows: tuple[str, ...]
    limit: float

    def decide(self, evidence: Evidence) -> Finding:
        """Compare the row with the widest spread with the limit."""
        samples = evidence.samples("cifar10", "test")
        spreads = {row: max(samples[row].values()) - min(samples[row].values()) for row in self.rows if row in samples}
        n = min((len(samples[row]) for row in spreads), default=0)
        if n < MIN_SEEDS or len(spreads) < len(self.rows):
            why = f"n = {n}, needs {MIN_SEEDS} of every row"
            return Finding("undecided", why, n, max(spreads.values(), default=None))
        row, widest = max(spreads.items(), key=lambda item: item[1])
        return Finding("holds" if widest <= self.limit else "fails", f"widest: {row}", n, widest)


@dataclass(frozen=True)
class StableClassOrder:
    """Spearman's rank correlation of the accuracies by class exceeds a limit for every pair of seeds."""

    limit: float
    row: str = "full"

    def decide(self, evidence: Evidence) -> Finding:
        """Compare the smallest correlation with the limit."""
        records = evidence.row_records("cifar10", self.row).values()
        classes = [list(record.get("per_class", {}).values()) for record in records]
        orders = [average_ranks(values) for values in classes if None not in values and len(set(values)) > 1]
        if len(orders) < MIN_SEEDS:
            return _seedwise(False, len(orders), None)
        smallest = min(statistics.correlation(one, other) for one, other in combinations(orders, 2))
        return _seedwise(smallest > self.limit, len(orders), smallest)


def average_ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1 for the smallest; equal values share the mean of their ranks."""
    return [1 + sum(other < value for other in values) + (values.count(value) - 1) / 2 for value in values]


def _seed_range(evidence: Evidence, row: str, is_true: Callable[[list[float]], bool]) -> Finding:
    """Finding from a test of the accuracies of all seeds of a row, with their range."""
    values = list(evidence.samples("cifar10", "test").get(row, {}).values())
    ours = (min(values), max(values)) if values else None
    return _seedwise(bool(values) and is_true(values), len(values), ours, f" of {row}")


def _seedwise(is_true: bool, n: int, ours: Number, whose: str = "") -> Finding:
    """Finding of a rule without intervals."""
    if n < MIN_SEEDS:
        return Finding("undecided", f"n = {n}{whose}, needs {MIN_SEEDS}", n, ours)
    return Finding("holds" if is_true else "fails", "", n, ours)


@dataclass(frozen=True)
class Computed:
    """A value computed from the code equals the paper's to the digits that the paper prints."""

    compute: Callable[[], float | tuple[float, ...]]
    paper: float | tuple[float, ...]
    rounding: float = 0.0
    """Half a unit of the last printed digit."""

    def decide(self, evidence: Evidence) -> Finding:
        """Compute and compare."""
        ours = self.compute()
        mine, papers = (value if isinstance(value, tuple) else (value,) for value in (ours, self.paper))
        pairs = zip(mine, papers, strict=False)
        agrees = len(mine) == len(papers) and all(abs(a - b) <= self.rounding + 1e-9 for a, b in pairs)
        return Finding("holds" if agrees else "fails", "", 1, ours)
