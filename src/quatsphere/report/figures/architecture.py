"""Schematic figures of the paper: comparison of the two kernels, and QSV in one view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

from quatsphere.report.figures.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PAPER,
    PURPLE,
    SHADES,
    Array,
    fill_caption,
    new_panels,
    styled,
)

_Point = tuple[float, float]


class Box(NamedTuple):
    """A rectangle, given by its centre."""

    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> _Point:
        """Middle of the left side."""
        return self.x - self.width / 2, self.y

    @property
    def right(self) -> _Point:
        """Middle of the right side."""
        return self.x + self.width / 2, self.y

    @property
    def top(self) -> _Point:
        """Middle of the upper side."""
        return self.x, self.y + self.height / 2

    @property
    def bottom(self) -> _Point:
        """Middle of the lower side."""
        return self.x, self.y - self.height / 2


def draw_box(axes: Any, box: Box, text: str, colour: str = GREY, *, size: float = 8) -> Box:
    """Draw a rounded box with text and return it."""
    corner = (box.x - box.width / 2, box.y - box.height / 2)
    style: Any = {"boxstyle": "round,pad=0,rounding_size=0.08", "linewidth": 1.1, "zorder": 3}
    axes.add_patch(FancyBboxPatch(corner, box.width, box.height, facecolor=PAPER, edgecolor="none", **style))
    axes.add_patch(
        FancyBboxPatch(corner, box.width, box.height, facecolor=to_rgba(colour, 0.16), edgecolor=colour, **style)
    )
    axes.text(box.x, box.y, text, ha="center", va="center", fontsize=size, color=INK, zorder=4)
    return box


def draw_arrow(axes: Any, start: _Point, end: _Point, colour: str = INK, bend: float = 0.0) -> None:
    """Draw a straight or bent arrow."""
    style: Any = {"arrowstyle": "-|>", "mutation_scale": 8, "shrinkA": 1, "shrinkB": 1, "linewidth": 1.0, "zorder": 2}
    axes.add_patch(FancyArrowPatch(start, end, color=colour, connectionstyle=f"arc3,rad={bend}", **style))


def blank_axes(axes: Any, width: float, height: float) -> None:
    """Prepare axes with equal units, without ticks or frame."""
    axes.set(xlim=(0, width), ylim=(0, height), aspect="equal", anchor="N")
    axes.set_axis_off()


ROUTING, TRANSPORT = BLUE, ORANGE
"""Colours of the two roles of the kernel."""


@styled
def kernel_comparison(
    dot_parameters: int | None = None, quaternion_parameters: int | None = None, perturbation: int | None = None
) -> Figure:
    """Draw (a) dot-product attention with three projections and (b) the kernel with one relative quaternion.

    Args:
        dot_parameters: parameters of (a) at width 256, written below it.
        quaternion_parameters: parameters of (b) at width 256.
        perturbation: parameters of the perturbation networks of the same steps, which the paper does not count.
    """
    figure, rows, columns = new_panels(2, 2, 2.9)
    left, right = figure.subplots(rows, columns)
    _draw_dot_product(left)
    _draw_coupled(right)
    for axes, title, count in (
        (left, "(a) scaled dot-product attention", dot_parameters),
        (right, "(b) coupled quaternion kernel", quaternion_parameters),
    ):
        axes.set_title(title)
        if count is not None:
            axes.text(3.5, 0.02, f"{count:,} kernel parameters at d = 256", ha="center", fontsize=7.5, color=GREY)
    if perturbation is not None:
        text = f"not counted: {perturbation:,} of its perturbation networks"
        right.text(3.5, -0.38, text, ha="center", fontsize=7.5, color=GREY)
    return figure


def _draw_dot_product(axes: Any) -> None:
    blank_axes(axes, 7, 5.2)
    target = draw_box(axes, Box(0.55, 4.4, 0.9, 0.6), "$x_i$")
    source = draw_box(axes, Box(0.55, 1.9, 0.9, 0.6), "$x_j$")
    query = draw_box(axes, Box(2.1, 4.4, 0.95, 0.6), "$W_Q$", ROUTING)
    key = draw_box(axes, Box(2.1, 2.9, 0.95, 0.6), "$W_K$", ROUTING)
    value = draw_box(axes, Box(2.1, 1.1, 0.95, 0.6), "$W_V$", TRANSPORT)
    weight = draw_box(
        axes, Box(4.35, 3.65, 2.3, 0.95), "$C_{ij} =$ softmax$_j$\n$(q_i \\cdot k_j\\,/\\,\\sqrt{d})$", ROUTING
    )
    message = draw_box(axes, Box(4.35, 1.1, 2.3, 0.75), "$m_{ij} = W_V x_j$", TRANSPORT)
    _draw_sum(axes, weight, message)
    for start, end in (
        (target.right, query.left),
        (source.right, key.left),
        (source.right, value.left),
        (query.right, (3.2, 3.95)),
        (key.right, (3.2, 3.4)),
        (value.right, message.left),
    ):
        draw_arrow(axes, start, end)


def _draw_coupled(axes: Any) -> None:
    blank_axes(axes, 7, 5.2)
    target = draw_box(axes, Box(0.6, 4.4, 1.1, 0.7), "$x_i,\\ q_i$")
    source = draw_box(axes, Box(0.6, 1.1, 1.1, 0.7), "$x_j,\\ q_j$")
    draw_box(axes, Box(2.15, 2.75, 1.45, 0.95), "$r_{ij} =$\n$q_i^{*} \\otimes q_j$", GREEN)
    weight = draw_box(axes, Box(4.55, 3.85, 2.1, 0.95), "$C_{ij} =$ softmax$_j$\n$(\\beta_h\\,$Re$\\,r_{ij})$", ROUTING)
    message = draw_box(
        axes, Box(4.55, 1.1, 2.1, 0.95), "$m_{ij} =$\n$r_{ij} \\otimes x_j \\otimes r_{ij}^{*}$", TRANSPORT
    )
    _draw_sum(axes, weight, message)
    draw_arrow(axes, target.bottom, (1.75, 3.22))
    draw_arrow(axes, source.top, (1.75, 2.28))
    draw_arrow(axes, (2.6, 3.22), (3.5, 3.75), ROUTING)
    draw_arrow(axes, (2.6, 2.28), (3.5, 1.5), TRANSPORT)
    draw_arrow(axes, source.right, message.left)
    axes.text(2.55, 3.68, "how much", fontsize=7, color=ROUTING, ha="center")
    axes.text(2.62, 1.68, "what", fontsize=7, color=TRANSPORT, ha="center")


def _draw_sum(axes: Any, weight: Box, message: Box) -> None:
    """Draw the weighted sum at the right, the same in both kernels."""
    total = draw_box(axes, Box(6.4, 2.4, 1.05, 1.1), "$z_i =$\n$\\sum_j C_{ij} m_{ij}$", GREY, size=7.5)
    draw_arrow(axes, (weight.right[0], weight.y - 0.1), total.top, ROUTING, bend=-0.25)
    draw_arrow(axes, (message.right[0], message.y + 0.1), total.bottom, TRANSPORT, bend=0.25)


WITHIN = PURPLE
"""Colour of the edges within a shell."""
SLICE = 0.22
"""Half the thickness of the drawn slice through the shells, as a fraction of each radius."""

COSTS = ("routing_uniform", "transport_identity", "both_off", "frozen_random")
"""Variants whose cost is a label in the figure."""

Edges = Sequence[tuple[Array, Array]]
"""Position of a target and positions of its sources, on the same shell or on the next outer shell."""


@styled
def qsv_in_one_view(positions: Sequence[Array], edges: Edges, costs: Mapping[str, float], source: str) -> Figure:
    """Draw (a) a slice through the shells and (b) the kernel with the cost of removing each role.

    Args:
        positions: vertex positions (V, 3) of each shell, outer shell first.
        edges: targets whose neighbours are drawn as lines.
        costs: variant of `COSTS` -> change of accuracy in points; missing variants have no label.
        source: caption with the origin of the shells and the costs.
    """
    figure, rows, columns = new_panels(2, 2, 3.9)
    left, right = figure.subplots(rows, columns, width_ratios=(1.12, 1)[:columns])
    _draw_shells(left, positions, edges)
    _draw_kernel(right, costs)
    left.set_title("(a) from the image inwards through the shells")
    right.set_title("(b) the coupled kernel, and the cost of removing a role")
    figure.supxlabel(fill_caption(source), fontsize=7, color=GREY)
    return figure


def _draw_shells(axes: Any, positions: Sequence[Array], edges: Edges) -> None:
    blank_axes(axes, 8, 7)
    centre, scale = np.array([4.75, 3.68]), 2.62
    _draw_image(axes)
    for shell, places in enumerate(positions):
        radius = float(np.linalg.norm(places[0]))
        axes.add_patch(Circle(tuple(centre), scale * radius, facecolor="none", edgecolor=PALE, linewidth=0.8, zorder=1))
        near = places[np.abs(places[:, 1]) < SLICE * radius]
        colour = SHADES[min(shell, len(SHADES) - 1)]
        axes.scatter(*_project(near, centre, scale).T, s=11, color=colour, edgecolors="white", linewidths=0.3, zorder=4)
    for target, sources in edges:
        within = np.allclose(np.linalg.norm(sources, axis=1), np.linalg.norm(target), rtol=1e-3)
        colour, (end,) = WITHIN if within else INK, _project(target[None], centre, scale)
        for start in _project(sources, centre, scale):
            axes.plot(*np.stack((start, end)).T, color=colour, linewidth=0.5, alpha=0.7, zorder=3)
        axes.scatter(*end, s=20, facecolor="white", edgecolor=colour, linewidth=0.9, zorder=5)
    counts = " → ".join(str(len(places)) for places in positions)
    axes.text(centre[0], 0.72, f"vertices: {counts}", ha="center", fontsize=7, color=INK)
    axes.text(centre[0], 0.25, "lines: neighbours of one vertex", ha="center", fontsize=7, color=GREY)
    _draw_labels(axes, centre)


def _project(places: Array, centre: Array, scale: float) -> Array:
    """Project along the polar axis; vertices in the slice are moved onto their circle."""
    seen = places[:, (2, 0)]
    radius = np.linalg.norm(places, axis=1, keepdims=True)
    in_slice = np.abs(places[:, 1:2]) < SLICE * radius
    length = np.linalg.norm(seen, axis=1, keepdims=True)
    return np.asarray(centre + scale * np.where(in_slice, seen / np.maximum(length, 1e-9) * radius, seen))


def _draw_image(axes: Any) -> None:
    """Draw an image as a grid of pixels and an arrow to the first shell."""
    side = np.linspace(-1, 1, 12)
    shade = np.exp(-(side[:, None] ** 2 * 2 + side[None] ** 2 * 4)) + 0.25 * side[:, None]
    axes.imshow(shade, extent=(0.05, 1.45, 3.0, 4.4), cmap="Greys", vmin=-0.3, vmax=1.4, zorder=2)
    axes.add_patch(Rectangle((0.05, 3.0), 1.4, 1.4, facecolor="none", edgecolor=GREY, linewidth=0.7, zorder=3))
    axes.set(xlim=(0, 8), ylim=(0, 7))
    axes.text(0.75, 4.55, "image", ha="center", fontsize=7.5)
    axes.text(0.8, 2.85, "Lambert patch\nembedding,\n5 x 5 samples", ha="center", va="top", fontsize=7, color=GREY)
    draw_arrow(axes, (1.5, 3.75), (1.95, 3.75))


def _draw_labels(axes: Any, centre: Array) -> None:
    """Label the steps within the first and last shell, and the output."""
    axes.text(0.8, 5.6, "first step:\nwithin the\nfirst shell", ha="center", va="center", fontsize=7, zorder=6)
    axes.text(*centre, "two rounds\nwithin the\nlast shell", ha="center", va="center", fontsize=7, zorder=6)
    out = draw_box(axes, Box(4.75, 6.75, 3.9, 0.44), "pooling, classifier → logits", GREY, size=7)
    draw_arrow(axes, (centre[0], centre[1] + 0.45), out.bottom, GREEN)


def _draw_kernel(axes: Any, costs: Mapping[str, float]) -> None:
    blank_axes(axes, 7, 7)
    target = draw_box(axes, Box(1.2, 6.3, 2.2, 0.7), "target $x_i,\\ q_i$")
    source = draw_box(axes, Box(5.8, 6.3, 2.2, 0.7), "source $x_j,\\ q_j$")
    draw_box(axes, Box(3.5, 4.75, 2.7, 0.8), "$r_{ij} = q_i^{*} \\otimes q_j$", GREEN, size=8.5)
    weight = draw_box(axes, Box(1.5, 2.95, 2.8, 0.95), "routing\nsoftmax$_j(\\beta_h\\,$Re$\\,r_{ij})$", ROUTING)
    message = draw_box(
        axes, Box(5.4, 2.95, 2.8, 0.95), "transport\n$r_{ij} \\otimes x_j \\otimes r_{ij}^{*}$", TRANSPORT
    )
    draw_box(axes, Box(3.5, 1.05, 3.0, 0.7), "$z_i = \\sum_j C_{ij}\\, m_{ij}$")
    for start, end in ((target.bottom, (2.6, 5.2)), (source.bottom, (4.4, 5.2))):
        draw_arrow(axes, start, end)
    draw_arrow(axes, (2.8, 4.33), weight.top, ROUTING)
    draw_arrow(axes, (4.2, 4.33), message.top, TRANSPORT)
    draw_arrow(axes, (6.2, source.bottom[1]), (6.2, message.top[1]), GREY)
    draw_arrow(axes, (2.65, weight.bottom[1]), (3.1, 1.42), ROUTING)
    draw_arrow(axes, (4.3, message.bottom[1]), (3.9, 1.42), TRANSPORT)
    _draw_cost(axes, (0.1, 2.15), "uniform 1/k", costs.get("routing_uniform"), "left")
    _draw_cost(axes, (6.8, 2.15), "identity", costs.get("transport_identity"), "right")
    _draw_cost(axes, (6.8, 1.05), "both", costs.get("both_off"), "right")
    _draw_cost(axes, (2.0, 4.7), "frozen random\nfield", costs.get("frozen_random"), "right")


def _draw_cost(axes: Any, place: tuple[float, float], change: str, points: float | None, side: str) -> None:
    if points is not None:
        text = f"{change}: {points:+.1f}".replace("-", "\N{MINUS SIGN}")
        axes.text(*place, text, ha=side, va="center", fontsize=7.5, fontweight="bold", color=INK, zorder=5)
