"""Contrasts against the length of training, by the rules of docs/protocol.md."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from quatsphere.study.statistics import LEAST, LEVEL, Estimate
from quatsphere.train.evaluation import unpack_indices

Record = Mapping[str, Any]
AnyRecord = TypeVar("AnyRecord", bound=Mapping[str, Any])
Correct = NDArray[np.float64]
Rows = Mapping[str, Mapping[int, Correct]]
"""row -> seed -> correctness of every test image, in points: 100 or 0."""
Verdict = Literal["holds", "fails", "undecided"]


class Contrast(NamedTuple):
    """A weighted sum of rows, the paper's value in points, and what the paper claims about its sign or size."""

    title: str
    weights: Mapping[str, float]
    paper: float
    claim: Literal["negative", "positive", "equivalent"]


CONTRASTS: dict[str, Contrast] = {
    "transport": Contrast("transport -> identity", {"transport_identity": 1, "full": -1}, -4.3, "negative"),
    "routing": Contrast("routing -> uniform", {"routing_uniform": 1, "full": -1}, -0.2, "equivalent"),
    "interaction": Contrast(
        "interaction of both roles",
        {"both_off": 1, "transport_identity": -1, "routing_uniform": -1, "full": 1},
        -17.3,
        "negative",
    ),
    "attention": Contrast("attention over QSV", {"attention": 1, "full": -1}, 1.4, "positive"),
    "flat": Contrast("plane over sphere, attention", {"flat": 1, "attention": -1}, 3.8, "positive"),
    "value": Contrast("W_V -> identity, sphere", {"attention_value_identity": 1, "attention": -1}, -1.0, "negative"),
    "flat_value": Contrast("W_V -> identity, plane", {"flat_value_identity": 1, "flat": -1}, -1.0, "negative"),
    "kernel": Contrast(
        "transport against W_V",
        {"transport_identity": 1, "full": -1, "attention_value_identity": -1, "attention": 1},
        -3.3,
        "negative",
    ),
}
"""The confirmatory contrasts."""
MARGIN = 1.0
"""Points within which two accuracies count as equal."""
DATASET, SEEDS, TRAIN_IMAGES = "cifar10", (42, 1, 2, 3, 4), 45_000
"""What the protocol registers; cells of other seeds, as those of the rate search, do not count."""
LOG_THREE = math.log(3)
"""Lengths grow threefold."""
PAPER_IMAGES = 22_500_000
"""Images that the paper's runs see at most: 500 epochs of 45,000."""


@dataclass(frozen=True)
class Point:
    """A contrast at one length."""

    images: int
    estimate: Estimate
    by_seed: Mapping[int, float]
    image_error: float
    """The part of the standard error that the test images contribute."""


@dataclass(frozen=True)
class Curve:
    """A contrast at every length, its slope per factor e of images, and the verdicts."""

    contrast: Contrast
    points: tuple[Point, ...]
    levels: tuple[float, ...]
    """Significance level of each point after Holm's adjustment."""
    slope: Estimate | None

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Verdict at each length."""
        return tuple(verdict(self.contrast, p.estimate, a) for p, a in zip(self.points, self.levels, strict=True))

    @property
    def deciding(self) -> tuple[Point, ...]:
        """The two longest lengths with at least three seeds."""
        return tuple(p for p in self.points if p.estimate.n >= LEAST)[-2:]

    @property
    def trend(self) -> Verdict:
        """Verdict that both deciding lengths share, unless the slope points against it."""
        found = {v for v, p in zip(self.verdicts, self.points, strict=True) if p in self.deciding}
        if len(self.deciding) < 2 or len(found) > 1 or self.slope is None:
            return "undecided"
        (decided,) = found
        interval = self.slope.interval()
        if interval is None or decided == "undecided":
            return "undecided"
        return "undecided" if self.points_against(decided, interval[0] > 0, interval[1] < 0) else decided

    def points_against(self, decided: Verdict, rising: bool, falling: bool) -> bool:
        """Whether a slope that rises or falls speaks against a verdict."""
        if self.contrast.claim != "equivalent":
            to_claim, back = (falling, rising) if self.contrast.claim == "negative" else (rising, falling)
            return back if decided == "holds" else to_claim
        last = self.deciding[-1].estimate
        outwards, inwards = (rising, falling) if last.value > 0 else (falling, rising)
        if decided == "fails":
            return inwards
        ends, slope = last.interval(), self.slope
        apart = ends is not None and (ends[0] > 0 or ends[1] < 0)
        return outwards and apart and slope is not None and abs(last.value + slope.value * LOG_THREE) > MARGIN


def at_one_length(records: Sequence[AnyRecord]) -> list[AnyRecord]:
    """The cells of one length, for tables that have no column for it.

    It is the greatest length that the full model has three seeds of, or the greatest where it has none; cells without
    a length in their name are all of one length.
    """
    lengths: dict[int, int] = {}
    for record in records:
        epochs = length_of(record)
        if epochs is not None:
            lengths[epochs] = lengths.get(epochs, 0) + (record["variant"] == "full")
    if len(lengths) < 2:
        return list(records)
    chosen = max(lengths, key=lambda epochs: (lengths[epochs] >= LEAST, epochs))
    return [record for record in records if length_of(record) in (None, chosen)]


def length_of(record: Record) -> int | None:
    """The epochs in a cell's name, where it has them."""
    found = re.search(r"\.e(\d+)\.s\d+$", record["cell"])
    return None if found is None else int(found[1])


