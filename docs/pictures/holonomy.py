"""Draw holonomy.svg: a vector carried around triangles of the sphere by the attention kernel.

Every step is one application of `quaternion_attention` to a vertex with one neighbour. The learned connection
q_i* q_j is flat: with any quaternions the vector returns unchanged. With the parallel transport of the sphere as
rotations of edges it returns rotated by the area of the triangle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from quatsphere import quaternion_attention
from quatsphere.geometry import quaternion, sphere
from quatsphere.report.figures import save
from quatsphere.report.figures.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    Array,
    light_grid,
    new_panels,
    styled,
)

TARGET = Path(__file__).with_name("holonomy.svg")
STEPS = 7
FLAT, CURVED = "flat: no edge rotations", "parallel transport of the sphere"


def triangle(size: float) -> Tensor:
    """Corners (3, 3) of a triangle with right angles at two corners on the equator, `size` radians apart."""
    corners = [[1.0, 0.0, 0.0], [math.cos(size), math.sin(size), 0.0], [0.0, 0.0, 1.0]]
    return torch.tensor(corners, dtype=torch.float64)


def around(corners: Tensor) -> Tensor:
    """Points (3 STEPS + 1, 3) along the sides of the triangle and back to its first corner."""
    legs = []
    for start, end in zip(corners, corners.roll(-1, 0), strict=True):
        share = torch.arange(STEPS, dtype=torch.float64)[:, None] / STEPS
        angle = sphere.angular_separation(start, end)
        legs.append((torch.sin((1 - share) * angle) * start + torch.sin(share * angle) * end) / torch.sin(angle))
    return torch.cat((*legs, corners[:1]))


def carry(path: Tensor, vector: Tensor, curved: bool) -> Tensor:
    """The vector at every point of the path, in the frame of the surrounding space."""
    frames = quaternion.random_unit(len(path) - 1, dtype=torch.float64)
    frames = torch.cat((frames, frames[:1]))  # learned quaternions: any; the last vertex is the first
    x = quaternion.rotate(quaternion.conjugate(frames[0]), vector)  # the feature is in the vertex's own frame
    found = [vector]
    for here, (start, end) in enumerate(pairwise(path)):
        u = sphere.parallel_transport(start, end)[None, None] if curved else None
        features = torch.cat((x.new_zeros(1), x)).view(1, 1, 1, 1, 4)
        target, source = frames[here + 1].view(1, 1, 1, 4), frames[here].view(1, 1, 1, 4)
        graph, beta = torch.zeros(1, 1, dtype=torch.int64), x.new_ones(1)
        x = quaternion_attention(target, source, features, graph, beta, edge_rotation=u)[0, 0, 0, 0, 1:]
        found.append(quaternion.rotate(frames[here + 1], x))
    return torch.stack(found)


VIEW = np.array([1.0, 0.35, 0.55])
"""Direction from the centre of the sphere to the eye."""


@styled
def draw_figure(paths: Mapping[str, Array], vectors: Mapping[str, Array], turns: Mapping[str, Array]) -> Figure:
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


def main() -> None:
    """Write the picture."""
    torch.manual_seed(0)
    paths, vectors, turns = {}, {}, {}
    for name, curved in ((FLAT, False), (CURVED, True)):
        points = []
        for size in torch.linspace(0.1, 1.5, 8).tolist():
            corners = triangle(size)
            found = carry(around(corners), corners.new_tensor([0.0, 0.0, 1.0]), curved)
            angle = sphere.angular_separation(found[0], found[-1])
            points.append([float(sphere.triangle_area(*corners)), float(angle)])
        path = around(triangle(1.2))
        paths[name] = path.numpy()
        vectors[name] = carry(path, path.new_tensor([0.0, 0.0, 1.0]), curved).numpy()
        turns[name] = torch.tensor(points).numpy()
    save(draw_figure(paths, vectors, turns), TARGET)


if __name__ == "__main__":
    main()
