"""Vertices as dots: a shell seen from outside, the image's centre in front; a flat lattice laid flat."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

ELEVATION, AZIMUTH = 14.0, -22.0
EDGE, OUTLINE = "#888888", "#BBBBBB"
Array = NDArray[Any]


def paint_vertices(figure: Figure, cell: tuple[int, int, int], positions: Array, colours: Array, size: float) -> Any:
    """Axes at `cell` with vertices (V, 3) on a sphere or (V, 2) on the plane, coloured by RGB (V, 3) in [0, 1]."""
    paint = _sphere if positions.shape[1] == 3 else _plane
    return paint(figure, cell, positions, colours, size)


def _plane(figure: Figure, cell: tuple[int, int, int], positions: Array, colours: Array, size: float) -> Any:
    axes = figure.add_subplot(*cell)
    axes.scatter(positions[:, 0], positions[:, 1], c=colours, s=size, edgecolors=EDGE, linewidths=0.4)
    axes.set(xlim=(-1.05, 1.05), ylim=(1.05, -1.05), aspect="equal")
    axes.set_axis_off()
    return axes


def _sphere(figure: Figure, cell: tuple[int, int, int], positions: Array, colours: Array, size: float) -> Any:
    """The near half in full colour, the far half small and pale.

    Longitude 0, the middle of the image, lies on the x axis; the polar axis y points down as image rows do. On
    screen (x, z, -y) are right-handed axes, so the shell shows the image as it is and not its mirror image.
    """
    axes = figure.add_subplot(*cell, projection="3d")
    radius = float(np.linalg.norm(positions, axis=1).max())
    places = np.column_stack((positions[:, 0], positions[:, 2], -positions[:, 1])) / radius
    towards, across, upwards = _camera()
    near = places @ towards > 0
    angle = np.linspace(0, 2 * math.pi, 100)[:, None]
    axes.plot(*(np.cos(angle) * across + np.sin(angle) * upwards).T, color=OUTLINE, linewidth=0.8)
    pale = 1 - 0.25 * (1 - colours[~near])
    axes.scatter(*places[~near].T, c=pale, s=size / 4, depthshade=False, edgecolors=OUTLINE, linewidths=0.3)
    axes.scatter(*places[near].T, c=colours[near], s=size, depthshade=False, edgecolors=EDGE, linewidths=0.4)
    axes.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(-1, 1))
    axes.set_proj_type("ortho")
    axes.set_box_aspect((1, 1, 1), zoom=1.55)
    axes.view_init(elev=ELEVATION, azim=AZIMUTH)
    axes.set_axis_off()
    return axes


def _camera() -> tuple[Array, Array, Array]:
    """Unit vectors towards the eye, to its right and up."""
    up, round_ = math.radians(ELEVATION), math.radians(AZIMUTH)
    towards = np.array([math.cos(up) * math.cos(round_), math.cos(up) * math.sin(round_), math.sin(up)])
    across = np.array([-math.sin(round_), math.cos(round_), 0.0])
    return towards, across, np.cross(towards, across)
