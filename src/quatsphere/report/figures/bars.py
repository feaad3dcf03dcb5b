"""Bars: accuracy per class, transport switched off, shares of cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from quatsphere.report.figures.style import BLUE, COLOURS, GREEN, GREY, ORANGE, WIDE, light_grid, plain, styled

HATCHES = ("", "////", "....", "xxxx")


@styled
def per_class_bars(runs: Mapping[str, Mapping[str, float | None]]) -> Figure:
    """Test accuracy of every class, easiest first (by the mean over runs); one bar per run."""
    classes = _ranked(runs)
    figure = Figure(figsize=(WIDE, 2.6), layout="constrained")
    axes = figure.subplots()
    places, width = np.arange(len(classes)), 0.8 / max(1, len(runs))
    for index, (name, accuracies) in enumerate(runs.items()):
        heights = [accuracies.get(label) or 0.0 for label in classes]
        offset = (index - (len(runs) - 1) / 2) * width
        look: Any = {"color": COLOURS[index % len(COLOURS)], "hatch": HATCHES[index % len(HATCHES)]}
        bars = axes.bar(places + offset, heights, 0.94 * width, edgecolor="white", linewidth=0.4, **look)
        bars.set_label(plain(name, 32))
        if len(runs) == 1 and len(classes) <= 20:
            axes.bar_label(bars, [f"{height:.2f}" for height in heights], fontsize=7, padding=1)
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    long = max((len(label) for label in classes), default=0) * len(classes) > 90
    axes.set_xticks(places, [plain(label, 18) for label in classes], **(turned if long else {}))
    axes.tick_params(axis="x", length=0, labelsize=7.5 if len(classes) <= 30 else 4)
    axes.set(ylabel="accuracy", ylim=(0, 1), xlim=(-0.6, len(classes) - 0.4))
    light_grid(axes)
    if len(runs) > 1:
        figure.legend(loc="outside upper center", ncols=min(4, len(runs)))
    return figure


def _ranked(runs: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """Classes by their mean accuracy, best first."""
    names = list(dict.fromkeys(label for accuracies in runs.values() for label in accuracies))

    def mean(label: str) -> float:
        known = [value for accuracies in runs.values() if (value := accuracies.get(label)) is not None]
        return sum(known) / len(known) if known else 0.0

    return sorted(names, key=mean, reverse=True)


@styled
def transport_bars(section: Mapping[str, Any], steps: Sequence[str]) -> Figure:
    """What the negative log-likelihood gains when a head's or a step's messages arrive unturned."""
    figure = Figure(figsize=(WIDE, 2.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(max(2, len(section["heads"])), 1 + len(steps)))
    heads = [str(index) for index in range(1, 1 + len(section["heads"]))]
    for axes, names, effects, colour, title in (
        (left, heads, section["heads"], ORANGE, "head, in all steps"),
        (right, [*steps, "all"], [*section["steps"], section["all"]], GREEN, "step, all heads"),
    ):
        places = np.arange(len(names))
        axes.bar(places, [effect["nll"] for effect in effects], 0.7, color=colour, zorder=2)
        long = max(map(len, names)) > 3
        axes.set_xticks(places, names, **({"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if long else {}))
        axes.set_xlabel(title)
        axes.axhline(0, color=GREY, linewidth=0.7)
        light_grid(axes)
    left.set_ylabel("change of NLL\nwithout transport")
    return figure


@styled
def cost_shares(section: Mapping[str, Any]) -> Figure:
    """Shares of the parameters and of the time of a forward pass, by part."""
    figure = Figure(figsize=(WIDE, 2.3), layout="constrained")
    for axes, shares, title, note in zip(
        figure.subplots(1, 2),
        (section["parameter_share"], section["time_share"]),
        (f"{section['total']:,} parameters", "time of a forward pass"),
        (None, section.get("note")),
        strict=True,
    ):
        large = sorted(((name, share) for name, share in shares.items() if share >= 0.002), key=lambda item: item[1])
        bars = axes.barh([name for name, _ in large], [100 * share for _, share in large], 0.66, color=BLUE, zorder=2)
        axes.bar_label(bars, [f"{100 * share:.1f}" for _, share in large], fontsize=7, padding=2)
        axes.set(title=title, xlabel=f"share, %\n{note}" if note else "share, %")
        axes.margins(x=0.14)
        axes.tick_params(axis="y", length=0)
        light_grid(axes, "x")
    return figure


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
