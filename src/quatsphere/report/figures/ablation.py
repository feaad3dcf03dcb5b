"""The ablation table as bars: our accuracies, and the changes from each row's reference beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from quatsphere.report.figures.style import BLUE, GREY, INK, ORANGE, WIDE, Array, light_grid, plain, styled

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
