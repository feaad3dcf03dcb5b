"""Figures of training, results and speed: curves over epochs, accuracy by class, confusion, throughput, scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from quatsphere.report.figures.style import (
    BLUE,
    COLOURS,
    DASHES,
    GREY,
    INK,
    LIGHT_BLUE,
    MARKS,
    ON_COLOUR,
    SLANTED,
    WIDE,
    Array,
    epoch_axis,
    escape_math,
    light_grid,
    new_figure,
    new_panels,
    on_phone,
    styled,
)

Metrics = Sequence[Mapping[str, Any]]
"""Records of metrics.jsonl, one per epoch."""
MAX_MARKED_EPOCHS = 24
"""Largest number of epochs at which every epoch has a mark."""
HATCHES = ("", "////", "....", "xxxx")


@styled
def training_curves(runs: Mapping[str, Metrics]) -> Figure:
    """Draw training loss (left) and accuracies (right) by epoch, one colour per run.

    Validation accuracy is solid; training accuracy, on augmented images, is dashed.

    Args:
        runs: name of the run -> records of its metrics.jsonl, as `read_run_files(folder).metrics`.
    """
    figure, rows, columns = new_panels(2, 2, 2.5)
    left, right = figure.subplots(rows, columns)
    for index, (name, metrics) in enumerate(runs.items()):
        style = _line_style(index, len(metrics))
        dashed = {**style, "linestyle": (0, (3, 1.5)), "marker": "", "alpha": 0.8}
        names = ("validation", "training (augmented)") if index == 0 else (None, None)
        run = escape_math(name, 32) if len(runs) > 1 else None
        _plot(left, [(record["epoch"], record["train"]["loss"]) for record in metrics], label=run, **style)
        _plot(right, [(record["epoch"], record["val_accuracy"]) for record in metrics], label=names[0], **style)
        _plot(right, [(record["epoch"], record["train"]["accuracy"]) for record in metrics], label=names[1], **dashed)
    left.set_ylabel("training loss")
    right.set_ylabel("accuracy")
    for axes in (left, right):
        epoch_axis(axes)
        light_grid(axes)
    right.legend(loc="lower right")
    if len(runs) > 1:
        left.legend()
    return figure


PANELS: tuple[tuple[str, str, str], ...] = (
    ("routing_entropy", "entropy / log k", "step"),
    ("routing_peak", "peak weight x k", "step"),
    ("beta", "β, mean over heads", "step"),
    ("bound", "bound ε", "shell"),
    ("field_motion", "field motion, rad / epoch", "shell"),
)
"""Logged measure, label of its axis, and whether it has one value per step or per shell."""


@styled
def inside_over_training(metrics: Metrics, steps: Sequence[str], shells: int) -> Figure:
    """Draw routing entropy and peak, β, bound and field motion by epoch, one line per step or shell.

    Args:
        metrics: records of metrics.jsonl; measures that were not logged have no panel.
        steps: names of the steps.
        shells: number of shells.
    """
    shown = [panel for panel in PANELS if any(record.get(panel[0]) for record in metrics)]
    figure, rows, columns = new_panels(len(shown) + 1, 3, 1.9 if on_phone() else 2.2)
    labels = {"step": list(steps), "shell": [str(i + 1) for i in range(shells)]}
    lines: dict[str, dict[str, Any]] = {"step": {}, "shell": {}}
    for number, (name, title, kind) in enumerate(shown, start=1):
        axes = figure.add_subplot(rows, columns, number)
        count = max(len(record.get(name) or ()) for record in metrics)
        for index, label in zip(range(count), labels[kind], strict=False):
            by_epoch = [(record["epoch"], dict(enumerate(record.get(name) or [])).get(index)) for record in metrics]
            lines[kind][label] = _plot(axes, by_epoch, **_line_style(index, len(metrics)))
        axes.set_ylabel(title)
        epoch_axis(axes)
        light_grid(axes)
    legends: Any = figure.add_subplot(rows, columns, len(shown) + 1)
    legends.set_axis_off()
    sides: Any = ("upper left", "upper right")
    for side, (kind, drawn) in zip(sides, lines.items(), strict=True):
        if drawn:
            handles, names = list(drawn.values()), list(drawn)
            legends.add_artist(Legend(legends, handles, names, loc=side, title=kind, borderaxespad=0))
    return figure


def _line_style(index: int, epochs: int) -> dict[str, Any]:
    mark = MARKS[index % len(MARKS)] if epochs <= MAX_MARKED_EPOCHS else ""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index % len(DASHES)], "marker": mark}


def _plot(axes: Any, points: Sequence[tuple[int, float | None]], **style: Any) -> Any:
    """Draw one line over the epochs that have a value."""
    known = [(epoch, number) for epoch, number in points if number is not None]
    return axes.plot([epoch for epoch, _ in known], [number for _, number in known], **style)[0]


@styled
def per_class_bars(runs: Mapping[str, Mapping[str, float | None]]) -> Figure:
    """Draw the accuracy of every class, easiest first (by the mean over runs), one bar per run.

    Args:
        runs: name of the run -> class -> accuracy, as `result["test"]["per_class"]` in result.json.
    """
    classes = _by_accuracy(runs)
    figure = new_figure(WIDE, 2.6)
    axes = figure.subplots()
    centres, width = np.arange(len(classes)), 0.8 / max(1, len(runs))
    for index, (name, accuracies) in enumerate(runs.items()):
        heights = [accuracies.get(label) or 0.0 for label in classes]
        offset = (index - (len(runs) - 1) / 2) * width
        style: Any = {"color": COLOURS[index % len(COLOURS)], "hatch": HATCHES[index % len(HATCHES)]}
        bars = axes.bar(centres + offset, heights, 0.94 * width, edgecolor="white", linewidth=0.4, **style)
        bars.set_label(escape_math(name, 32))
        if len(runs) == 1 and len(classes) <= 20:
            axes.bar_label(bars, [f"{height:.2f}" for height in heights], fontsize=7, padding=1)
    longest = max((len(label) for label in classes), default=0)
    long = longest * len(classes) > (40 if on_phone() else 90)
    names = [escape_math(label, 18) for label in classes]
    axes.set_xticks(centres, names, **({"rotation": 45, **SLANTED} if long else {}))
    axes.tick_params(axis="x", length=0, labelsize=7.5 if len(classes) <= 30 else 4)
    axes.set(ylabel="accuracy", ylim=(0, 1), xlim=(-0.6, len(classes) - 0.4))
    light_grid(axes)
    if len(runs) > 1:
        figure.legend(loc="outside upper center", ncols=1 if on_phone() else min(4, len(runs)))
    return figure


def _by_accuracy(runs: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """Return the classes sorted by mean accuracy, best first."""
    names = list(dict.fromkeys(label for accuracies in runs.values() for label in accuracies))

    def mean(label: str) -> float:
        known = [value for accuracies in runs.values() if (value := accuracies.get(label)) is not None]
        return sum(known) / len(known) if known else 0.0

    return sorted(names, key=mean, reverse=True)


@styled
def confusion_matrix(counts: Array, classes: Sequence[str]) -> Figure:
    """Draw the number of images by true class (rows) and predicted class (columns), shaded by fraction of the row.

    Args:
        counts: matrix (classes, classes), as `result["test"]["confusion"]` in result.json.
        classes: names of the classes.
    """
    side = min(16.0, max(3.6, 0.36 * len(classes) + 1.4))
    figure = new_figure(side, side)
    axes = figure.subplots()
    fraction = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shades = np.broadcast_to(to_rgba(BLUE), (*fraction.shape, 4)).copy()
    shades[..., 3] = fraction  # over the background, light or dark
    axes.imshow(shades)
    if len(classes) <= 20:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                ink = ON_COLOUR if fraction[row, column] > 0.5 else INK
                axes.text(column, row, str(int(count)), ha="center", va="center", fontsize=7, color=ink)
    names = [escape_math(name) for name in classes]
    small: dict[str, Any] = {"fontsize": 7 if len(classes) <= 50 else 4}
    slanted = {"rotation": 60, **SLANTED} if max(map(len, names)) > 2 else {}
    axes.set_xticks(range(len(names)), names, **small, **slanted)
    axes.set_yticks(range(len(names)), names, **small)
    axes.spines[:].set_visible(True)
    axes.set(xlabel="predicted", ylabel="true")
    return figure


@styled
def throughput_bars(speeds: Mapping[str, float], condition: str = "") -> Figure:
    """Draw images per second as bars, the first one in a darker colour.

    Args:
        speeds: name of a model or run -> images per second.
        condition: remark on the measurement for the axis label.
    """
    figure = new_figure(WIDE, 0.75 + 0.3 * len(speeds))
    axes = figure.subplots()
    heights = np.arange(len(speeds))[::-1]
    colours = [BLUE, *[LIGHT_BLUE] * max(0, len(speeds) - 1)]
    bars = axes.barh(heights, list(speeds.values()), 0.64, color=colours, zorder=2)
    axes.bar_label(bars, [f"{speed:,.0f}" for speed in speeds.values()], fontsize=7.5, padding=2)
    axes.set_yticks(heights, [escape_math(name, 44) for name in speeds])
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.1)
    axes.set_xlabel(f"images per second{condition and ' (' + escape_math(condition, 80) + ')'}")
    light_grid(axes, "x")
    return figure


@styled
def scaling_plot(points: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw seconds per step and peak memory against the number of vertices, both logarithmic, with fitted exponents.

    Args:
        points: mappings with `vertices`, `seconds` and `peak_mb`, as from `quatsphere bench scaling --json FILE`.
    """
    figure, rows, columns = new_panels(2, 2, 2.6)
    ordered = sorted(points, key=lambda point: point["vertices"])
    for axes, key, label, colour in zip(
        figure.subplots(rows, columns),
        ("seconds", "peak_mb"),
        ("seconds per step", "peak memory, MB"),
        COLOURS,
        strict=False,
    ):
        known = [point for point in ordered if point.get(key)]
        x, y = (np.array([float(point[name]) for point in known]) for name in ("vertices", key))
        axes.loglog(x, y, "o", color=colour, markersize=5, zorder=3, label="measured")
        if len(known) > 1:
            power, start = np.polyfit(np.log(x), np.log(y), 1)
            axes.loglog(x, np.exp(start) * x**power, color=colour, linewidth=1, label=f"fit: V^{power:.2f}")
            axes.loglog(x, y[-1] * x / x[-1], color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), label="linear")
        axes.set(xlabel="vertices in all shells", ylabel=label)
        light_grid(axes, "both")
        axes.legend()
    return figure
