"""The paper's third figure: does the routing stay sharp when it is made so?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from quatsphere.report.figures.style import (
    BLUE,
    COLOURS,
    COLUMN,
    DASHES,
    GREY,
    INK,
    ORANGE,
    WIDE,
    Array,
    light_grid,
    plain,
    styled,
    whole_epochs,
)

LIGHT = "#A6CDE3"


class Measured(NamedTuple):
    """A mean with the ends of its interval, in percent or points; no interval where there is one seed."""

    mean: float
    low: float | None = None
    high: float | None = None


class AblationRow(NamedTuple):
    """One row: accuracy in percent, all its seeds, the change from its reference, and the paper's two numbers."""

    title: str
    seeds: Sequence[float]
    accuracy: Measured
    change: Measured | None = None
    paper_accuracy: float | None = None
    paper_change: float | None = None


@styled
def ablation_bars(rows: Sequence[AblationRow], told: str, data: str = "") -> Figure:
    """Left: accuracy with every seed as a dot. Right: the change from the reference, the paper's as a diamond.

    Lines are the intervals of the means; `told` says which, `data` names the data set. Bars of rows that are a
    reference themselves are dark.
    """
    figure = Figure(figsize=(WIDE, 0.95 + 0.26 * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1, 1.05))
    places = np.arange(len(rows))[::-1]
    _accuracies(left, rows, places)
    _changes(right, rows, places)
    left.set_yticks(places, [f"{plain(row.title, 36)} ({len(row.seeds)})" for row in rows])
    for axes in (left, right):
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(-0.6, len(rows) - 0.4)
        light_grid(axes, "x")
    left.set_xlabel(": ".join(filter(None, (data, "test accuracy, % (axis cut; n in brackets)"))))
    _legend(figure, right, told, any(row.paper_change is not None for row in rows))
    return figure


