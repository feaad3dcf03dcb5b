"""Contrasts against length: variances over seeds and images, Holm levels, slopes, verdicts of the protocol."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quatsphere.study.length_contrasts import (
    CONTRASTS,
    Curve,
    CurvePoint,
    correctness,
    curves,
    holm_levels,
    length_tables,
    points_of,
    slope,
    verdict,
)
from quatsphere.study.results import at_one_length
from quatsphere.study.statistics import Estimate
from quatsphere.train.evaluation import pack_indices

IMAGES = (90_000, 270_000, 810_000, 2_565_000)


TRANSPORT = CONTRASTS["transport"]


def test_intervals_cover_the_mean_over_seeds_and_images() -> None:
    """Both are random: an interval over seeds only would miss far more often than one time in twenty."""
    rng, count = np.random.default_rng(0), 200
    missed = missed_by_seeds = total = 0
    for _ in range(300):
        lengths = {}
        for images, n in zip(IMAGES, (5, 5, 3), strict=False):
            by_image = rng.normal(0, 12, count)
            shares = rng.normal(0, 0.3, (n, 1)) + by_image + rng.normal(0, 10, (n, count))
            zero = np.zeros(count)
            rows = {"transport_identity": dict(enumerate(shares)), "full": dict.fromkeys(range(n), zero)}
            lengths[images] = rows
        for p in points_of(TRANSPORT, lengths):
            low, high = p.estimate.interval() or (math.nan, math.nan)
            missed += not low < 0 < high
            values = list(p.by_seed.values())
            half = 2.228 * np.std(values, ddof=1) / math.sqrt(len(values))
            missed_by_seeds += not abs(p.estimate.value) < half
            total += 1
    assert 0.01 < missed / total < 0.07
    assert missed_by_seeds / total > 0.15


def test_without_image_effect_the_interval_is_over_seeds() -> None:
    rows = {"transport_identity": {s: np.full(50, v) for s, v in enumerate((1.0, 2.0, 4.0))}}
    rows["full"] = dict.fromkeys(range(3), np.zeros(50))
    (found,) = points_of(TRANSPORT, {IMAGES[0]: rows})
    assert found.estimate.value == pytest.approx(7 / 3)
    assert found.estimate.error == pytest.approx(np.std([1, 2, 4], ddof=1) / math.sqrt(3))
    assert found.estimate.freedom == 2


def test_seed_variance_is_pooled_over_lengths() -> None:
    def rows(*values: float) -> dict[str, dict[int, np.ndarray]]:
        own = {seed: np.full(20, value) for seed, value in enumerate(values)}
        return {"transport_identity": own, "full": dict.fromkeys(own, np.zeros(20))}

    short, long = points_of(TRANSPORT, {IMAGES[0]: rows(1, 2, 3), IMAGES[1]: rows(4, 8)})
    variance = (2 * 1.0 + 1 * 8.0) / 3
    assert short.estimate.error == pytest.approx(math.sqrt(variance / 3))
    assert long.estimate.error == pytest.approx(math.sqrt(variance / 2))
    assert short.estimate.freedom == long.estimate.freedom == 3


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_levels_match_the_textbook_procedure(p_values: list[float]) -> None:
    """The textbook procedure: go through the sorted p-values, stop at the first above level/(m - i)."""
    order = np.argsort(p_values, kind="stable")
    rejected = set()
    for rank, index in enumerate(order):
        if p_values[index] > 0.05 / (len(p_values) - rank):
            break
        rejected.add(int(index))
    levels = holm_levels(p_values)
    assert {i for i, p in enumerate(p_values) if p <= levels[i]} == rejected
    assert all(0.05 / len(p_values) <= level <= 0.05 for level in levels)


def points(*by_length: list[float], error: float = 0.1) -> tuple[CurvePoint, ...]:
    return tuple(
        CurvePoint(
            images,
            Estimate(sum(values) / len(values), error, 4.0, len(values)),
            dict(enumerate(values)),
        )
        for images, values in zip(IMAGES, by_length, strict=False)
    )


def test_slope_of_a_line_with_blocks_of_seeds() -> None:
    lines = [[2.0 * math.log(images) + offset for offset in (0.0, 1.0, -3.0)] for images in IMAGES[:3]]
    found = slope(points(*lines))
    assert found is not None
    assert found.value == pytest.approx(2.0)
    assert found.error == pytest.approx(0, abs=1e-6)
    assert found.freedom == 9 - 3 - 1
    assert slope(points(lines[0])) is None
    again = slope(points(*lines, [100.0, -100.0]))
    assert again is not None
    assert again.value == pytest.approx(2.0)  # a length with two seeds does not count


@pytest.mark.parametrize(
    ("name", "value", "error", "expected"),
    [
        ("transport", -4.0, 0.3, "holds"),
        ("transport", 4.0, 0.3, "fails"),
        ("transport", -0.1, 0.1, "fails"),
        ("transport", -0.2, 0.05, "fails"),
        ("transport", -0.8, 0.5, "undecided"),
        ("attention", 1.0, 0.1, "holds"),
        ("attention", -2.0, 0.2, "fails"),
        ("routing", 0.3, 0.1, "holds"),
        ("routing", 2.0, 0.2, "fails"),
        ("routing", 0.9, 0.2, "undecided"),
    ],
)
def test_verdict_at_one_length(name: str, value: float, error: float, expected: str) -> None:
    assert verdict(CONTRASTS[name], Estimate(value, error, 4.0, 5)) == expected
    assert verdict(CONTRASTS[name], Estimate(value, error, 4.0, 2)) == "undecided"


def curve_of(name: str, *by_length: list[float]) -> Curve:
    found = points(*by_length)
    return Curve(CONTRASTS[name], found, (0.05,) * len(found), slope(found))


@pytest.mark.parametrize(
    ("name", "by_length", "expected"),
    [
        ("transport", ([-2.0, -2.1, -1.9], [-3.0, -3.1, -2.9], [-4.0, -4.1, -3.9]), "holds"),
        ("transport", ([-4.0, -4.1, -3.9], [-3.0, -3.1, -2.9], [-2.0, -2.1, -1.9]), "undecided"),
        ("attention", ([-2.0, -2.1, -1.9], [-3.0, -3.1, -2.9], [-4.0, -4.1, -3.9]), "fails"),
        ("attention", ([-4.0, -4.1, -3.9], [-3.0, -3.1, -2.9], [-2.0, -2.1, -1.9]), "undecided"),
        ("attention", ([-2.0, -2.1, -1.9], [1.0, 1.1, 0.9], [2.0, 2.1, 1.9]), "holds"),
        ("routing", ([0.2, 0.3, 0.1], [0.1, 0.2, 0.3], [0.2, 0.1, 0.3]), "holds"),
        ("routing", ([0.0, 0.01, -0.01], [0.25, 0.24, 0.26], [0.5, 0.51, 0.49]), "holds"),
        ("routing", ([-0.2, -0.21, -0.19], [0.2, 0.21, 0.19], [0.6, 0.61, 0.59]), "holds"),
        ("routing", ([0.0, 0.01, -0.01], [0.3, 0.31, 0.29], [0.71, 0.72, 0.7]), "undecided"),
        ("routing", ([0.6, 0.61, 0.59], [0.3, 0.31, 0.29], [-0.02, -0.01, -0.03]), "holds"),
        ("transport", ([-3.5, -3.6, -3.4], [-3.0, -3.1, -2.9], [-2.5, -2.6, -2.4], [0.1, 0.1]), "undecided"),
        ("transport", ([-3.5, -3.6, -3.4], [-3.0, -3.1, -2.9], [-2.5, -2.6, -2.4], [-0.1, -0.1]), "undecided"),
        ("transport", ([-2.0, -2.1, -1.9], [-3.0, -3.1, -2.9]), "holds"),
        ("transport", ([-3.0, -3.1, -2.9],), "undecided"),
    ],
)
def test_verdict_over_lengths(name: str, by_length: tuple[list[float], ...], expected: str) -> None:
    assert curve_of(name, *by_length).trend == expected


def make_cell(variant: str, seed: int, images: int, share: float) -> dict[str, object]:
    """A cell with 200 test images of two classes and an expected accuracy."""
    rng = np.random.default_rng([seed, images, len(variant)])
    labels = np.repeat([0, 1], 100)
    predicted = np.where(rng.random(200) < share, labels, 1 - labels)
    return {
        "status": "finished",
        "dataset": "cifar10",
        "variant": variant,
        "seed": seed,
        "images_seen": images,
        "test_counts": [100, 100],
        "predictions": pack_indices(torch.from_numpy(predicted)),
    }


def test_curves_and_tables_from_cells() -> None:
    cells = [
        make_cell(row, seed, images, share)
        for images in IMAGES[:2]
        for row, share in (("full", 0.9), ("transport_identity", 0.6), ("attention", 0.9))
        for seed in (42, 1, 2)
    ]
    found = curves(cells)
    assert set(found) == {"transport", "attention"}
    assert [p.images for p in found["transport"].points] == list(IMAGES[:2])
    for p in found["transport"].points:
        rows = {row: [c for c in cells if c["variant"] == row and c["images_seen"] == p.images] for row in ("full",)}
        assert p.estimate.n == len(rows["full"]) == 3
        assert p.estimate.value == pytest.approx(sum(p.by_seed.values()) / 3)
    assert found["transport"].trend == "holds"
    accuracy, contrasts, beside = length_tables(cells)
    assert not beside.rows
    assert accuracy.columns == ("row", "90,000 images", "270,000 images")
    mean = np.mean([correctness(c).mean() for c in cells if c["variant"] == "full" and c["images_seen"] == 90_000])
    assert accuracy.rows[0][1].startswith(f"{mean:.1f} (")
    assert contrasts.rows[0][-1].startswith("holds, judged on 90,000 and 270,000 together; ")
    assert contrasts.rows[0][2].endswith(", 3, holds")


def test_only_registered_seeds_and_finished_cells_count() -> None:
    cells = [make_cell(row, seed, 90_000, 0.5) for row in ("full", "transport_identity") for seed in (42, 1, 2, 1001)]
    assert curves(cells)["transport"].points[0].estimate.n == 3
    lost = {"status": "diverged", "dataset": "cifar10", "variant": "full", "seed": 3, "config": {"train.epochs": 2}}
    assert curves([*cells, lost])["transport"].verdicts == ("undecided",)


def test_exploratory_table_has_other_rows() -> None:
    cells = [
        make_cell(row, seed, 270_000, share) for row, share in (("full", 0.9), ("plain", 0.5)) for seed in (42, 1, 2)
    ]
    (line,) = length_tables(cells)[2].rows
    assert line[:2] == ("QSV without its asymmetries", "full")
    assert line[2].endswith(", 3")


def with_epochs(cell: dict[str, object], epochs: int) -> dict[str, object]:
    name = f"cifar10.{cell['variant']}.e{epochs}.s{cell['seed']}"
    return {**cell, "cell": name}


def test_one_length_is_chosen_for_other_tables() -> None:
    """The greatest length with three seeds of the full model; a single longer cell is ignored."""
    short = [with_epochs(make_cell("full", seed, 90_000, 0.5), 2) for seed in (42, 1, 2)]
    long = [with_epochs(make_cell("full", seed, 270_000, 0.5), 6) for seed in (42, 1, 2)]
    assert at_one_length([*short, *long]) == long
    assert at_one_length([*short, long[0]]) == short
    plain = [{**cell, "cell": f"cifar10.full.s{cell['seed']}"} for cell in short]
    assert at_one_length([*plain, long[0]]) == [*plain, long[0]]
