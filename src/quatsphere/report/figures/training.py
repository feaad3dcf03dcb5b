"""How training went: loss and accuracy, and what the model's inside did meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from quatsphere.report.figures.style import COLOURS, DASHES, MARKS, WIDE, light_grid, plain, styled, whole_epochs

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