def _accuracies(axes: Any, rows: Sequence[AblationRow], places: Array) -> None:
    for place, row in zip(places, rows, strict=True):
        axes.barh(place, row.accuracy.mean, 0.66, color=LIGHT if row.change else BLUE, zorder=2)
        _interval(axes, row.accuracy, place)
        axes.plot(row.seeds, [place] * len(row.seeds), "o", color=INK, markersize=2.4, alpha=0.65, zorder=4)
    ends = [value for row in rows for value in (*row.seeds, row.accuracy.low, row.accuracy.high) if value is not None]
    low, high = min(ends, default=0.0), max(ends, default=100.0)
    axes.set_xlim(max(0.0, 5 * ((low - 2) // 5)), min(100.0, high + 0.05 * (high - low) + 0.5))


def _changes(axes: Any, rows: Sequence[AblationRow], places: Array) -> None:
    axes.axvline(0, color=GREY, linewidth=0.8, zorder=1)
    for place, row in zip(places, rows, strict=True):
        if row.change is not None:
            axes.barh(place, row.change.mean, 0.66, color=LIGHT, zorder=2)
            _interval(axes, row.change, place)
        if row.paper_change is not None:
            axes.plot(row.paper_change, place, "D", color=ORANGE, markeredgecolor="white", markersize=5.5, zorder=5)
        if row.paper_accuracy is not None:
            text = f"{row.paper_accuracy:.1f}"
            axes.text(1.01, place, text, transform=axes.get_yaxis_transform(), va="center", fontsize=7, color=ORANGE)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("change from the reference, points")
    axes.margins(x=0.08)


def _interval(axes: Any, measured: Measured, place: float) -> None:
    if measured.low is not None and measured.high is not None:
        axes.plot((measured.low, measured.high), (place, place), color=INK, linewidth=1.3, zorder=3)


def _legend(figure: Figure, axes: Any, told: str, paper: bool) -> None:
    axes.plot([], [], "o", color=INK, markersize=2.4, alpha=0.65, label="one seed")
    axes.plot([], [], color=INK, linewidth=1.3, label=told)
    if paper:
        label = "paper, full size: change (at the edge: accuracy)"
        axes.plot([], [], "D", color=ORANGE, markeredgecolor="white", markersize=5.5, label=label)
    figure.legend(loc="outside upper center", ncols=3)


class LengthPoint(NamedTuple):
    """A contrast in points at a number of images seen, the ends of its interval, and its value for every seed."""

    images: int
    value: float
    low: float | None
    high: float | None
    seeds: Sequence[float]


class LengthCurve(NamedTuple):
    """A contrast at several lengths, the paper's value, and the verdict."""

    title: str
    points: Sequence[LengthPoint]
    paper: float
    verdict: str


@styled
def contrast_curves(curves: Sequence[LengthCurve], paper_images: int, caption: str) -> Figure:
    """One panel per contrast: dots are seeds, bars 95 % intervals, the diamond is the paper at its own length."""
    columns = min(4, max(1, len(curves)))
    rows = max(1, -(-len(curves) // columns))
    figure = Figure(figsize=(WIDE, 0.6 + 1.75 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, squeeze=False).ravel()
    for axes, curve in zip(panels, curves, strict=False):
        _panel(axes, curve, paper_images)
    for axes in panels[len(curves) :]:
        axes.set_visible(False)
    for axes in panels[max(0, len(curves) - columns) : len(curves)]:
        axes.set_xlabel("images seen")
        axes.tick_params(axis="x", labelbottom=True)
    panels[0].set_ylabel("points")
    figure.supxlabel(caption, fontsize=7, color=GREY)
    return figure


def _panel(axes: Any, curve: LengthCurve, paper_images: int) -> None:
    axes.axhline(0, color=GREY, linewidth=0.8, zorder=1)
    places = [point.images for point in curve.points]
    axes.plot(places, [point.value for point in curve.points], "-o", color=BLUE, zorder=3)
    for point in curve.points:
        axes.plot([point.images] * len(point.seeds), point.seeds, ".", color=INK, markersize=2.5, alpha=0.5, zorder=2)
        if point.low is not None and point.high is not None:
            axes.plot([point.images] * 2, [point.low, point.high], color=BLUE, linewidth=1.2, zorder=3)
    axes.plot(paper_images, curve.paper, "D", color=ORANGE, markeredgecolor="white", markersize=5.5, zorder=4)
    axes.set_xscale("log")
    axes.set_title(f"{plain(curve.title, 30)}\n{curve.verdict}", fontsize=7.5, loc="left")
    axes.margins(x=0.12, y=0.15)
    light_grid(axes)


FIXED_POINT = 0.7931
"""softplus(0) + 0.1: where the priors pull β."""


Steps = Sequence[Sequence[float]]
"""By epoch, by step."""


class BetaCurve(NamedTuple):
    """β of the cross-shell steps by epoch: mean, least and greatest over steps and heads; epoch 0 is the start."""

    label: str
    epochs: Sequence[int]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def beta_curve(
    label: str, means: Steps, band: tuple[Steps, Steps] | None, shells: int, start: float | None
) -> BetaCurve:
    """The curve of one run from its log: mean β over heads by epoch and step, and where logged least and greatest.

    Steps are within, cross 1 ..., rounds; the probe is about the cross-shell ones. `start` is none for a zero logit.
    """
    first = FIXED_POINT if start is None else start
    cross, low, high = ([epoch[1:shells] for epoch in values] for values in (means, *(band or (means, means))))
    return BetaCurve(
        label,
        range(len(means) + 1),
        [first, *(sum(epoch) / len(epoch) for epoch in cross)],
        [first, *(min(epoch) for epoch in low)],
        [first, *(max(epoch) for epoch in high)],
    )


def merge_curves(label: str, curves: Sequence[BetaCurve]) -> BetaCurve:
    """Several seeds as one curve: the mean of the means, the widest band, as long as the shortest."""
    length = min(len(curve.epochs) for curve in curves)

    def at(epoch: int, name: str) -> list[float]:
        return [getattr(curve, name)[epoch] for curve in curves]

    means = [sum(at(epoch, "mean")) / len(curves) for epoch in range(length)]
    lows, highs = ([pick(at(e, name)) for e in range(length)] for name, pick in (("low", min), ("high", max)))
    return BetaCurve(label, range(length), means, lows, highs)


@styled
def temperature_probe(curves: Sequence[BetaCurve], data: str = "") -> Figure:
    """Means as lines, min to max as bands, the priors' fixed point dashed; `data` names the data set of the runs."""
    figure = Figure(figsize=(1.25 * COLUMN, 2.7), layout="constrained")
    axes = figure.subplots()
    for index, curve in enumerate(curves):
        colour = COLOURS[index % len(COLOURS)]
        axes.fill_between(curve.epochs, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
        label = plain(curve.label, 48)
        axes.plot(curve.epochs, curve.mean, color=colour, linestyle=DASHES[index % len(DASHES)], label=label)
        axes.plot(curve.epochs[-1:], curve.mean[-1:], "o", color=colour, clip_on=False)
    last = max((curve.epochs[-1] for curve in curves), default=1)
    top = max((max(curve.high) for curve in curves), default=1.0)
    axes.axhline(FIXED_POINT, color=INK, linestyle=(0, (4, 3)), linewidth=0.9)
    note = f"fixed point of the priors, {FIXED_POINT:.2f} "
    axes.text(last, FIXED_POINT + 0.04 * top, note, ha="right", va="bottom", fontsize=7, color=INK)
    axes.set_ylabel("β of the cross-shell steps")
    whole_epochs(axes)
    light_grid(axes)
    axes.set(xlim=(0, last), ylim=(0, 1.12 * max(1.0, top)))
    if curves:
        figure.legend(loc="outside upper left", title=plain(data, 80), alignment="left")
    return figure
