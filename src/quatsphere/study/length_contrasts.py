"""Contrasts against the length of training, by the rules of docs/protocol.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quatsphere.errors import CheckpointError
from quatsphere.study.results import CellRecord
from quatsphere.study.statistics import LEVEL, MIN_SEEDS, Estimate, Verdict
from quatsphere.study.table_formats import NONE, Table, format_estimate
from quatsphere.study.variants import TRAIN_IMAGES, VARIANTS
from quatsphere.train.evaluation import unpack_indices

Correct = NDArray[np.float64]
CorrectByRow = Mapping[str, Mapping[int, Correct]]
"""row -> seed -> correctness of every test image, in points: 100 or 0."""


class LengthContrast(NamedTuple):
    """A weighted sum of rows, the paper's value in points, its claim about the sign or size, and its statement."""

    title: str
    weights: Mapping[str, float]
    paper: float
    claim: Literal["negative", "positive", "equivalent"]
    statement: str = ""


CONTRASTS: dict[str, LengthContrast] = {
    "transport": LengthContrast("transport -> identity", {"transport_identity": 1, "full": -1}, -4.3, "negative",
        "removing transport costs accuracy"),
    "routing": LengthContrast("routing -> uniform", {"routing_uniform": 1, "full": -1}, -0.2, "equivalent",
        "uniform routing does not change accuracy"),
    "interaction": LengthContrast("interaction of both roles",
        {"both_off": 1, "transport_identity": -1, "routing_uniform": -1, "full": 1}, -17.3, "negative",
        "removing both costs more than the sum of removing each"),
    "attention": LengthContrast("attention over QSV", {"attention": 1, "full": -1}, 1.4, "positive",
        "matched attention is more accurate than QSV"),
    "flat": LengthContrast("plane over sphere, attention", {"flat": 1, "attention": -1}, 3.8, "positive",
        "attention is more accurate on the flat lattice"),
    "value": LengthContrast("W_V -> identity, sphere",
        {"attention_value_identity": 1, "attention": -1}, -1.0, "negative",
        "attention loses accuracy without its value projection, on the sphere"),
    "flat_value": LengthContrast("W_V -> identity, plane", {"flat_value_identity": 1, "flat": -1}, -1.0, "negative",
        "the same on the flat lattice"),
    "kernel": LengthContrast("transport against W_V",
        {"transport_identity": 1, "full": -1, "attention_value_identity": -1, "attention": 1}, -3.3, "negative",
        "QSV loses more without transport than attention without its value projection"),
}  # fmt: skip
"""The confirmatory contrasts."""
MARGIN = 1.0
"""Points within which two accuracies count as equal."""
DATASET, SEEDS = "cifar10", (42, 1, 2, 3, 4)
"""Registered in the protocol; cells with other seeds, such as those of the learning-rate search, are ignored."""
LOG_THREE = math.log(3)
"""Each length is about three times the previous one."""
PAPER_IMAGES = 22_500_000
"""Maximum number of training images of a run of the paper: 500 epochs of 45,000."""


@dataclass(frozen=True)
class CurvePoint:
    """A contrast at one length."""

    images: int
    estimate: Estimate
    by_seed: Mapping[int, float]


