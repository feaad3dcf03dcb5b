"""What decides a claim: comparisons of cells with intervals, measured properties, arithmetic. Nothing below n = 3."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from quatsphere.study.claims.claim import Finding, Number
from quatsphere.study.claims.evidence import ACCURACIES, Evidence
from quatsphere.study.statistics import LEAST, LEVEL, Estimate, by_seed, contrast, mean


def difference(row: str, reference: str) -> dict[str, float]:
    """row minus reference."""
    return {row: 1.0, reference: -1.0}


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of rows, paired by seed."""

    weights: Mapping[str, float]
    metric: str = "test"
    dataset: str = "cifar10"
    common: bool = False
    """Only over the seeds that all rows have, with the variance of the sum itself however few they are."""

    def estimate(self, evidence: Evidence) -> Estimate | None:
        """Its value; where a variance is pooled, that of an accuracy over all rows, of other metrics over these."""
        samples = evidence.samples(self.dataset, self.metric)
        if self.common:
            return mean(by_seed(samples, self.weights))
        if self.metric not in ACCURACIES:
            samples = {row: samples[row] for row in self.weights if row in samples}
        return contrast(samples, self.weights)

    def absent(self, evidence: Evidence) -> Finding:
        """No common seed: which rows are missing."""
        samples = evidence.samples(self.dataset, self.metric)
        rows = [row for row in self.weights if row not in samples] or list(self.weights)
        return Finding("undecided", f"no cells of {', '.join(rows)} on {evidence.dataset(self.dataset)}")


@dataclass(frozen=True)
class RowMean:
    """A measure of one row, its mean over the seeds with the row's own variance."""

    metric: str
    row: str = "full"
    dataset: str = "cifar10"

    def estimate(self, evidence: Evidence) -> Estimate | None:
        """Its value."""
        return mean(evidence.samples(self.dataset, self.metric).get(self.row, {}))

    def absent(self, evidence: Evidence) -> Finding:
        """No cells, or cells without this measure."""
        what = "cells" if not evidence.of(self.dataset, self.row) else f"measure '{self.metric}'"
        return Finding("undecided", f"no {what} of {self.row} on {evidence.dataset(self.dataset)}")


Quantity = Contrast | RowMean


def judge(found: Estimate, *, holds: float, fails: float, otherwise: str) -> Finding:
    """A verdict from two p-values: of the claim, and of its opposite."""
    numbers = (found.n, found.value, found.interval())
    if found.n < LEAST:
        return Finding("undecided", f"n = {found.n}, needs {LEAST}", *numbers)
    if found.freedom < 1:
        return Finding("undecided", "no variance known", *numbers)
    if holds < LEVEL:
        return Finding("holds", "", *numbers)
    return Finding("fails", "", *numbers) if fails < LEVEL else Finding("undecided", otherwise, *numbers)


def more_seeds(found: Estimate, *counts: int | None) -> str:
    """What is wanted when an interval does not clear a limit: the least of these numbers of seeds."""
    seeds = min((count for count in counts if count is not None), default=0)
    return f"more seeds needed (about {seeds:,})" if seeds > found.n else "more seeds needed"


@dataclass(frozen=True)
class Below:
    """A quantity lies below a limit: the row loses, or the interaction is negative."""

    quantity: Quantity
    limit: float = 0.0

    def decide(self, evidence: Evidence) -> Finding:
        """When the interval lies on one side of the limit."""
        found = self.quantity.estimate(evidence)
        if found is None:
            return self.quantity.absent(evidence)
        seeds = found.seeds_to_clear(abs(found.value - self.limit))
        otherwise = f"the interval holds {self.limit:g}: {more_seeds(found, seeds)}"
        return judge(found, holds=2 * found.below(self.limit), fails=2 * found.above(self.limit), otherwise=otherwise)


@dataclass(frozen=True)
class Above:
    """A quantity lies above a limit."""

    quantity: Quantity
    limit: float = 0.0

    def decide(self, evidence: Evidence) -> Finding:
        """When the interval lies on one side of the limit."""
        found = self.quantity.estimate(evidence)
        if found is None:
            return self.quantity.absent(evidence)
        seeds = found.seeds_to_clear(abs(found.value - self.limit))
        otherwise = f"the interval holds {self.limit:g}: {more_seeds(found, seeds)}"
        return judge(found, holds=2 * found.above(self.limit), fails=2 * found.below(self.limit), otherwise=otherwise)