def rows_by_length(records: Iterable[Record]) -> dict[int, dict[str, dict[int, Correct]]]:
    """images seen -> row -> seed -> correctness of every test image, for the registered data set and seeds."""
    found: dict[int, dict[str, dict[int, Correct]]] = {}
    for record in records:
        registered = record["dataset"] == DATASET and record["seed"] in SEEDS
        if registered and record["status"] == "finished" and "predictions" in record:
            rows = found.setdefault(record["images_seen"], {})
            rows.setdefault(record["variant"], {})[record["seed"]] = correctness(record)
    return dict(sorted(found.items()))


def correctness(record: Record) -> Correct:
    """100 for every test image that a cell classified correctly, else 0; images in canonical order, by label."""
    labels = np.repeat(np.arange(len(record["test_counts"])), record["test_counts"])
    return 100.0 * (unpack_indices(record["predictions"]) == labels)


def points_of(contrast: Contrast, lengths: Mapping[int, Rows]) -> list[Point]:
    """A contrast at every length where its rows share a seed, with one seed variance for all lengths."""
    tables = {images: _shares(contrast, rows) for images, rows in lengths.items()}
    found = {images: table for images, table in tables.items() if table}
    means = [[float(share.mean()) for share in table.values()] for table in found.values()]
    freedom = sum(len(values) - 1 for values in means)
    squares = math.fsum((len(values) - 1) * float(np.var(values, ddof=1)) for values in means if len(values) > 1)
    variance = squares / freedom if freedom else math.nan
    return [_point(images, table, variance, freedom) for images, table in found.items()]


def _shares(contrast: Contrast, rows: Rows) -> dict[int, Correct]:
    """seed -> what every test image contributes to the contrast, for the seeds that all of its rows have."""
    weights = contrast.weights.items()
    seeds = sorted(set.intersection(*({*rows.get(row, {})} for row in contrast.weights)))
    return {seed: sum((w * rows[row][seed] for row, w in weights), np.zeros(())) for seed in seeds}


def _point(images: int, table: Mapping[int, Correct], variance: float, freedom: int) -> Point:
    shares = np.stack(list(table.values()))
    by_seed = dict(zip(table, shares.mean(1).tolist(), strict=True))
    error = math.sqrt(variance / len(table) + image_variance(shares)) if freedom else math.nan
    ends = min(by_seed.values()), max(by_seed.values())
    estimate = Estimate(float(shares.mean()), error, freedom, len(table), *ends)
    return Point(images, estimate, by_seed, math.sqrt(image_variance(shares)))


def image_variance(shares: NDArray[np.float64]) -> float:
    """Variance of the mean of a table (seeds, images) that the choice of test images contributes.

    s²(column means)/N - r²/(nN), at least 0, with the residual mean square r² of the two-way table; with one seed the
    residual cannot be told from the images and stays in.
    """
    n, count = shares.shape
    by_image = shares.mean(0)
    images = float(by_image.var(ddof=1)) / count
    if n < 2:
        return images
    residual = shares - shares.mean(1, keepdims=True) - by_image + shares.mean()
    mean_square = float(np.square(residual).sum()) / ((n - 1) * (count - 1))
    return max(images - mean_square / (n * count), 0.0)