@dataclass(frozen=True)
class Curve:
    """A contrast at every length, its slope per factor e of images, and the verdicts."""

    contrast: LengthContrast
    points: tuple[CurvePoint, ...]
    levels: tuple[float, ...]
    """Significance level of each point after Holm's adjustment."""
    slope: Estimate | None

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Verdict at each length."""
        return tuple(verdict(self.contrast, p.estimate, a) for p, a in zip(self.points, self.levels, strict=True))

    @property
    def deciding(self) -> tuple[CurvePoint, ...]:
        """The two longest lengths with at least three seeds."""
        return tuple(p for p in self.points if p.estimate.n >= MIN_SEEDS)[-2:]

    @property
    def trend(self) -> Verdict:
        """Verdict of both deciding lengths if they agree and the slope does not contradict it."""
        found = {v for v, p in zip(self.verdicts, self.points, strict=True) if p in self.deciding}
        if len(self.deciding) < 2 or len(found) > 1 or self.slope is None:
            return "undecided"
        (decided,) = found
        interval = self.slope.interval()
        if interval is None or decided == "undecided":
            return "undecided"
        return "undecided" if self._slope_contradicts(decided, interval[0] > 0, interval[1] < 0) else decided

    def _slope_contradicts(self, decided: Verdict, rising: bool, falling: bool) -> bool:
        """Return True if a rising or falling slope contradicts a verdict."""
        if self.contrast.claim != "equivalent":
            to_claim, back = (falling, rising) if self.contrast.claim == "negative" else (rising, falling)
            return back if decided == "holds" else to_claim
        last = self.deciding[-1].estimate
        outwards, inwards = (rising, falling) if last.value > 0 else (falling, rising)
        if decided == "fails":
            return inwards
        leaves = self.slope is not None and abs(last.value + self.slope.value * LOG_THREE) > MARGIN
        return outwards and last.differs and leaves


def rows_by_length(records: Iterable[CellRecord]) -> dict[int, dict[str, dict[int, Correct]]]:
    """images seen -> row -> seed -> correctness of every test image, for the registered data set and seeds."""
    found: dict[int, dict[str, dict[int, Correct]]] = {}
    for record in records:
        registered = record["dataset"] == DATASET and record["seed"] in SEEDS
        if registered and {"predictions", "test_counts", "images_seen"} <= record.keys():
            rows = found.setdefault(record["images_seen"], {})
            rows.setdefault(record["variant"], {})[record["seed"]] = correctness(record)
    return dict(sorted(found.items()))


def correctness(record: CellRecord) -> Correct:
    """100 for every test image that a cell classifies correctly, else 0; images in canonical order, by label."""
    counts = record["test_counts"]
    try:
        predicted = unpack_indices(record["predictions"])
        if len(predicted) != sum(counts):
            raise ValueError(f"{len(predicted)} predictions for {sum(counts)} test images")
    except ValueError as error:
        raise CheckpointError(f"cell {record['cell']} is damaged ({error}); restore its file") from error
    return 100.0 * (predicted == np.repeat(np.arange(len(counts)), counts))


def points_of(contrast: LengthContrast, lengths: Mapping[int, CorrectByRow]) -> list[CurvePoint]:
    """Points of a contrast at all lengths where its rows share a seed, with one seed variance for all lengths."""
    tables = {images: _contributions(contrast, rows) for images, rows in lengths.items()}
    found = {images: table for images, table in tables.items() if table}
    means = [[float(values.mean()) for values in table.values()] for table in found.values()]
    freedom = sum(len(values) - 1 for values in means)
    squares = math.fsum((len(values) - 1) * float(np.var(values, ddof=1)) for values in means if len(values) > 1)
    variance = squares / freedom if freedom else math.nan
    return [_point(images, table, variance, freedom) for images, table in found.items()]


def _contributions(contrast: LengthContrast, rows: CorrectByRow) -> dict[int, Correct]:
    """seed -> contribution of every test image to the contrast, for the seeds that all rows have."""
    weights = contrast.weights.items()
    seeds = sorted(set.intersection(*({*rows.get(row, {})} for row in contrast.weights)))
    return {seed: sum((w * rows[row][seed] for row, w in weights), np.zeros(())) for seed in seeds}


def _point(images: int, table: Mapping[int, Correct], variance: float, freedom: int) -> CurvePoint:
    contributions = np.stack(list(table.values()))
    by_seed = dict(zip(table, contributions.mean(1).tolist(), strict=True))
    error = math.sqrt(variance / len(table) + image_variance(contributions)) if freedom else math.nan
    ends = min(by_seed.values()), max(by_seed.values())
    estimate = Estimate(float(contributions.mean()), error, freedom, len(table), *ends)
    return CurvePoint(images, estimate, by_seed)


def image_variance(contributions: NDArray[np.float64]) -> float:
    """Contribution of the choice of test images to the variance of the mean of a table (seeds, images).

    s²(column means)/N - r²/(nN), at least 0, with the residual mean square r² of the two-way table; with one seed the
    residual cannot be separated from the images and is included.
    """
    n, count = contributions.shape
    by_image = contributions.mean(0)
    images = float(by_image.var(ddof=1)) / count
    if n < 2:
        return images
    residual = contributions - contributions.mean(1, keepdims=True) - by_image + contributions.mean()
    mean_square = float(np.square(residual).sum()) / ((n - 1) * (count - 1))
    return max(images - mean_square / (n * count), 0.0)


def verdict(contrast: LengthContrast, estimate: Estimate, level: float = LEVEL) -> Verdict:
    """Verdict at one length from the interval of a level; undecided below three seeds."""
    interval = estimate.interval(level) if level > 0 else None
    if estimate.n < MIN_SEEDS or interval is None:
        return "undecided"
    low, high = interval
    if contrast.claim == "equivalent":
        if low > -MARGIN and high < MARGIN:
            return "holds"
        return "fails" if high < -MARGIN or low > MARGIN else "undecided"
    if contrast.claim == "negative":
        low, high = -high, -low
    small = min(MARGIN, abs(contrast.paper) / 2)
    if high < 0 or (low > -small and high < small):
        return "fails"
    return "holds" if low > 0 else "undecided"


def holm_levels(p_values: Sequence[float]) -> list[float]:
    """Level of every test after Holm's step-down adjustment: the i-th smallest of m p-values is tested at LEVEL/(m-i).

    After the first p-value above its level, all larger ones keep that level.
    """
    levels = [0.0] * len(p_values)
    stopped: float | None = None
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        levels[index] = stopped or LEVEL / (len(p_values) - rank)
        if stopped is None and p_values[index] > levels[index]:
            stopped = levels[index]
    return levels


def p_value(contrast: LengthContrast, estimate: Estimate) -> float:
    """p-value of the two-sided test against 0, or twice that of the test of equivalence; 1 below three seeds.

    It is the smallest level at which the claim, or its opposite, would hold.
    """
    if estimate.n < MIN_SEEDS:
        return 1.0
    if contrast.claim == "equivalent":
        return min(1.0, 2 * estimate.equivalence(MARGIN))
    return min(1.0, 2 * min(estimate.above(0.0), estimate.below(0.0)))


def slope(points: Sequence[CurvePoint]) -> Estimate | None:
    """Slope of a contrast per factor e of images, over lengths with three seeds or more, with a block for each seed.

    Its interval is over seeds only: the test images are considered fixed.
    """
    by_seed: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        if point.estimate.n >= MIN_SEEDS:
            for seed, value in point.by_seed.items():
                by_seed.setdefault(seed, []).append((math.log(point.images), value))
    blocks = [np.array(cells) for cells in by_seed.values() if len(cells) > 1]
    freedom = sum(map(len, blocks)) - len(blocks) - 1
    if freedom < 1:
        return None
    x, y = np.concatenate([block - block.mean(0) for block in blocks]).T
    slope = float(x @ y / (x @ x))
    residual = float(np.square(y - slope * x).sum()) / freedom
    return Estimate(slope, math.sqrt(residual / float(x @ x)), freedom, len(blocks))


def curves(records: Iterable[CellRecord]) -> dict[str, Curve]:
    """All confirmatory contrasts with at least one point; a diverged cell makes a contrast undecided at its length."""
    records = list(records)
    lengths = rows_by_length(records)
    found = {name: points_of(contrast, lengths) for name, contrast in CONTRASTS.items()}
    lost = {
        (record["variant"], record["config"]["train.epochs"] * TRAIN_IMAGES[DATASET])
        for record in records
        if record["status"] == "diverged" and record["dataset"] == DATASET
    }
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


def length_tables(records: Sequence[CellRecord]) -> list[Table]:
    """Tables by images seen: accuracy of every row, confirmatory contrasts, changes of all other rows.

    Contrasts are given with their 95 % intervals over seeds and test images; other rows have no verdicts.
    """
    lengths, found = rows_by_length(records), curves(records)
    rows = [name for name in VARIANTS if any(name in at for at in lengths.values())]
    confirmatory = {row for contrast in CONTRASTS.values() for row in contrast.weights}
    heads = [f"{images:,} images" for images in lengths]
    accuracies = [(VARIANTS[name].title, *(_accuracy(at.get(name, {})) for at in lengths.values())) for name in rows]
    judged = sorted({p.images for curve in found.values() for p in curve.points})
    contrasts = [
        (c.contrast.title, f"{c.contrast.paper:+.1f}", *(_judged(c, images) for images in judged), *_slope_and_trend(c))
        for c in found.values()
    ]
    changes = []
    for name in rows:
        if name not in confirmatory:
            title, reference = VARIANTS[name].title, VARIANTS[name].reference
            change = LengthContrast(title, {name: 1, reference: -1}, 0.0, "equivalent")
            points = {p.images: p for p in points_of(change, lengths)}
            changes.append((title, reference, *(point_text(points.get(images)) for images in lengths)))
    contrast_head = ("contrast", "paper", *(f"{images:,} images" for images in judged), "per tripling", "in trend")
    title = "Contrasts in points by images seen: value [95 %], seeds, verdict by the adjusted interval"
    return [
        Table(("row", *heads), accuracies, "Test accuracy by images seen: mean (range, seeds)", "accuracy_by_length"),
        Table(contrast_head, contrasts, title, "contrast_by_length"),
        Table(
            ("row", "minus", *heads),
            changes,
            "Exploratory changes in points: value [95 %], seeds",
            "exploratory_by_length",
        ),
    ]


def _accuracy(seeds: Mapping[int, Correct]) -> str:
    means = [float(correct.mean()) for correct in seeds.values()]
    return f"{sum(means) / len(means):.1f} ({min(means):.1f}-{max(means):.1f}, {len(means)})" if means else NONE


def _judged(curve: Curve, images: int) -> str:
    found = {p.images: f"{point_text(p)}, {v}" for p, v in zip(curve.points, curve.verdicts, strict=True)}
    return found.get(images, NONE)


def point_text(found: CurvePoint | None) -> str:
    """`-2.20 [-2.81, -1.52], 4`: value, 95 % interval, seeds."""
    return NONE if found is None else f"{format_estimate(found.estimate)}, {found.estimate.n}"


def _slope_and_trend(curve: Curve) -> tuple[str, str]:
    """Change per tripling of the images, and the verdict with its lengths.

    The verdict includes the size as a percentage of the paper's or, for equivalence, whether it differs from 0.
    """
    slope = format_estimate(curve.slope, LOG_THREE)
    if len(curve.deciding) < 2:
        return slope, "undecided; needs two lengths with three seeds"
    last = curve.deciding[-1].estimate
    judged = f"{curve.trend}, judged on " + " and ".join(f"{p.images:,}" for p in curve.deciding) + " together"
    if curve.contrast.claim == "equivalent":
        return slope, f"{judged}; differs from 0: {'yes' if last.differs else 'no'}"
    return slope, f"{judged}; {last.value / curve.contrast.paper:.0%} of the paper's"
