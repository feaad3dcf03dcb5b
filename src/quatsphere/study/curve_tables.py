"""Tables of plan `curve`: accuracies and contrasts by images seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quatsphere.study.curve import (
    CONTRASTS,
    LOG_THREE,
    Contrast,
    Curve,
    Point,
    Record,
    curves,
    points_of,
    rows_by_length,
)
from quatsphere.study.statistics import Estimate
from quatsphere.study.tables import NONE, Table
from quatsphere.study.variants import VARIANTS


def length_tables(records: Sequence[Record]) -> list[Table]:
    """Accuracy of every row, every confirmatory contrast, and the changes of all other rows, by images seen."""
    return [accuracies(records), contrasts(records), exploratory(records)]


def accuracies(records: Iterable[Record]) -> Table:
    """Mean test accuracy with its range and number of seeds."""
    lengths = rows_by_length(records)
    rows = [name for name in VARIANTS if any(name in found for found in lengths.values())]
    lines = [(VARIANTS[name].title, *(_accuracy(found.get(name, {})) for found in lengths.values())) for name in rows]
    head = ("row", *(f"{images:,} images" for images in lengths))
    return Table("accuracy_by_length", "Test accuracy by images seen: mean (range, seeds)", head, tuple(lines))


def _accuracy(seeds: object) -> str:
    assert isinstance(seeds, dict)
    means = [float(correct.mean()) for correct in seeds.values()]
    if not means:
        return NONE
    return f"{sum(means) / len(means):.1f} ({min(means):.1f}-{max(means):.1f}, {len(means)})"


def contrasts(records: Iterable[Record]) -> Table:
    """Value with 95 % interval over seeds and test images, slope, and the verdict in trend."""
    found = curves(records)
    lengths = sorted({p.images for curve in found.values() for p in curve.points})
    head = ("contrast", "paper", *(f"{images:,} images" for images in lengths), "per tripling", "in trend")
    lines = [
        (
            curve.contrast.title,
            f"{curve.contrast.paper:+.1f}",
            *(_judged(curve, images) for images in lengths),
            _slope(curve.slope),
            _trend(curve),
        )
        for curve in found.values()
    ]
    title = "Contrasts in points by images seen: value [95 %], seeds, verdict by the adjusted interval"
    return Table("contrast_by_length", title, head, tuple(lines))


def exploratory(records: Iterable[Record]) -> Table:
    """Change of every row outside the confirmatory contrasts from the row it is compared with; no verdicts."""
    lengths = rows_by_length(records)
    confirmatory = {row for contrast in CONTRASTS.values() for row in contrast.weights}
    rows = [name for name in VARIANTS if name not in confirmatory and any(name in found for found in lengths.values())]
    lines = []
    for name in rows:
        variant = VARIANTS[name]
        change = Contrast(variant.title, {name: 1, variant.reference: -1}, 0.0, "equivalent")
        points = {p.images: p for p in points_of(change, lengths)}
        lines.append((variant.title, variant.reference, *(_point(points.get(images)) for images in lengths)))
    head = ("row", "minus", *(f"{images:,} images" for images in lengths))
    return Table("exploratory_by_length", "Exploratory changes in points: value [95 %], seeds", head, tuple(lines))


def _judged(curve: Curve, images: int) -> str:
    for point, verdict in zip(curve.points, curve.verdicts, strict=True):
        if point.images == images:
            return f"{_point(point)}, {verdict}"
    return NONE


def _point(found: Point | None) -> str:
    if found is None:
        return NONE
    return f"{found.estimate.value:+.2f}{_interval(found.estimate, 1.0)}, {found.estimate.n}"


def _slope(found: Estimate | None) -> str:
    return NONE if found is None else f"{found.value * LOG_THREE:+.2f}{_interval(found, LOG_THREE)}"


def _interval(estimate: Estimate, factor: float) -> str:
    ends = estimate.interval()
    return "" if ends is None else f" [{ends[0] * factor:+.2f}, {ends[1] * factor:+.2f}]"


def _trend(curve: Curve) -> str:
    """The verdict with its lengths, the size as a share of the paper's, and for equality whether it differs from 0."""
    if len(curve.deciding) < 2:
        return "undecided; needs two lengths with three seeds"
    last = curve.deciding[-1].estimate
    lengths = " and ".join(f"{p.images:,}" for p in curve.deciding)
    if curve.contrast.claim == "equivalent":
        ends = last.interval()
        apart = ends is not None and (ends[0] > 0 or ends[1] < 0)
        return f"{curve.trend} at {lengths}; differs from 0: {'yes' if apart else 'no'}"
    return f"{curve.trend} at {lengths}; {last.value / curve.contrast.paper:.0%} of the paper's"
