"""Claims of the paper, the rules that decide them, and the conditions without which a claim stays undecided.

A rule is a function from the evidence to a finding; its other arguments are bound with `functools.partial`. No rule
about trained cells decides anything with fewer than three seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

from quatsphere.study.claims.evidence import ACCURACIES, Evidence, decay_sum
from quatsphere.study.plan import base_settings
from quatsphere.study.results import CellRecord
from quatsphere.study.statistics import LEVEL, MIN_SEEDS, Estimate, Verdict, by_seed, estimate_contrast, mean
from quatsphere.study.variants import SCALES, dataset_title, find_variant
from quatsphere.train.provenance import MAY_CHANGE

Number = float | tuple[float, ...] | str | None
MIN_CURVE = 12
"""Minimum number of epochs of a loss curve whose roughness is judged."""
SEVERITY = ("fails", "undecided", "holds")
"""Verdicts, worst first."""
NOT_SIZE = MAY_CHANGE | {"train.seed", "model.budget"}
"""Settings that do not count when a cell is compared with the paper's size."""


@dataclass(frozen=True)
class Finding:
    """A verdict with the numbers that support it."""

    verdict: Verdict
    why: str = ""
    """Reason for an undecided verdict, or a remark."""
    n: int = 0
    ours: Number = None
    interval: tuple[float, float] | None = None


ClaimRule = Callable[[Evidence], Finding]
Requirement = Callable[[Evidence], str]
"""Description of what is missing before a claim can be decided; empty if nothing is."""


@dataclass(frozen=True)
class Claim:
    """A quantitative statement of the paper."""

    id: str
    section: str
    """Label of the section, table or figure in the paper."""
    statement: str
    paper: Number
    """The paper's value, in the paper's unit."""
    form: Literal["mean", "single", "range", "stated", "exact"]
    """Kind of the paper's value: mean of seeds, single run, range, statement without a count, or arithmetic."""
    n: int | None
    """Number of runs behind the paper's value, if stated."""
    rule: ClaimRule
    kind: Literal["static", "trained"] = "trained"
    requires: Sequence[Requirement] = ()

    def decide(self, evidence: Evidence) -> Finding:
        """Apply the rule; undecided if there are no cells or a requirement is not met."""
        dataset = self.rule.quantity.dataset if isinstance(self.rule, LiesBetween) else "cifar10"
        if self.kind == "trained" and not evidence.has_cells(dataset):
            return Finding("undecided", f"no {dataset_title(dataset)} cells")
        found = self.rule(evidence)
        if not found.n:
            return found
        missing = "; ".join(filter(None, (requirement(evidence) for requirement in self.requires)))
        if missing:
            return replace(found, verdict="undecided", why=missing)
        used = evidence.available_dataset(dataset)
        remark = "" if used == dataset else f"judged on {dataset_title(used)}"
        return replace(found, why="; ".join(filter(None, (found.why, remark))))


def decide(claims: Iterable[Claim], records: Iterable[CellRecord]) -> list[dict[str, Any]]:
    """Decide all claims on the finished cells; return claims and findings as plain values."""
    evidence = Evidence(records)
    fields = ("id", "kind", "section", "statement", "form")
    return [
        {name: getattr(claim, name) for name in fields}
        | {"verdict": found.verdict, "why": found.why, "n": found.n, "ours": found.ours}
        | {"paper": claim.paper, "paper_n": claim.n, "interval": found.interval}
        for claim in claims
        for found in [claim.decide(evidence)]
    ]


# Requirements


def paper_size(evidence: Evidence, row: str = "full", dataset: str = "cifar10") -> str:
    """Require that the cells of a row have the paper's model, data and length."""
    variant = find_variant(row)
    paper = base_settings(SCALES["paper"], dataset, variant.model)
    settings = [record["config"] for record in evidence.row_records(dataset, row).values()]
    compared = [key for key in paper if key not in NOT_SIZE and key not in variant.changes]
    same = all(each.get(key) == paper[key] for each in settings for key in compared)
    is_papers = evidence.available_dataset(dataset) == dataset
    return "" if settings and same and is_papers else "needs the paper's size"


def min_decay(evidence: Evidence, minimum: float, row: str = "full") -> str:
    """Require that the sum of learning rate x weight decay over the steps reaches a minimum: decay had time to act."""
    smallest = min(map(decay_sum, evidence.row_records("cifar10", row).values()), default=0.0)
    return "" if smallest >= minimum else f"needs sum of lr * wd >= {minimum:g}, has {smallest:.2g}"


def min_epochs(evidence: Evidence, minimum: int, row: str = "full") -> str:
    """Require that every cell of a row trained for a minimum number of epochs."""
    shortest = min((record["epochs"] for record in evidence.row_records("cifar10", row).values()), default=0)
    return "" if shortest >= minimum else f"needs {minimum} epochs, has {shortest}"


