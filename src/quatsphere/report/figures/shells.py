"""Figures of spheres: samples of the first shell, values on all shells, vectors carried around triangles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from quatsphere.diagnostics.view_trace import mean_colours
from quatsphere.report.figures.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ON_COLOUR,
    ORANGE,
    PALE,
    SHELL_EDGE,
    SHELL_OUTLINE,
    Array,
    escape_math,
    light_grid,
    new_panels,
    on_phone,
    styled,
)

ELEVATION, AZIMUTH = 14.0, -22.0
PanelIndex = tuple[int, int, int]
"""Rows, columns and number of a panel."""


@styled
def sampling_preview(image: Array, points: Array, samples: Array, positions: Array, title: str) -> Figure:
    """Draw an image, the points where the first shell samples it, and the mean sample of each vertex on the shell.

    Args:
        image: pixels (C, H, W) in [0, 1].
        points: image coordinates (V, S, 2) of all samples, as from `first_shell_samples`.
        samples: sampled values (V, S, C).
        positions: positions of the vertices, (V, 3) on the sphere or (V, 2) on the plane.
        title: title of the image.
    """
    figure, rows, columns = new_panels(3, 3, 3.2 if on_phone() else 3.8, width=11.4)
    left, middle = (figure.add_subplot(rows, columns, number) for number in (1, 2))
    grey: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": 1}
    shown, options = (image[0], grey) if len(image) == 1 else (np.moveaxis(image, 0, -1), {})
    for axes in (left, middle):
        axes.imshow(shown, extent=(-1, 1, 1, -1), interpolation="nearest", **options)
        axes.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], xlim=(-1, 1), ylim=(1, -1))
    left.set_title(escape_math(title, 48), fontsize=10)
    middle.scatter(points[..., 0], points[..., 1], s=2, c=ORANGE, linewidths=0)
    centre = points[:, points.shape[1] // 2]
    middle.scatter(centre[:, 0], centre[:, 1], s=14, c=BLUE, edgecolors=ON_COLOUR, linewidths=0.4)
    middle.set_title(f"{points.shape[0]} vertices x {points.shape[1]} samples", fontsize=10)
    shell = _draw_vertices(figure, (rows, columns, 3), positions, mean_colours(samples), 80)
    shell.set_title("mean sample at each vertex of shell 1", fontsize=10)
    return figure


@styled
def shell_values(positions: Sequence[Array], values: Sequence[Array], label: str) -> Figure:
    """Draw all shells side by side, vertices coloured by a value on a common scale.

    Args:
        positions: positions (V, 3) or (V, 2) of the vertices of each shell, outer shell first.
        values: one value (V,) per vertex of each shell.
        label: name of the value.
    """
    width = 2.5 * len(positions) + 0.9
    figure, rows, columns = new_panels(len(positions), max(4, len(positions)), 1.8 if on_phone() else 2.7, width=width)
    flat = np.concatenate(values)
    scale = ScalarMappable(Normalize(float(flat.min()), float(flat.max())), colormaps["viridis"])
    panels = []
    for index, (position, value) in enumerate(zip(positions, values, strict=True)):
        colours = scale.to_rgba(value)[:, :3]
        panels.append(_draw_vertices(figure, (rows, columns, index + 1), position, colours, 14 if on_phone() else 36))
        panels[-1].set_title(f"shell {index + 1}, V = {len(position)}", fontsize=9)
    bar = figure.colorbar(scale, ax=panels, shrink=0.8, pad=0.02)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=7)
    return figure


def _draw_vertices(figure: Figure, panel: PanelIndex, positions: Array, colours: Array, size: float) -> Any:
    """Add axes with vertices (V, 3) on a sphere or (V, 2) on the plane, coloured by RGB (V, 3) in [0, 1]."""
    draw = _draw_sphere if positions.shape[1] == 3 else _draw_plane
    return draw(figure, panel, positions, colours, size)


def _draw_plane(figure: Figure, panel: PanelIndex, positions: Array, colours: Array, size: float) -> Any:
    axes = figure.add_subplot(*panel)
    axes.scatter(positions[:, 0], positions[:, 1], c=colours, s=size, edgecolors=SHELL_EDGE, linewidths=0.4)
    axes.set(xlim=(-1.05, 1.05), ylim=(1.05, -1.05), aspect="equal")
    axes.set_axis_off()
    return axes


def _draw_sphere(figure: Figure, panel: PanelIndex, positions: Array, colours: Array, size: float) -> Any:
    """Draw the near half in full colour and the far half small and pale.

    Longitude 0, the middle of the image, is on the x axis; the polar axis y points down, as image rows do. On screen
    (x, z, -y) are right-handed axes, so the shell shows the image and not its mirror image.
    """
    axes = figure.add_subplot(*panel, projection="3d")
    radius = float(np.linalg.norm(positions, axis=1).max())
    points = np.column_stack((positions[:, 0], positions[:, 2], -positions[:, 1])) / radius
    towards, right, up = _camera_axes()
    near = points @ towards > 0
    angle = np.linspace(0, 2 * math.pi, 100)[:, None]
    axes.plot(*(np.cos(angle) * right + np.sin(angle) * up).T, color=SHELL_OUTLINE, linewidth=0.8)
    pale = np.column_stack((colours[~near], np.full((~near).sum(), 0.25)))  # over the background, light or dark
    axes.scatter(*points[~near].T, c=pale, s=size / 4, depthshade=False, edgecolors=SHELL_OUTLINE, linewidths=0.3)
    axes.scatter(*points[near].T, c=colours[near], s=size, depthshade=False, edgecolors=SHELL_EDGE, linewidths=0.4)
    axes.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(-1, 1))
    axes.set_proj_type("ortho")
    axes.set_box_aspect((1, 1, 1), zoom=1.55)
    axes.view_init(elev=ELEVATION, azim=AZIMUTH)
    axes.set_axis_off()
    return axes


def _camera_axes() -> tuple[Array, Array, Array]:
    """Return unit vectors towards the eye, to its right and up."""
    elevation, azimuth = math.radians(ELEVATION), math.radians(AZIMUTH)
    level = np.array([math.cos(azimuth), math.sin(azimuth), 0.0])
    towards = math.cos(elevation) * level + np.array([0.0, 0.0, math.sin(elevation)])
    right = np.array([-math.sin(azimuth), math.cos(azimuth), 0.0])
    return towards, right, np.cross(towards, right)


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
