"""Maps: vertices on the equal-area map of their shell, and the pixels a prediction leans on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from quatsphere.report.figures.style import BLUE, GREY, ORANGE, WIDE, Array, styled


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
