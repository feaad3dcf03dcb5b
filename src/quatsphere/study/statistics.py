"""From the numbers of single cells to estimates with intervals, paired by seed.

The model is y_{row,seed} = row + seed + noise. A seed decides initial weights, data order and augmentation of every row
alike, so it is a block. With few seeds the noise has one variance for all cells of a data set, which is estimated from
the residuals of the least-squares fit; with two rows that is the paired t-test. With ENOUGH seeds the differences
between rows tell their own variances and covariances, which need not be those of others: two rows that compute nearly
the same move together, and their difference is known better than one noise for all would have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quatsphere.errors import ConfigError

Samples = Mapping[str, Mapping[int, float]]
"""row -> seed -> value."""
LEAST = 3
"""Seeds below which nothing is decided."""
LEVEL = 0.05
"""Significance of every test; intervals cover 1 - LEVEL."""
ENOUGH = 12
"""Seeds of every difference from which on its variance is its own."""


@dataclass(frozen=True)
class Estimate:
    """A mean or a contrast: its value, its standard error, and the degrees of freedom of that."""

    value: float
    error: float
    freedom: float
    n: int
    """Seeds it rests on."""
    least: float | None = None
    most: float | None = None
    """Range over the seeds."""
    even: bool = True
    """Whether all of its parts rest on n seeds; else n is the least."""

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """The two-sided t-interval; none where the variance is not known."""
        if self.freedom < 1:
            return None
        half = t_quantile(1 - level / 2, self.freedom) * self.error
        return self.value - half, self.value + half

    def equivalence(self, margin: float) -> float:
        """p of the two one-sided tests: small means that the value lies within +-margin."""
        return max(self.above(-margin), self.below(margin))

    def seeds_to_clear(self, distance: float, level: float = LEVEL) -> int | None:
        """About how many seeds it takes for the interval to end within this distance, if the value stays as it is; of
        parts with unlike numbers of seeds nothing is said."""
        if self.freedom < 1 or distance <= 0 or not self.even:
            return None
        return math.ceil(self.n * (t_quantile(1 - level / 2, self.freedom) * self.error / distance) ** 2)

    def above(self, limit: float) -> float:
        """p of the one-sided test: small means that the value is above the limit."""
        return self._tail(self.value - limit)

    def below(self, limit: float) -> float:
        """p of the one-sided test: small means that the value is below the limit."""
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


def contrast(samples: Samples, weights: Mapping[str, float]) -> Estimate | None:
    """Σ weight * row; weights sum to zero, so the seeds' effects cancel.

    A difference has weights 1 and -1, an interaction 1, -1, -1, 1. With few seeds: over those that all rows have, with
    variance Σ weight² σ² / n and σ² pooled over all cells. With ENOUGH: as a sum of differences from the row with the
    most seeds (of several the one that weighs most), see `_by_own_variance`.
    """
    if abs(sum(weights.values())) > 1e-9:
        raise ConfigError(f"the weights of a contrast sum to zero: got {dict(weights)}")
    common = by_seed(samples, weights)
    if not common:
        return None
    limits = min(common.values()), max(common.values())
    reference = max(weights, key=lambda row: (len(samples[row]), abs(weights[row])))
    differences = [_paired(samples, row, reference) for row in weights if row != reference]
    if min(map(len, differences)) >= ENOUGH:
        shares = [weight for row, weight in weights.items() if row != reference]
        return _by_own_variance(differences, shares, limits)
    variance, freedom = pooled_variance(samples)
    spread = sum(weight**2 for weight in weights.values())
    error = math.sqrt(spread * variance / len(common)) if freedom else math.nan
    return Estimate(sum(common.values()) / len(common), error, freedom, len(common), *limits)


def by_seed(samples: Samples, weights: Mapping[str, float]) -> dict[int, float]:
    """seed -> Σ weight * row, over the seeds that all rows have."""
    common = sorted(set.intersection(*({*samples.get(row, {})} for row in weights)))
    return {seed: sum(weight * samples[row][seed] for row, weight in weights.items()) for seed in common}


def _paired(samples: Samples, row: str, reference: str) -> dict[int, float]:
    """seed -> row minus reference, over the seeds that both have."""
    there = samples[reference]
    return {seed: value - there[seed] for seed, value in samples[row].items() if seed in there}


def _by_own_variance(
    differences: Sequence[Mapping[int, float]], shares: Sequence[float], limits: tuple[float, float]
) -> Estimate:
    """Σ share * mean of a difference, each over all of its own seeds, as a sum over seeds of y = Σ share * value / n.

    Seeds are independent, and those that have the same differences are alike: a group g of m_g seeds adds m_g s_g² with
    the variance s_g² of its y to that of the sum, and Welch gives the degrees of freedom. Where all seeds have all
    differences that is the paired t-test. A seed without its like tells no variance and is left out.
    """
    groups: dict[tuple[bool, ...], list[int]] = {}
    for seed in sorted(set.union(*map(set, differences))):
        groups.setdefault(tuple(seed in of for of in differences), []).append(seed)
    kept = [seeds for seeds in groups.values() if len(seeds) > 1]
    used = set[int]().union(*kept)
    differences = [{seed: value for seed, value in of.items() if seed in used} for of in differences]
    terms = [(share / len(of), of) for share, of in zip(shares, differences, strict=True)]
    y = {seed: math.fsum(share * of.get(seed, 0.0) for share, of in terms) for seed in used}
    parts = [(len(seeds), len(seeds) * float(np.var([y[seed] for seed in seeds], ddof=1))) for seeds in kept]
    variance = math.fsum(part for _, part in parts)
    spread = math.fsum(part**2 / (count - 1) for count, part in parts)
    freedom = variance**2 / spread if spread > 0 else float(min(count for count, _ in parts) - 1)
    counts = {len(of) for of in differences}
    return Estimate(math.fsum(y.values()), math.sqrt(variance), freedom, min(counts), *limits, even=len(counts) == 1)


def mean(values: Mapping[int, float]) -> Estimate | None:
    """A row's own mean over its seeds, with the row's own standard deviation: here the seeds' effects count."""
    if not values:
        return None
    numbers = list(values.values())
    n = len(numbers)
    centre = math.fsum(numbers) / n
    error = math.sqrt(math.fsum((x - centre) ** 2 for x in numbers) / (n - 1) / n) if n > 1 else math.nan
    return Estimate(centre, error, n - 1, n, min(numbers), max(numbers))


def t_quantile(probability: float, freedom: float) -> float:
    """Student's t below which a share `probability` lies."""
    return float(_special().stdtrit(freedom, probability))


def t_cdf(value: float, freedom: float) -> float:
    """Share of Student's t below a value."""
    return float(_special().stdtr(freedom, value))


def _special() -> Any:
    try:
        from scipy import special
    except ImportError as error:
        raise ConfigError("intervals need scipy; pip install 'quatsphere[study]'") from error
    return special