@dataclass(frozen=True)
class Costs:
    """A row loses accuracy; where no loss is shown, it fails when one of half the paper's size is ruled out."""

    quantity: Quantity
    points: float

    def decide(self, evidence: Evidence) -> Finding:
        """When the interval lies below zero, or above minus half the points."""
        found = self.quantity.estimate(evidence)
        if found is None:
            return self.quantity.absent(evidence)
        least = -self.points / 2
        counts = (found.seeds_to_clear(-found.value), found.seeds_to_clear(found.value - least))
        otherwise = f"the interval holds 0 and {least:g}: {more_seeds(found, *counts)}"
        return judge(found, holds=2 * found.below(0), fails=2 * found.above(least), otherwise=otherwise)


@dataclass(frozen=True)
class NoEffect:
    """A contrast is equivalent to zero within a margin; it fails when it differs from zero and is not equivalent."""

    quantity: Quantity
    margin: float
    among: int = 1
    """How many are asked together: a difference must be that much clearer (Bonferroni)."""

    def decide(self, evidence: Evidence) -> Finding:
        """By two one-sided tests; a difference that is significant and within the margin still counts as none."""
        found = self.quantity.estimate(evidence)
        if found is None:
            return self.quantity.absent(evidence)
        differs = 2 * self.among * min(found.above(0), found.below(0))
        size, level = abs(found.value), LEVEL / self.among
        counts = (found.seeds_to_clear(self.margin - size, 2 * LEVEL), found.seeds_to_clear(size, level))
        otherwise = f"neither within +-{self.margin:g} nor away from 0: {more_seeds(found, *counts)}"
        decided = judge(found, holds=found.equivalence(self.margin), fails=differs, otherwise=otherwise)
        if decided.verdict == "undecided" or differs >= LEVEL:
            return decided
        within = "within" if decided.verdict == "holds" else "not shown to be within"
        return replace(decided, why=f"{within} {self.spell_margin()} of 0; differs from 0 by {found.value:+.2f}")

    def spell_margin(self) -> str:
        """The margin in words."""
        return f"{self.margin:g} point" + ("" if self.margin == 1 else "s")


@dataclass(frozen=True)
class AllNoEffect:
    """Every one of several rows is equivalent to a reference: it holds if all do, it fails if one fails."""

    rows: tuple[str, ...]
    reference: str
    margin: float

    def decide(self, evidence: Evidence) -> Finding:
        """The worst of the rows decides."""
        found = {
            row: NoEffect(Contrast(difference(row, self.reference)), self.margin, len(self.rows)).decide(evidence)
            for row in self.rows
        }
        order = ("fails", "undecided", "holds")
        row, worst = min(found.items(), key=lambda item: order.index(item[1].verdict))
        values = [each.ours for each in found.values() if isinstance(each.ours, float)]
        n = min(each.n for each in found.values())
        why = f"{row}: {worst.why or 'differs'}" if worst.verdict != "holds" else ""
        return Finding(worst.verdict, why, n, (min(values), max(values)) if values else None, worst.interval)


@dataclass(frozen=True)
class NotWorse:
    """A contrast is not below minus a margin (non-inferiority)."""

    quantity: Quantity
    margin: float

    def decide(self, evidence: Evidence) -> Finding:
        """One one-sided test; its opposite is the failure."""
        return Above(self.quantity, -self.margin).decide(evidence)


