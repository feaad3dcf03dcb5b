"""Closed forms, with scipy as the oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from quatsphere.errors import ConfigError
from quatsphere.study.statistics import (
    OWN_VARIANCE_SEEDS,
    Estimate,
    estimate_contrast,
    mean,
    pooled_variance,
    t_cdf,
    t_quantile,
)

GENERATOR = np.random.default_rng(0)


def make_samples(rows: int, seeds: int, effect: float = 1.0) -> dict[str, dict[int, float]]:
    values = GENERATOR.normal(size=(rows, seeds)) + effect * GENERATOR.normal(size=seeds)
    return {f"row{i}": {seed: float(values[i, seed]) for seed in range(seeds)} for i in range(rows)}


def test_two_rows_are_the_paired_t_test() -> None:
    samples = make_samples(2, 6)
    found = estimate_contrast(samples, {"row0": 1.0, "row1": -1.0})
    assert found is not None
    oracle = stats.ttest_rel(list(samples["row0"].values()), list(samples["row1"].values()))
    assert found.interval() == pytest.approx(tuple(oracle.confidence_interval(0.95)))
    assert 2 * min(found.above(0), found.below(0)) == pytest.approx(oracle.pvalue)
    assert (found.freedom, found.n) == (5, 6)


def test_pooled_variance_is_the_residual_of_the_two_way_table() -> None:
    samples = make_samples(4, 5)
    table = np.array([list(values.values()) for values in samples.values()])
    residual = table - table.mean(1, keepdims=True) - table.mean(0, keepdims=True) + table.mean()
    variance, freedom = pooled_variance(samples)
    assert freedom == 3 * 4
    assert variance == pytest.approx((residual**2).sum() / freedom)


def test_rows_with_fewer_seeds() -> None:
    samples = make_samples(3, 5)
    samples["row2"] = {seed: samples["row2"][seed] for seed in (0, 1, 2)}
    _, freedom = pooled_variance(samples)
    assert freedom == 13 - (3 + 5 - 1)
    found = estimate_contrast(samples, {"row2": 1.0, "row0": -1.0})
    assert found is not None
    assert found.n == 3
    assert found.value == pytest.approx(np.mean([samples["row2"][s] - samples["row0"][s] for s in range(3)]))


def test_interval_of_an_interaction() -> None:
    samples = make_samples(4, 5)
    weights = {"row0": 1.0, "row1": -1.0, "row2": -1.0, "row3": 1.0}
    found = estimate_contrast(samples, weights)
    assert found is not None
    variance, freedom = pooled_variance(samples)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(4 * variance / 5)
    assert found.interval() == pytest.approx((found.value - half, found.value + half))


@given(st.lists(st.floats(-50, 50), min_size=5, max_size=5), st.integers(0, 2**31))
def test_common_seed_effects_cancel(shifts: list[float], seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(3, 5))
    plain = {f"row{i}": dict(enumerate(map(float, values[i]))) for i in range(3)}
    moved = {row: {s: value + shifts[s] for s, value in of.items()} for row, of in plain.items()}
    weights = {"row0": 1.0, "row1": -0.5, "row2": -0.5}
    one, other = estimate_contrast(plain, weights), estimate_contrast(moved, weights)
    assert one is not None
    assert other is not None
    assert other.value == pytest.approx(one.value, abs=1e-9)
    assert other.error == pytest.approx(one.error, abs=1e-9)


def test_mean_is_the_one_sample_interval() -> None:
    values = {seed: float(x) for seed, x in enumerate(GENERATOR.normal(50, 1, size=4))}
    found = mean(values)
    assert found is not None
    oracle = stats.ttest_1samp(list(values.values()), 0).confidence_interval(0.95)
    assert found.interval() == pytest.approx(tuple(oracle))
    assert (found.minimum, found.maximum) == (min(values.values()), max(values.values()))


@pytest.mark.parametrize("value", [-0.8, 0.0, 0.3, 0.97])
@pytest.mark.parametrize("margin", [0.5, 1.0])
def test_equivalence_is_the_90_percent_interval_within_the_margin(value: float, margin: float) -> None:
    found = Estimate(value, 0.2, 12, 5)
    interval = found.interval(0.10)
    assert interval is not None
    inside = -margin < interval[0] and interval[1] < margin
    assert (found.equivalence(margin) < 0.05) == inside
    lower = stats.t.sf((value + margin) / 0.2, 12)
    upper = stats.t.cdf((value - margin) / 0.2, 12)
    assert found.equivalence(margin) == pytest.approx(max(lower, upper))


def test_student_t() -> None:
    for freedom in (1, 3, 40):
        assert t_quantile(0.975, freedom) == pytest.approx(stats.t.ppf(0.975, freedom))
        assert t_cdf(1.3, freedom) == pytest.approx(stats.t.cdf(1.3, freedom))


def test_one_seed_has_no_interval_and_decides_nothing() -> None:
    found = estimate_contrast({"a": {1: 3.0}, "b": {1: 1.0}}, {"a": 1.0, "b": -1.0})
    assert found is not None
    assert found.value == 2.0
    assert found.interval() is None
    assert found.above(0) == found.equivalence(100) == 1.0


def test_rows_without_a_common_seed_have_no_contrast() -> None:
    assert estimate_contrast({"a": {1: 3.0}, "b": {2: 1.0}}, {"a": 1.0, "b": -1.0}) is None
    assert estimate_contrast({}, {"a": 1.0, "b": -1.0}) is None
    assert mean({}) is None
    assert pooled_variance({})[1] == 0


def test_weights_must_sum_to_zero() -> None:
    with pytest.raises(ConfigError, match="sum to zero"):
        estimate_contrast(make_samples(2, 3), {"row0": 1.0, "row1": -0.5})


def test_coverage_of_intervals() -> None:
    """Simulate 2,000 studies of 6 rows x 5 seeds: 95 % of the intervals contain the true difference, within 3 sigma."""
    hits = 0
    for _ in range(2000):
        found = estimate_contrast(make_samples(6, 5, effect=3.0), {"row0": 1.0, "row1": -1.0})
        assert found is not None
        interval = found.interval()
        assert interval is not None
        hits += interval[0] < 0 < interval[1]
    assert abs(hits / 2000 - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 2000)


def test_difference_has_its_own_variance_with_twelve_seeds() -> None:
    """The variance of two correlated rows does not depend on a noisy third row."""
    samples = make_samples(2, OWN_VARIANCE_SEEDS)
    samples["row1"] = {seed: value + 0.01 * samples["row1"][seed] for seed, value in samples["row0"].items()}
    samples["wild"] = {seed: float(x) for seed, x in enumerate(GENERATOR.normal(scale=100, size=OWN_VARIANCE_SEEDS))}
    found = estimate_contrast(samples, {"row1": 1.0, "row0": -1.0})
    assert found is not None
    oracle = stats.ttest_rel(list(samples["row1"].values()), list(samples["row0"].values()))
    assert found.interval() == pytest.approx(tuple(oracle.confidence_interval(0.95)))
    fewer = {row: {seed: of[seed] for seed in range(OWN_VARIANCE_SEEDS - 1)} for row, of in samples.items()}
    pooled = estimate_contrast(fewer, {"row1": 1.0, "row0": -1.0})
    assert pooled is not None
    assert pooled.error > 100 * found.error


@given(st.permutations(["row0", "row1", "row2", "row3"]), st.lists(st.integers(-5, 5), min_size=3, max_size=3))
def test_contrast_of_equal_seeds_is_a_t_test(order: list[str], some: list[int]) -> None:
    """For any weights and any reference row."""
    samples = make_samples(4, 15)
    weights = {row: float(w) for row, w in zip(order, (*some, -sum(some)), strict=True)}
    found = estimate_contrast(samples, weights)
    assert found is not None
    by_seed = [sum(w * samples[row][seed] for row, w in weights.items()) for seed in range(15)]
    assert found.value == pytest.approx(np.mean(by_seed), abs=1e-9)
    assert found.error == pytest.approx(np.std(by_seed, ddof=1) / math.sqrt(15), abs=1e-9)
    assert found.freedom == pytest.approx(14)


def test_each_difference_uses_all_of_its_seeds() -> None:
    """transport - full + 10 (uniform - full): the second difference uses all its seeds, with Welch's formula."""
    noise = np.random.default_rng(3).normal(size=(2, 60))
    full = dict.fromkeys(range(60), 0.0)
    uniform, transport = dict(enumerate(noise[0])), {seed: float(noise[1, seed]) for seed in range(45, 60)}
    samples = {"full": full, "uniform": uniform, "transport": transport}
    found = estimate_contrast(samples, {"transport": 1.0, "uniform": 10.0, "full": -11.0})
    assert found is not None
    assert (found.n, found.balanced, found.seeds_to_clear(0.1)) == (15, False, None)
    assert found.value == pytest.approx(noise[1, 45:].mean() + 10 * noise[0].mean())
    parts = 45 * np.var(noise[0, :45] / 6, ddof=1), 15 * np.var(noise[0, 45:] / 6 + noise[1, 45:] / 15, ddof=1)
    assert found.error**2 == pytest.approx(sum(parts))
    assert found.freedom == pytest.approx(sum(parts) ** 2 / (parts[0] ** 2 / 44 + parts[1] ** 2 / 14))


