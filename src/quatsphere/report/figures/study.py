"""Figures of a study: ablations, contrasts against training length, the probe of the routing temperature."""

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
    LIGHT_BLUE,
    ORANGE,
    Array,
    epoch_axis,
    escape_math,
    fill_caption,
    light_grid,
    new_figure,
    new_panels,
    on_phone,
    styled,
)
from quatsphere.study.length_contrasts import PAPER_IMAGES, Curve
from quatsphere.study.statistics import Estimate


class AblationRow(NamedTuple):
    """One variant: accuracies in percent by seed, their mean, the change from the reference, the paper's values."""

    title: str
    seeds: Sequence[float]
    accuracy: Estimate
    change: Estimate | None = None
    paper_accuracy: float | None = None
    paper_change: float | None = None


@styled
def ablation_bars(rows: Sequence[AblationRow], interval_label: str, data: str = "") -> Figure:
    """Draw accuracies with every seed as a dot (left) and changes from the reference (right) of all variants.

    Lines are the intervals of the means, diamonds the paper's changes; bars of reference variants are dark.

    Args:
        rows: one row per variant, from top to bottom.
        interval_label: kind of the intervals, for the legend.
        data: name of the data set, for the axis label.
    """
    figure, *grid = new_panels(2, 2, 0.6 + 0.26 * len(rows), extra=0.35)
    left, right = figure.subplots(*grid, sharey=True, width_ratios=(1, 1.05)[: grid[1]])
    heights = np.arange(len(rows))[::-1]
    _draw_accuracies(left, rows, heights)
    _draw_changes(right, rows, heights)
    left.set_yticks(heights, [f"{escape_math(row.title, 36)} ({len(row.seeds)})" for row in rows])
    for axes in (left, right):
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(-0.6, len(rows) - 0.4)
        light_grid(axes, "x")
    left.set_xlabel(": ".join(filter(None, (data, "test accuracy, % (axis cut; n in brackets)"))))
    _ablation_legend(figure, right, interval_label, any(row.paper_change is not None for row in rows))
    return figure