def never_met(reason: str, evidence: Evidence) -> str:
    """Requirement that no results folder can meet: return its reason."""
    return reason


# Rules with intervals


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

    def no_data(self, evidence: Evidence) -> str:
        """Reason why there is no estimate: rows without a common seed."""
        samples = evidence.samples(self.dataset, self.metric)
        return f"no cells of {', '.join([row for row in self.weights if row not in samples] or self.weights)}"


@dataclass(frozen=True)
class RowMean:
    """Mean of a metric of one row over its seeds, with the row's own variance."""

    metric: str
    row: str = "full"
    dataset: str = "cifar10"

    def estimate(self, evidence: Evidence) -> Estimate | None:
        """Estimate the mean."""
        return mean(evidence.samples(self.dataset, self.metric).get(self.row, {}))

    def no_data(self, evidence: Evidence) -> str:
        """Reason why there is no estimate: a row without cells, or whose cells lack the metric."""
        what = f"measure '{self.metric}'" if evidence.row_records(self.dataset, self.row) else "cells"
        return f"no {what} of {self.row}"


Quantity = Contrast | RowMean


@dataclass(frozen=True)
class LiesBetween:
    """A quantity is between two limits, of which one may be infinite.

    With one finite limit the claim holds when the 95 % interval is on the claimed side; with two it holds by two
    one-sided tests at 5 % each. It fails when the 95 % interval is below `refuted_below` or above `refuted_above` and
    it does not hold.
    """

    quantity: Quantity
    low: float = -math.inf
    high: float = math.inf
    refuted_below: float = -math.inf
    refuted_above: float = math.inf
    comparisons: int = 1
    """Number of claims tested together; refutations are adjusted by Bonferroni's rule."""

    def __call__(self, evidence: Evidence) -> Finding:
        """Test the claim, then its refutation."""
        found = self.quantity.estimate(evidence)
        if found is None:
            dataset = evidence.available_dataset(self.quantity.dataset)
            return Finding("undecided", f"{self.quantity.no_data(evidence)} on {dataset}")
        numbers = (found.n, found.value, found.interval())
        if found.n < MIN_SEEDS:
            return Finding("undecided", f"n = {found.n}, needs {MIN_SEEDS}", *numbers)
        if found.freedom < 1:
            return Finding("undecided", "no variance known", *numbers)
        p_holds = max(found.above(self.low), found.below(self.high)) * (1 if self.two_sided else 2)
        p_refuted = 2 * self.comparisons * min(found.below(self.refuted_below), found.above(self.refuted_above))
        if min(p_holds, p_refuted) >= LEVEL:
            return Finding("undecided", f"{self._not_cleared()}: {self._seeds_needed(found)}", *numbers)
        holds, differs = p_holds < LEVEL, self.is_equivalence and p_refuted < LEVEL
        within = f"{'within' if holds else 'not shown to be within'} {self.margin_text()} of 0"
        why = f"{within}; differs from 0 by {found.value:+.2f}" if differs else ""
        return Finding("holds" if holds else "fails", why, *numbers)

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
        return f"the interval contains {(' or ' if self.two_sided else ' and ').join(finite)}"

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


def all_hold(rules: tuple[LiesBetween, ...], evidence: Evidence) -> Finding:
    """Worst finding of several one-sided rules; of undecided ones, that whose interval is least on the claimed side."""
    found = [(rule, rule(evidence)) for rule in rules]
    order = [(SEVERITY.index(each.verdict), rule.share_within(each.interval)) for rule, each in found]
    return found[order.index(min(order))][1]


def all_equivalent(rows: tuple[str, ...], margin: float, evidence: Evidence) -> Finding:
    """Test that every row is equivalent to the full model: verdict of the worst row, range of all differences."""
    found = {row: equivalent(Contrast(difference(row, "full")), margin, len(rows))(evidence) for row in rows}
    row, worst = min(found.items(), key=lambda item: SEVERITY.index(item[1].verdict))
    values = [each.ours for each in found.values() if isinstance(each.ours, float)]
    n = min(each.n for each in found.values())
    why = f"{row}: {worst.why or 'differs'}" if worst.verdict != "holds" else ""
    return Finding(worst.verdict, why, n, (min(values), max(values)) if values else None, worst.interval)


def less_stable(evidence: Evidence, row: str) -> Finding:
    """Test that a row is less stable than the full model: three more cells diverge, or its loss curve is rougher.

    Roughness of curves shorter than `MIN_CURVE` epochs reflects the initial fall and decides nothing.
    """
    diverged, other = (evidence.diverged_count("cifar10", name) for name in (row, "full"))
    found = above(Contrast(difference(row, "full"), "roughness"))(evidence)
    if diverged - other >= MIN_SEEDS:
        return Finding("holds", f"{diverged} cells diverged", diverged + found.n, found.ours, found.interval)
    epochs = [record["epochs"] for record in evidence.row_records("cifar10", row).values()]
    if found.n and min(epochs, default=MIN_CURVE) < MIN_CURVE:
        why = f"{diverged} cells diverged; roughness needs {MIN_CURVE} epochs, has {min(epochs)}"
        return replace(found, verdict="undecided", why=why)
    return found