def test_group_of_one_seed_is_left_out() -> None:
    samples = make_samples(3, 20)
    lone = {**samples, "row2": {seed: samples["row2"][seed] for seed in range(19)}}
    weights = {"row0": 1.0, "row1": 1.0, "row2": -2.0}
    fewer = {row: {seed: of[seed] for seed in range(19)} for row, of in samples.items()}
    one, other = estimate_contrast(lone, weights), estimate_contrast(fewer, weights)
    assert one is not None
    assert other is not None
    assert (one.value, one.error, one.freedom) == pytest.approx((other.value, other.error, other.freedom))


def test_coverage_of_intervals_with_correlated_rows() -> None:
    """Simulate 2,000 studies: two rows with common noise and 40 seeds, a third with 15; 95 % within 3 sigma."""
    generator, hits = np.random.default_rng(5), 0
    for _ in range(2000):
        common, (a, b), c = generator.normal(size=40), 0.3 * generator.normal(size=(2, 40)), generator.normal(size=15)
        samples = {"a": dict(enumerate(common + a)), "b": dict(enumerate(common + b)), "c": dict(enumerate(c))}
        found = estimate_contrast(samples, {"c": 1.0, "b": 10.0, "a": -11.0})
        assert found is not None
        interval = found.interval()
        assert interval is not None
        hits += interval[0] < 0 < interval[1]
    assert abs(hits / 2000 - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 2000)
