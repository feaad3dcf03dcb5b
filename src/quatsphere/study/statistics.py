"""Estimates with intervals from the values of single cells, paired by seed.

The model is y_{row,seed} = row + seed + noise. A seed determines initial weights, data order and augmentation of every
row, so it is a block. With few seeds the noise has one variance for all cells of a data set, estimated from the
residuals of the least-squares fit; with two rows that is the paired t-test. With OWN_VARIANCE_SEEDS or more, each
difference between rows has its own variance and covariances: the difference of two rows that compute nearly the same
has a smaller variance than one common noise would give.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from quatsphere.errors import ConfigError

Verdict = Literal["holds", "fails", "undecided"]
Samples = Mapping[str, Mapping[int, float]]
"""row -> seed -> value."""
MIN_SEEDS = 3
"""Minimum number of seeds for a verdict."""
LEVEL = 0.05
"""Significance level of every test; intervals cover 1 - LEVEL."""
OWN_VARIANCE_SEEDS = 12
"""Minimum number of seeds for a difference to have its own variance."""


@dataclass(frozen=True)
class Estimate:
    """A mean or a contrast with its standard error and the degrees of freedom of that error."""

    value: float
    error: float
    freedom: float
    n: int
    """Number of seeds; the smallest one if the parts have different numbers."""
    minimum: float | None = None
    maximum: float | None = None
    """Range over the seeds."""
    balanced: bool = True
    """True if all parts have n seeds."""

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """Two-sided t-interval; None if the variance is unknown."""
        if self.freedom < 1:
            return None
        half = t_quantile(1 - level / 2, self.freedom) * self.error
        return self.value - half, self.value + half

    @property
    def differs(self) -> bool:
        """True if the interval is on one side of 0."""
        ends = self.interval()
        return ends is not None and (ends[0] > 0 or ends[1] < 0)

    def equivalence(self, margin: float) -> float:
        """p-value of the two one-sided tests of |value| < margin."""
        return max(self.above(-margin), self.below(margin))

    def seeds_to_clear(self, distance: float, level: float = LEVEL) -> int | None:
        """Approximate number of seeds with which the interval ends within this distance if the value stays the same.

        None if the distance is not positive, or the parts have different numbers of seeds.
        """
        if self.freedom < 1 or distance <= 0 or not self.balanced:
            return None
        return math.ceil(self.n * (t_quantile(1 - level / 2, self.freedom) * self.error / distance) ** 2)

    def above(self, limit: float) -> float:
        """p-value of the one-sided test of value > limit."""
        return self._tail(self.value - limit)

    def below(self, limit: float) -> float:
        """p-value of the one-sided test of value < limit."""
        return self._tail(limit - self.value)

    def _tail(self, distance: float) -> float:
        if self.freedom < 1:
            return 1.0
        if self.error == 0:
            return 0.0 if distance > 0 else 1.0
        return 1 - t_cdf(distance / self.error, self.freedom)


def pooled_variance(samples: Samples) -> tuple[float, int]:
    """Residual variance of row + seed over all cells, and its degrees of freedom (0: no estimate)."""
    cells = [(row, seed, value) for row, values in samples.items() for seed, value in values.items()]
    if not cells:
        return math.nan, 0
    rows = {row: i for i, row in enumerate(dict.fromkeys(row for row, _, _ in cells))}
    seeds = {seed: i for i, seed in enumerate(dict.fromkeys(seed for _, seed, _ in cells))}
    design = np.zeros((len(cells), len(rows) + len(seeds)))
    for line, (row, seed, _) in enumerate(cells):
        design[line, rows[row]] = design[line, len(rows) + seeds[seed]] = 1
    values = np.array([value for _, _, value in cells])
    solution, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    freedom = len(cells) - int(rank)
    if freedom < 1:
        return math.nan, 0
    return float(np.square(values - design @ solution).sum()) / freedom, freedom


def estimate_contrast(samples: Samples, weights: Mapping[str, float]) -> Estimate | None:
    """Σ weight * row; weights sum to zero, so the seeds' effects cancel.

    A difference has weights 1 and -1, an interaction 1, -1, -1, 1. With few seeds the sum is over those that all rows
    have, with variance Σ weight² σ² / n and σ² pooled over all cells. With OWN_VARIANCE_SEEDS it is a sum of
    differences from the row with the most seeds (of several, the one with the largest weight).
    """
    if abs(sum(weights.values())) > 1e-9:
        raise ConfigError(f"the weights of a contrast must sum to zero: got {dict(weights)}")
    common = by_seed(samples, weights)
    if not common:
        return None
    extremes = min(common.values()), max(common.values())
    reference = max(weights, key=lambda row: (len(samples[row]), abs(weights[row])))
    pairs = [(samples[row], samples[reference]) for row in weights if row != reference]
    differences = [{seed: own[seed] - other[seed] for seed in own if seed in other} for own, other in pairs]
    if min(map(len, differences)) >= OWN_VARIANCE_SEEDS:
        others = [weight for row, weight in weights.items() if row != reference]
        return _with_own_variance(differences, others, extremes)
    variance, freedom = pooled_variance(samples)
    spread = sum(weight**2 for weight in weights.values())
    error = math.sqrt(spread * variance / len(common)) if freedom else math.nan
    return Estimate(sum(common.values()) / len(common), error, freedom, len(common), *extremes)


def by_seed(samples: Samples, weights: Mapping[str, float]) -> dict[int, float]:
    """seed -> Σ weight * row, over the seeds that all rows have."""
    common = sorted(set.intersection(*({*samples.get(row, {})} for row in weights)))
    return {seed: sum(weight * samples[row][seed] for row, weight in weights.items()) for seed in common}


def _with_own_variance(
    differences: Sequence[Mapping[int, float]], weights: Sequence[float], extremes: tuple[float, float]
) -> Estimate:
    """Σ weight * mean of a difference, each over all of its seeds, as a sum over seeds of y = Σ weight * value / n.

    Seeds are independent, and seeds with the same set of differences are identically distributed: a group g of m_g
    seeds adds m_g s_g² to the variance of the sum, with the variance s_g² of its y, and Welch's formula gives the
    degrees of freedom. If all seeds have all differences this is the paired t-test. Groups of one seed are left out.
    """
    groups: dict[tuple[bool, ...], list[int]] = {}
    for seed in sorted(set.union(*map(set, differences))):
        groups.setdefault(tuple(seed in values for values in differences), []).append(seed)
    kept = [seeds for seeds in groups.values() if len(seeds) > 1]
    used = set[int]().union(*kept)
    differences = [{seed: value for seed, value in values.items() if seed in used} for values in differences]
    terms = [(weight / len(values), values) for weight, values in zip(weights, differences, strict=True)]
    y = {seed: math.fsum(factor * values.get(seed, 0.0) for factor, values in terms) for seed in used}
    parts = [(len(seeds), len(seeds) * float(np.var([y[seed] for seed in seeds], ddof=1))) for seeds in kept]
    variance = math.fsum(part for _, part in parts)
    spread = math.fsum(part**2 / (count - 1) for count, part in parts)
    freedom = variance**2 / spread if spread > 0 else float(min(count for count, _ in parts) - 1)
    counts = {len(values) for values in differences}
    value, error = math.fsum(y.values()), math.sqrt(variance)
    return Estimate(value, error, freedom, min(counts), *extremes, balanced=len(counts) == 1)


def mean(values: Mapping[int, float]) -> Estimate | None:
    """Mean of a row over its seeds with the row's own standard deviation, which includes the effect of the seeds."""
    if not values:
        return None
    numbers = list(values.values())
    n = len(numbers)
    centre = math.fsum(numbers) / n
    error = math.sqrt(math.fsum((x - centre) ** 2 for x in numbers) / (n - 1) / n) if n > 1 else math.nan
    return Estimate(centre, error, n - 1, n, min(numbers), max(numbers))


def t_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t distribution."""
    return float(_special().stdtrit(freedom, probability))


def t_cdf(value: float, freedom: float) -> float:
    """Cumulative distribution function of Student's t distribution."""
    return float(_special().stdtr(freedom, value))


def _special() -> Any:
    try:
        from scipy import special
    except ImportError as error:
        raise ConfigError("intervals need scipy; pip install 'quatsphere[study]'") from error
    return special