def ratio_above(evidence: Evidence, weights: Mapping[str, float], metric: str, limit: float) -> Finding:
    """Test that the ratio of two rows exceeds a limit; `metric` is a logarithm."""
    found = above(Contrast(weights, metric), math.log(limit))(evidence)
    ours = math.exp(found.ours) if isinstance(found.ours, float) else None
    interval = (math.exp(found.interval[0]), math.exp(found.interval[1])) if found.interval else None
    return replace(found, why=found.why.replace(f"{math.log(limit):g}", f"{limit:g}"), ours=ours, interval=interval)


# Rules without intervals


def entries_between(metric: str, low: float, high: float, evidence: Evidence, *, row: str = "full") -> Finding:
    """Test that every entry of a list metric (one per step, shell or epoch), averaged over seeds, is in a range.

    Means are compared without intervals: these properties hardly differ between seeds.
    """
    found = evidence.lists("cifar10", row, metric)
    if not found:
        return Finding("undecided", f"no measure of {metric} on {row}")
    length = min(len(values) for values in found.values())
    means = [sum(values[i] for values in found.values()) / len(found) for i in range(length)]
    return _seedwise(low <= min(means) and max(means) <= high, len(found), (min(means), max(means)))


def seeds_between(low: float, high: float, evidence: Evidence, *, row: str) -> Finding:
    """Test that every seed of a row is in a range."""
    values = list(evidence.samples("cifar10", "test").get(row, {}).values())
    ours = (min(values), max(values)) if values else None
    is_true = ours is not None and low <= ours[0] and ours[1] <= high
    return _seedwise(is_true, len(values), ours, f" of {row}")


def ranges_apart(evidence: Evidence, row: str, reference: str) -> Finding:
    """Test that every seed of a row is above every seed of another."""
    lower = seeds_between(-math.inf, math.inf, evidence, row=reference)
    if lower.verdict != "holds" or not isinstance(lower.ours, tuple):
        return lower
    return seeds_between(math.nextafter(lower.ours[1], math.inf), math.inf, evidence, row=row)


def best_cell(rows: tuple[str, ...], metric: str, reached: float, margin: float, evidence: Evidence) -> Finding:
    """Test that the best single cell of several rows reaches a value within a margin."""
    samples = evidence.samples("cifar10", metric)
    found = [value for row in rows for value in samples.get(row, {}).values()]
    best = max(found, default=None)
    return _seedwise(best is not None and abs(best - reached) <= margin, len(found), best)


def seed_spread(rows: tuple[str, ...], limit: float, evidence: Evidence) -> Finding:
    """Test that in each of several rows the best and the worst seed differ by at most a limit."""
    samples = evidence.samples("cifar10", "test")
    spreads = {row: max(samples[row].values()) - min(samples[row].values()) for row in rows if row in samples}
    n = min((len(samples[row]) for row in spreads), default=0)
    if n < MIN_SEEDS or len(spreads) < len(rows):
        return Finding("undecided", f"n = {n}, needs {MIN_SEEDS} of every row", n, max(spreads.values(), default=None))
    row, widest = max(spreads.items(), key=lambda item: item[1])
    return Finding("holds" if widest <= limit else "fails", f"widest: {row}", n, widest)


def stable_class_order(limit: float, evidence: Evidence) -> Finding:
    """Test that for all pairs of seeds Spearman's correlation of the full model's class accuracies exceeds a limit."""
    records = evidence.row_records("cifar10", "full").values()
    classes = [list(record.get("per_class", {}).values()) for record in records]
    orders = [average_ranks(values) for values in classes if None not in values and len(set(values)) > 1]
    if len(orders) < MIN_SEEDS:
        return _seedwise(False, len(orders), None)
    smallest = min(statistics.correlation(one, other) for one, other in combinations(orders, 2))
    return _seedwise(smallest > limit, len(orders), smallest)


def average_ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1 for the smallest; equal values share the mean of their ranks."""
    return [1 + sum(other < value for other in values) + (values.count(value) - 1) / 2 for value in values]


def _seedwise(is_true: bool, n: int, ours: Number, whose: str = "") -> Finding:
    """Finding of a rule without intervals."""
    if n < MIN_SEEDS:
        return Finding("undecided", f"n = {n}{whose}, needs {MIN_SEEDS}", n, ours)
    return Finding("holds" if is_true else "fails", "", n, ours)
