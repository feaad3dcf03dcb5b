"""Figures of shells: samples of the first one, values on all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from quatsphere.diagnostics.view_trace import mean_colours
from quatsphere.report.figures.style import (
    BLUE,
    ON_COLOUR,
    ORANGE,
    SHELL_EDGE,
    SHELL_OUTLINE,
    Array,
    escape_math,
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