def _draw_accuracies(axes: Any, rows: Sequence[AblationRow], heights: Array) -> None:
    for height, row in zip(heights, rows, strict=True):
        axes.barh(height, row.accuracy.value, 0.66, color=LIGHT_BLUE if row.change else BLUE, zorder=2)
        _draw_interval(axes, row.accuracy, height)
        axes.plot(row.seeds, [height] * len(row.seeds), "o", color=INK, markersize=2.4, alpha=0.65, zorder=4)
    ends = [value for row in rows for value in (*row.seeds, *(row.accuracy.interval() or ()))]
    low, high = min(ends, default=0.0), max(ends, default=100.0)
    axes.set_xlim(max(0.0, 5 * ((low - 2) // 5)), min(100.0, high + 0.05 * (high - low) + 0.5))


def _draw_changes(axes: Any, rows: Sequence[AblationRow], heights: Array) -> None:
    axes.axvline(0, color=GREY, linewidth=0.8, zorder=1)
    for height, row in zip(heights, rows, strict=True):
        if row.change is not None:
            axes.barh(height, row.change.value, 0.66, color=LIGHT_BLUE, zorder=2)
            _draw_interval(axes, row.change, height)
        if row.paper_change is not None:
            axes.plot(row.paper_change, height, "D", color=ORANGE, markeredgecolor="white", markersize=5.5, zorder=5)
        if row.paper_accuracy is not None:
            text = f"{row.paper_accuracy:.1f}"
            axes.text(1.01, height, text, transform=axes.get_yaxis_transform(), va="center", fontsize=7, color=ORANGE)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("change from the reference, points")
    axes.margins(x=0.08)


def _draw_interval(axes: Any, estimate: Estimate, height: float) -> None:
    if (ends := estimate.interval()) is not None:
        axes.plot(ends, (height, height), color=INK, linewidth=1.3, zorder=3)


def _ablation_legend(figure: Figure, axes: Any, interval_label: str, paper: bool) -> None:
    axes.plot([], [], "o", color=INK, markersize=2.4, alpha=0.65, label="one seed")
    axes.plot([], [], color=INK, linewidth=1.3, label=interval_label)
    if paper:
        label = "paper, full size: change (at the edge: accuracy)"
        axes.plot([], [], "D", color=ORANGE, markeredgecolor="white", markersize=5.5, label=label)
    figure.legend(loc="outside upper center", ncols=1 if on_phone() else 3)


@styled
def contrast_curves(curves: Sequence[Curve], caption: str) -> Figure:
    """Draw contrasts against the number of training images, one panel per contrast.

    Dots are seeds, bars are intervals, the diamond is the paper's value at the paper's length.

    Args:
        curves: one curve per panel, as from `quatsphere.study.length_contrasts.curves(records)`.
        caption: text below the figure.
    """
    figure, rows, columns = new_panels(len(curves), 4, 1.75, extra=0.6)
    panels = figure.subplots(rows, columns, sharex=True, squeeze=False).ravel()
    for axes, curve in zip(panels, curves, strict=False):
        _draw_contrast(axes, curve)
    for axes in panels[len(curves) :]:
        axes.set_visible(False)
    for axes in panels[max(0, len(curves) - columns) : len(curves)]:
        axes.set_xlabel("images seen")
        axes.tick_params(axis="x", labelbottom=True)
    panels[0].set_ylabel("points")
    figure.supxlabel(fill_caption(caption), fontsize=7, color=GREY)
    return figure


def _draw_contrast(axes: Any, curve: Curve) -> None:
    axes.axhline(0, color=GREY, linewidth=0.8, zorder=1)
    images = [point.images for point in curve.points]
    axes.plot(images, [point.estimate.value for point in curve.points], "-o", color=BLUE, zorder=3)
    for point in curve.points:
        seeds = list(point.by_seed.values())
        axes.plot([point.images] * len(seeds), seeds, ".", color=INK, markersize=2.5, alpha=0.5, zorder=2)
        if (ends := point.estimate.interval()) is not None:
            axes.plot([point.images] * 2, ends, color=BLUE, linewidth=1.2, zorder=3)
    axes.plot(PAPER_IMAGES, curve.contrast.paper, "D", color=ORANGE, markeredgecolor="white", markersize=5.5, zorder=4)
    axes.set_xscale("log")
    axes.set_title(f"{escape_math(curve.contrast.title, 30)}\nin trend: {curve.trend}", fontsize=7.5, loc="left")
    axes.margins(x=0.12, y=0.15)
    light_grid(axes)


FIXED_POINT = 0.7931
"""softplus(0) + 0.1, the value to which the priors pull β."""

ByEpochAndStep = Sequence[Sequence[float]]


class BetaCurve(NamedTuple):
    """β of the cross-shell steps by epoch: mean, minimum and maximum over steps and heads; epoch 0 is the start."""

    label: str
    epochs: Sequence[int]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def beta_curve(
    label: str,
    means: ByEpochAndStep,
    band: tuple[ByEpochAndStep, ByEpochAndStep] | None,
    shells: int,
    start: float | None,
) -> BetaCurve:
    """Return the curve of one run; only the cross-shell steps are used.

    Args:
        label: name of the curve.
        means: β averaged over heads, by epoch and step (within, cross 1 ..., round 1 ...).
        band: minimum and maximum over heads, by epoch and step, if they were logged.
        shells: number of shells.
        start: initial β; None for the default, a zero logit.
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
    """Merge the curves of several seeds: mean of the means, widest band, length of the shortest."""
    length = min(len(curve.epochs) for curve in curves)

    def at(epoch: int, name: str) -> list[float]:
        return [getattr(curve, name)[epoch] for curve in curves]

    means = [sum(at(epoch, "mean")) / len(curves) for epoch in range(length)]
    lows, highs = ([pick(at(e, name)) for e in range(length)] for name, pick in (("low", min), ("high", max)))
    return BetaCurve(label, range(length), means, lows, highs)


@styled
def temperature_probe(curves: Sequence[BetaCurve], data: str = "") -> Figure:
    """Draw β of the cross-shell steps over training: means as lines, ranges as bands, the priors' fixed point dashed.

    Args:
        curves: one curve per run or variant, from `beta_curve` or `merge_curves`.
        data: title of the legend, such as the name of the data set.
    """
    figure = new_figure(1.25 * COLUMN, 2.7)
    axes = figure.subplots()
    for index, curve in enumerate(curves):
        colour = COLOURS[index % len(COLOURS)]
        axes.fill_between(curve.epochs, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
        label = escape_math(curve.label, 48)
        axes.plot(curve.epochs, curve.mean, color=colour, linestyle=DASHES[index % len(DASHES)], label=label)
        axes.plot(curve.epochs[-1:], curve.mean[-1:], "o", color=colour, clip_on=False)
    last = max((curve.epochs[-1] for curve in curves), default=1)
    top = max((max(curve.high) for curve in curves), default=1.0)
    axes.axhline(FIXED_POINT, color=INK, linestyle=(0, (4, 3)), linewidth=0.9)
    note = f"fixed point of the priors, {FIXED_POINT:.2f} "
    axes.text(last, FIXED_POINT + 0.04 * top, note, ha="right", va="bottom", fontsize=7, color=INK)
    axes.set_ylabel("β of the cross-shell steps")
    epoch_axis(axes)
    light_grid(axes)
    axes.set(xlim=(0, last), ylim=(0, 1.12 * max(1.0, top)))
    if curves:
        figure.legend(loc="outside upper left", title=escape_math(data, 80), alignment="left")
    return figure
