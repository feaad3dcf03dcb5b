"""Contrasts against the length of training: one panel each, with intervals and the paper's value at its own length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from quatsphere.report.figures.style import BLUE, GREY, INK, ORANGE, WIDE, light_grid, plain, styled


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
