"""Figure of holonomy: vectors carried around a triangle of the sphere by connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from quatsphere.report.figures.style import BLUE, GREEN, GREY, INK, ORANGE, PALE, Array, light_grid, new_panels, styled

VIEW = np.array([1.0, 0.35, 0.55])
"""Direction from the centre of the sphere to the eye."""


@styled
def holonomy(paths: Mapping[str, Array], vectors: Mapping[str, Array], turns: Mapping[str, Array]) -> Figure:
    """Draw, for each connection, a vector carried around a triangle and the angle by which it returns turned.

    Args:
        paths: name of a connection -> points (n, 3) of a closed path on the unit sphere; the first is also the last.
        vectors: name -> the vector (n, 3) at each point of the path.
        turns: name -> (m, 2): area of a triangle and angle between the first and the last vector, in radians.
    """
    figure, rows, columns = new_panels(len(paths) + 1, 3, 2.9, width=8.4)
    right, up, towards = _camera()
    for number, (name, path) in enumerate(paths.items()):
        axes = figure.add_subplot(rows, columns, number + 1)
        _draw_globe(axes, right, up, towards)
        _draw_path(axes, path @ right, path @ up, vectors[name] @ right, vectors[name] @ up)
        axes.set_title(name)
    axes = figure.add_subplot(rows, columns, len(paths) + 1)
    for (name, points), colour, mark in zip(turns.items(), (BLUE, ORANGE), ("s", "o"), strict=False):
        axes.plot(points[:, 0], points[:, 1], mark, color=colour, label=name, markersize=3)
    most = max(float(points[:, 0].max()) for points in turns.values())
    axes.plot([0, most], [0, most], color=GREY, linewidth=0.8, zorder=0)
    axes.annotate("angle = area", (most * 0.6, most * 0.62), rotation=45, ha="right", va="bottom", color=GREY)
    axes.set(xlabel="area of the triangle", ylabel="angle on return (radians)", box_aspect=1)
    axes.legend(loc="upper left")
    light_grid(axes, "both")
    return figure


def _camera() -> tuple[Array, Array, Array]:
    """Return unit vectors to the right and up on the page, and towards the eye."""
    towards = VIEW / np.linalg.norm(VIEW)
    right = np.cross([0.0, 0.0, 1.0], towards)
    right /= np.linalg.norm(right)
    return right, np.cross(towards, right), towards


def _draw_globe(axes: Any, right: Array, up: Array, towards: Array) -> None:
    """Draw the outline and the visible halves of some circles of latitude and longitude."""
    angle = np.linspace(0, 2 * np.pi, 181)
    axes.plot(np.cos(angle), np.sin(angle), color=GREY, linewidth=0.8)
    for degree in range(0, 180, 30):
        turn, height = np.radians(degree), np.sin(np.radians(degree - 60))
        meridian = np.stack((np.cos(turn) * np.cos(angle), np.sin(turn) * np.cos(angle), np.sin(angle)), axis=1)
        radius = np.sqrt(max(0.0, 1 - height**2))
        parallel = np.stack((radius * np.cos(angle), radius * np.sin(angle), np.full_like(angle, height)), axis=1)
        for circle in (meridian, parallel):
            shown = np.where((circle @ towards > 0)[:, None], circle, np.nan)
            axes.plot(shown @ right, shown @ up, color=PALE, linewidth=0.6, zorder=0)
    axes.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal")
    axes.set_axis_off()


def _draw_path(axes: Any, x: Array, y: Array, dx: Array, dy: Array) -> None:
    """Draw a path and its vectors; the first is green, the last orange."""
    axes.plot(x, y, color=INK, linewidth=1.0)
    arrows: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 2.6, "width": 0.011}
    axes.quiver(x[1:-1], y[1:-1], dx[1:-1], dy[1:-1], color=BLUE, alpha=0.55, zorder=3, **arrows)
    axes.quiver(x[-1:], y[-1:], dx[-1:], dy[-1:], color=ORANGE, zorder=4, label="on return", **arrows | {"width": 0.02})
    axes.quiver(x[:1], y[:1], dx[:1], dy[:1], color=GREEN, zorder=5, label="at the start", **arrows)
    axes.plot(x[:1], y[:1], "o", color=INK, markersize=4, zorder=6)
    axes.legend(loc="lower center", ncols=2, bbox_to_anchor=(0.5, -0.06))