@dataclass(frozen=True)
class Unstable:
    """A row is less stable than its reference: a cell diverged, or its loss curve is rougher."""

    row: str
    reference: str = "full"
    epochs: int = 12
    """Without divergence, loss curves of fewer epochs say more about the fall than about its roughness."""

    def decide(self, evidence: Evidence) -> Finding:
        """Three cells more than of the reference that diverge decide at once."""
        diverged, other = (evidence.unstable("cifar10", row) for row in (self.row, self.reference))
        found = Above(Contrast(difference(self.row, self.reference), "roughness")).decide(evidence)
        if diverged - other >= LEAST:
            return Finding("holds", f"{diverged} cells diverged", diverged + found.n, found.ours, found.interval)
        short = min((r["epochs"] for r in evidence.of("cifar10", self.row).values()), default=self.epochs)
        if short < self.epochs and found.n:
            why = f"{diverged} cells diverged; roughness needs {self.epochs} epochs, has {short}"
            return Finding("undecided", why, found.n, found.ours, found.interval)
        return found


@dataclass(frozen=True)
class Faster:
    """A row's measure is a multiple of its reference's, more than `limit`; compared on the logarithm."""

    row: str
    reference: str
    metric: str
    limit: float = 1.0

    def decide(self, evidence: Evidence) -> Finding:
        """The ratio with its interval."""
        found = Above(Contrast(difference(self.row, self.reference), self.metric), math.log(self.limit)).decide(
            evidence
        )
        ours = math.exp(found.ours) if isinstance(found.ours, float) else None
        interval = (math.exp(found.interval[0]), math.exp(found.interval[1])) if found.interval else None
        why = found.why.replace(f"{math.log(self.limit):g}", f"{self.limit:g}")
        return replace(found, why=why, ours=ours, interval=interval)


@dataclass(frozen=True)
class Value:
    """A row's mean is the paper's value within a margin."""

    row: str
    value: float
    margin: float
    metric: str = "test"
    dataset: str = "cifar10"

    def decide(self, evidence: Evidence) -> Finding:
        """By equivalence around the value, with the row's own variance."""
        quantity = RowMean(self.metric, self.row, self.dataset)
        found = quantity.estimate(evidence)
        if found is None:
            return quantity.absent(evidence)
        low, high = self.value - self.margin, self.value + self.margin
        outside = 2 * min(found.below(low), found.above(high))
        return judge(
            found,
            holds=max(found.above(low), found.below(high)),
            fails=outside,
            otherwise=f"the interval reaches over {low:g} or {high:g}: more seeds needed",
        )


@dataclass(frozen=True)
class All:
    """Several rules at once: it holds if all hold, it fails if one fails; the numbers are those of the worst."""

    rules: tuple[Below | Above, ...]

    def decide(self, evidence: Evidence) -> Finding:
        """The worst of them decides: of several undecided ones that whose interval lies least on its side."""
        order = ("fails", "undecided", "holds")
        found = [(rule, rule.decide(evidence)) for rule in self.rules]
        return min(found, key=lambda each: (order.index(each[1].verdict), cleared(*each)))[1]


def cleared(rule: Below | Above, found: Finding) -> float:
    """Which part of the interval lies on the claim's side of the limit."""
    low, high = found.interval or (-math.inf, math.inf)
    if not math.isfinite(high - low) or high == low:
        return 0.0
    return ((rule.limit - low) if isinstance(rule, Below) else (high - rule.limit)) / (high - low)


@dataclass(frozen=True)
class Computed:
    """Arithmetic: a function's value equals the paper's to the digits it prints."""

    compute: Callable[[], Number]
    paper: Number
    rounding: float = 0.0

    def decide(self, evidence: Evidence) -> Finding:
        """Equal, or within half a unit of the last printed digit."""
        ours = self.compute()
        return Finding("holds" if _agree(ours, self.paper, self.rounding) else "fails", "", 1, ours)


@dataclass(frozen=True)
class Cited:
    """A number of another paper, quoted for scale: this study does not run it."""

    where: str

    def decide(self, evidence: Evidence) -> Finding:
        """Never decided here."""
        return Finding("undecided", f"quoted from {self.where}, another pipeline: not run here")


def _agree(ours: Number, paper: Number, rounding: float) -> bool:
    if isinstance(ours, tuple) and isinstance(paper, tuple):
        return len(ours) == len(paper) and all(map(lambda a, b: abs(a - b) <= rounding + 1e-9, ours, paper))
    if isinstance(ours, int | float) and isinstance(paper, int | float):
        return abs(ours - paper) <= rounding + 1e-9
    return ours == paper
