"""How weights are spread over neighbours: a histogram per step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from quatsphere.report.figures.style import (
    BLUE,
    COLOURS,
    DASHES,
    GREY,
    INK,
    MARKS,
    ORANGE,
    WIDE,
    Array,
    light_grid,
    plain,
    styled,
    whole_epochs,
)

Metrics = Sequence[Mapping[str, Any]]
"""The records of metrics.jsonl."""
FEW = 24
"""Epochs up to which every one is marked."""


@styled
def training_curves(runs: Mapping[str, Metrics]) -> Figure:
    """Training loss and accuracies by epoch, one colour per run; augmented training accuracy is dashed."""
    figure = Figure(figsize=(WIDE, 2.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for index, (name, metrics) in enumerate(runs.items()):
        look = _look(index, len(metrics))
        label = plain(name, 32) if len(runs) > 1 else None
        _plot(left, metrics, lambda record: record["train"]["loss"], label=label, **look)
        _plot(right, metrics, lambda record: record["val_accuracy"], label="validation" if index == 0 else None, **look)
        dashed = {**look, "linestyle": (0, (3, 1.5)), "marker": "", "alpha": 0.8}
        label = "training (augmented)" if index == 0 else None
        _plot(right, metrics, lambda record: record["train"]["accuracy"], label=label, **dashed)
    left.set_ylabel("training loss")
    right.set_ylabel("accuracy")
    for axes in (left, right):
        whole_epochs(axes)
        light_grid(axes)
    right.legend(loc="lower right")
    if len(runs) > 1:
        left.legend()
    return figure


PANELS: tuple[tuple[str, str], ...] = (
    ("routing_entropy", "entropy / log k"),
    ("routing_peak", "peak weight x k"),
    ("beta", "β, mean over heads"),
    ("bound", "bound ε"),
    ("field_motion", "field motion, rad / epoch"),
)
BY_STEP = ("routing_entropy", "routing_peak", "beta")


@styled
def inside_over_training(metrics: Metrics, steps: Sequence[str], shells: int) -> Figure:
    """What is logged each epoch of routing, β, bound and field motion: one line per step or shell."""
    shown = [(name, title) for name, title in PANELS if any(record.get(name) for record in metrics)]
    rows = -(-(len(shown) + 1) // 3)
    figure = Figure(figsize=(WIDE, 2.2 * rows), layout="constrained")
    legends: dict[str, dict[str, Any]] = {"step": {}, "shell": {}}
    for place, (name, title) in enumerate(shown, start=1):
        axes = figure.add_subplot(rows, 3, place)
        count = max(len(record.get(name) or ()) for record in metrics)
        kind, names = ("step", steps) if name in BY_STEP else ("shell", [str(i + 1) for i in range(shells)])
        for index, label in zip(range(count), names, strict=False):
            legends[kind][label] = _plot(axes, metrics, _picker(name, index), **_look(index, len(metrics)))
        axes.set_ylabel(title)
        whole_epochs(axes)
        light_grid(axes)
    _legends(figure.add_subplot(rows, 3, len(shown) + 1), legends)
    return figure


def _legends(axes: Any, legends: Mapping[str, Mapping[str, Any]]) -> None:
    """One list of lines per kind, in a cell of their own."""
    axes.set_axis_off()
    for side, (kind, lines) in zip(("upper left", "upper right"), legends.items(), strict=True):
        if lines:
            axes.add_artist(axes.legend(list(lines.values()), list(lines), loc=side, title=kind, borderaxespad=0))


def _picker(name: str, index: int) -> Callable[[Mapping[str, Any]], float | None]:
    def pick(record: Mapping[str, Any]) -> float | None:
        values = record.get(name) or []
        return values[index] if index < len(values) else None

    return pick


def _look(index: int, epochs: int) -> dict[str, Any]:
    mark = MARKS[index % len(MARKS)] if epochs <= FEW else ""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index % len(DASHES)], "marker": mark}


def _plot(axes: Any, metrics: Metrics, pick: Callable[[Mapping[str, Any]], float | None], **look: Any) -> Any:
    """One line over the epochs that have the value."""
    points = [(record["epoch"], pick(record)) for record in metrics]
    known = [(epoch, value) for epoch, value in points if value is not None]
    return axes.plot([epoch for epoch, _ in known], [value for _, value in known], **look)[0]


@styled
def coverage_map(shells: Sequence[Mapping[str, Any]], on_sphere: bool) -> Figure:
    """Vertices of every shell on Lambert's equal-area map, now (dots) and at the start (rings), joined by lines.

    Equal areas of the map are equal areas of the sphere: an even shell is an even map, up to its poles.
    """
    drawn = [shell for shell in shells if shell["places"]]
    columns = min(3, max(1, len(drawn)))
    rows = max(1, -(-len(drawn) // columns))
    figure = Figure(figsize=(WIDE, 0.45 + rows * (1.4 if on_sphere else 2.4)), layout="constrained")
    for index, shell in enumerate(drawn):
        axes = figure.add_subplot(rows, columns, index + 1)
        places = np.array(shell["places"])
        if shell.get("start_places"):
            _moves(axes, places, np.array(shell["start_places"]))
        axes.scatter(places[:, 0], places[:, 1], s=_size(len(places)), color=BLUE, linewidths=0, zorder=3)
        _frame(axes, on_sphere)
        axes.set_title(f"shell {index + 1}: {_told(shell, len(places))}", fontsize=7.5)
    if any(shell.get("start_places") for shell in drawn):
        now = Line2D([], [], color=BLUE, marker="o", linestyle="", label="now")
        start = Line2D([], [], color=ORANGE, marker="o", markerfacecolor="none", linestyle="", label="at the start")
        figure.legend(handles=[now, start], loc="outside upper center", ncols=2)
    return figure


def _moves(axes: Any, places: Array, start: Array) -> None:
    """Rings where vertices began and lines to where they are, the short way round."""
    axes.scatter(
        start[:, 0], start[:, 1], s=_size(len(places)), facecolors="none", edgecolors=ORANGE, linewidths=0.5, zorder=2
    )
    for (u, v), (before, height) in zip(places, start, strict=True):
        near = before + 2 * round((u - before) / 2)
        axes.plot((near, u), (height, v), color=ORANGE, linewidth=0.5, zorder=1)


def _size(count: int) -> float:
    return float(np.clip(1400 / count, 2, 16))


def _frame(axes: Any, on_sphere: bool) -> None:
    axes.set(xlim=(-1, 1), ylim=(1, -1), aspect=0.5 if on_sphere else 1)
    axes.spines[["top", "right"]].set_visible(True)
    if on_sphere:
        axes.set_xticks([-1, -0.5, 0, 0.5, 1], _degrees(-180, None, 0, None, 180))
        axes.set_yticks([-1, -0.5, 0, 0.5, 1], _degrees(-90, -30, 0, 30, 90))
    else:
        axes.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    axes.tick_params(labelsize=6.5, length=2)
    axes.grid(True, color="#EEEEEE", linewidth=0.5, zorder=0)


def _degrees(*values: int | None) -> list[str]:
    return ["" if value is None else f"{value}°".replace("-", "\N{MINUS SIGN}") for value in values]


def _told(shell: Mapping[str, Any], count: int) -> str:
    moved = shell.get("displacement")
    turned = "" if not moved else f", moved {np.degrees(moved['mean']):.1f}°"
    return f"{count} vertices{turned}"


@styled
def receptive_map(section: Mapping[str, Any]) -> Figure:
    """Mean |gradient| of the predicted logit by pixel, as a multiple of its mean over the image."""
    shares = np.array(section["map"])
    figure = Figure(figsize=(0.5 * WIDE, 2.7), layout="constrained")
    axes = figure.subplots()
    shown = axes.imshow(shares * shares.size, cmap="cividis", vmin=0, interpolation="nearest")
    bar = figure.colorbar(shown, ax=axes, shrink=0.85)
    bar.set_label("|∂ logit / ∂ pixel|, mean = 1")
    bar.outline.set_visible(False)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    told = f"{section['images']} images; effective share of pixels {section['effective_share']:.0%}"
    axes.set_xlabel(told, color=GREY)
    return figure


@styled
def routing_histograms(section: Mapping[str, Any], steps: Sequence[str]) -> Figure:
    """Share of the weights by their multiple of the uniform 1/k, one outline per step; uniform is the line at 1."""
    figure = Figure(figsize=(0.75 * WIDE, 2.5), layout="constrained")
    axes = figure.subplots()
    edges = np.array(section["histogram"]["edges"])
    shares = np.array(section["histogram"]["shares"])
    rows = zip(steps, shares, section["entropy"], section["peak"], strict=True)
    for index, (name, row, entropy, peak) in enumerate(rows):
        label = f"{name}: entropy {entropy:.3f}, peak {peak:.2f}"
        look = {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index % len(DASHES)], "linewidth": 1.2}
        axes.stairs(row / np.diff(edges), edges, label=label, **look)
    axes.axvline(1, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    seen = np.flatnonzero(shares.sum(0) > 1e-4)
    axes.set(xlim=(0, min(float(edges[-1]), float(edges[seen[-1] + 1]) + 0.3)), ylim=(0, None))
    above = f"; last bin: {edges[-1]:g} and more" if seen[-1] == shares.shape[1] - 1 else ""
    axes.set(xlabel=f"weight as a multiple of 1/k (dashed: uniform{above})", ylabel="density")
    light_grid(axes)
    figure.legend(loc="outside right upper")
    return figure
