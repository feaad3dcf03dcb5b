"""Speed: images per second of models side by side, and how time and memory grow with the vertices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from quatsphere.report.figures.style import BLUE, COLOURS, GREY, WIDE, light_grid, plain, styled


class Throughput(NamedTuple):
    """Images per second of one model."""

    title: str
    images_per_second: float


@styled
def throughput_bars(rows: Sequence[Throughput], told: str = "") -> Figure:
    """Bars with their values, the first row's colour apart; `told` says where it was measured."""
    figure = Figure(figsize=(WIDE, 0.75 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    names = [plain(row.title, 44) for row in rows]
    speeds = [row.images_per_second for row in rows]
    places = np.arange(len(rows))[::-1]
    bars = axes.barh(places, speeds, 0.64, color=[BLUE, *["#A6CDE3"] * max(0, len(rows) - 1)], zorder=2)
    axes.bar_label(bars, [f"{speed:,.0f}" for speed in speeds], fontsize=7.5, padding=2)
    axes.set_yticks(places, names)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.1)
    axes.set_xlabel(f"images per second{told and ' (' + plain(told, 80) + ')'}")
    light_grid(axes, "x")
    return figure


@styled
def scaling_plot(points: Sequence[Mapping[str, Any]]) -> Figure:
    """Seconds per step and peak memory against the number of vertices, both logarithmic, with fitted exponents."""
    figure = Figure(figsize=(WIDE, 2.6), layout="constrained")
    ordered = sorted(points, key=lambda point: point["vertices"])
    for axes, key, label, colour in zip(
        figure.subplots(1, 2), ("seconds", "peak_mb"), ("seconds per step", "peak memory, MB"), COLOURS, strict=False
    ):
        known = [point for point in ordered if point.get(key)]
        x, y = (np.array([float(point[name]) for point in known]) for name in ("vertices", key))
        axes.loglog(x, y, "o", color=colour, markersize=5, zorder=3, label="measured")
        if len(known) > 1:
            power, start = np.polyfit(np.log(x), np.log(y), 1)
            label_ = f"fit: V^{power:.2f}"
            axes.loglog(x, np.exp(start) * x**power, color=colour, linewidth=1, label=label_)
            axes.loglog(x, y[-1] * x / x[-1], color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), label="linear")
        axes.set(xlabel="vertices in all shells", ylabel=label)
        light_grid(axes, "both")
        axes.legend()
    return figure