def verdict(contrast: Contrast, estimate: Estimate, level: float = LEVEL) -> Verdict:
    """Verdict at one length from the interval of this level; undecided below three seeds."""
    interval = estimate.interval(level) if level > 0 else None
    if estimate.n < LEAST or interval is None:
        return "undecided"
    low, high = interval
    if contrast.claim == "equivalent":
        return (
            "holds" if low > -MARGIN and high < MARGIN else "fails" if high < -MARGIN or low > MARGIN else "undecided"
        )
    if contrast.claim == "negative":
        low, high = -high, -low
    small = min(MARGIN, abs(contrast.paper) / 2)
    if high < 0 or (low > -small and high < small):
        return "fails"
    return "holds" if low > 0 else "undecided"


def holm_levels(p_values: Sequence[float], level: float = LEVEL) -> list[float]:
    """Level of every test after Holm's step-down adjustment: the i-th smallest of m p-values is tested at level/(m-i).

    After the first p-value above its level, all larger ones keep that level.
    """
    levels = [0.0] * len(p_values)
    stopped: float | None = None
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        levels[index] = stopped or level / (len(p_values) - rank)
        if stopped is None and p_values[index] > levels[index]:
            stopped = levels[index]
    return levels


def p_value(contrast: Contrast, estimate: Estimate) -> float:
    """p of the two-sided test against 0, or twice that of the two one-sided tests of equivalence; 1 below three seeds.

    It is the smallest level whose interval would let the claim hold, up to its side.
    """
    if estimate.n < LEAST:
        return 1.0
    if contrast.claim == "equivalent":
        return min(1.0, 2 * estimate.equivalence(MARGIN))
    return min(1.0, 2 * min(estimate.above(0.0), estimate.below(0.0)))


def slope(points: Sequence[Point]) -> Estimate | None:
    """Slope of a contrast per factor e of images over lengths with three seeds or more, with a block for each seed.

    Its interval is over seeds alone: the test images count as fixed.
    """
    used = [p for p in points if p.estimate.n >= LEAST]
    cells = [(math.log(p.images), seed, value) for p in used for seed, value in p.by_seed.items()]
    seeds = sorted({seed for _, seed, _ in cells})
    kept = [seed for seed in seeds if sum(s == seed for _, s, _ in cells) > 1]
    groups = [[(x, y) for x, s, y in cells if s == seed] for seed in kept]
    centred = [
        (x - sum(a for a, _ in group) / len(group), y - sum(b for _, b in group) / len(group))
        for group in groups
        for x, y in group
    ]
    freedom = len(centred) - len(kept) - 1
    square = math.fsum(x * x for x, _ in centred)
    if freedom < 1 or square == 0:
        return None
    value = math.fsum(x * y for x, y in centred) / square
    residual = math.fsum((y - value * x) ** 2 for x, y in centred) / freedom
    return Estimate(value, math.sqrt(residual / square), freedom, len(kept))


def curves(records: Iterable[Record]) -> dict[str, Curve]:
    """Every confirmatory contrast that has a point; a contrast with a diverged cell has no verdict at that length."""
    records = list(records)
    lengths = rows_by_length(records)
    found = {name: points_of(contrast, lengths) for name, contrast in CONTRASTS.items()}
    lost = diverged(records)
    levels: dict[tuple[str, int], float] = {}
    for images in lengths:
        here = {name: p.estimate for name, points in found.items() for p in points if p.images == images}
        p_values = [p_value(CONTRASTS[name], here[name]) if name in here else 1.0 for name in CONTRASTS]
        adjusted = dict(zip(CONTRASTS, holm_levels(p_values), strict=True))
        spoilt = {name for name in here if any((row, images) in lost for row in CONTRASTS[name].weights)}
        levels |= {(name, images): 0.0 if name in spoilt else adjusted[name] for name in here}
    return {
        name: Curve(CONTRASTS[name], tuple(points), tuple(levels[name, p.images] for p in points), slope(points))
        for name, points in found.items()
        if points
    }


def diverged(records: Iterable[Record]) -> set[tuple[str, int]]:
    """(row, images) of the cells whose numbers stopped being finite."""
    return {
        (record["variant"], record["config"]["train.epochs"] * TRAIN_IMAGES)
        for record in records
        if record["status"] == "diverged" and record["dataset"] == DATASET
    }
