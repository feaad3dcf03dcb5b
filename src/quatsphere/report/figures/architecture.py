"""The paper's second figure: QSV in one view, the coupled kernel with what each of its roles is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

from quatsphere.report.figures.style import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, WIDE, Array, styled

Point = tuple[float, float]


class Box(NamedTuple):
    """A rectangle by its centre."""

    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> Point:
        """Middle of the left side."""
        return self.x - self.width / 2, self.y

    @property
    def right(self) -> Point:
        """Middle of the right side."""
        return self.x + self.width / 2, self.y

    @property
    def top(self) -> Point:
        """Middle of the upper side."""
        return self.x, self.y + self.height / 2

    @property
    def bottom(self) -> Point:
        """Middle of the lower side."""
        return self.x, self.y - self.height / 2


def draw_box(axes: Any, box: Box, text: str, colour: str = GREY, *, size: float = 8, filled: bool = True) -> Box:
    """A rounded box with text in it."""
    corner = (box.x - box.width / 2, box.y - box.height / 2)
    face = _tint(colour) if filled else "white"
    axes.add_patch(
        FancyBboxPatch(
            corner,
            box.width,
            box.height,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=face,
            edgecolor=colour,
            linewidth=1.1,
            zorder=3,
        )
    )
    axes.text(box.x, box.y, text, ha="center", va="center", fontsize=size, color=INK, zorder=4)
    return box


def draw_arrow(axes: Any, start: Point, end: Point, colour: str = INK, bend: float = 0.0, dashed: bool = False) -> None:
    """An arrow, straight or bent."""
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=8,
            shrinkA=1,
            shrinkB=1,
            connectionstyle=f"arc3,rad={bend}",
            color=colour,
            linewidth=1.0,
            linestyle="--" if dashed else "-",
            zorder=2,
        )
    )


def blank_axes(axes: Any, width: float, height: float) -> None:
    """Axes of equal units without ticks or frame."""
    axes.set(xlim=(0, width), ylim=(0, height), aspect="equal", anchor="N")
    axes.set_axis_off()


def _tint(colour: str, share: float = 0.16) -> tuple[float, float, float]:
    """A pale version of a colour, for print."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 1 - share * (1 - red), 1 - share * (1 - green), 1 - share * (1 - blue)


ROUTE, CARRY = BLUE, ORANGE
"""Colours of the two roles: how much to attend, what to do with the message."""


@styled
def kernel_comparison(
    dot_parameters: int | None = None, quaternion_parameters: int | None = None, perturbation: int | None = None
) -> Figure:
    """(a) three projections, one each for query, key and value; (b) one relative quaternion for both roles.

    The numbers of parameters of either kernel at equal width stand below, where given, and under (b) those of the
    perturbation networks of the same steps, which the paper does not count.
    """
    figure = Figure(figsize=(WIDE, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    _dot_product(left)
    _coupled(right)
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


def _dot_product(axes: Any) -> None:
    blank_axes(axes, 7, 5.2)
    target, source = (
        draw_box(axes, Box(0.55, 4.4, 0.9, 0.6), "$x_i$"),
        draw_box(axes, Box(0.55, 1.9, 0.9, 0.6), "$x_j$"),
    )
    query = draw_box(axes, Box(2.1, 4.4, 0.95, 0.6), "$W_Q$", ROUTE)
    key = draw_box(axes, Box(2.1, 2.9, 0.95, 0.6), "$W_K$", ROUTE)
    value = draw_box(axes, Box(2.1, 1.1, 0.95, 0.6), "$W_V$", CARRY)
    weight = draw_box(
        axes, Box(4.35, 3.65, 2.3, 0.95), "$C_{ij} =$ softmax$_j$\n$(q_i \\cdot k_j\\,/\\,\\sqrt{d})$", ROUTE
    )
    message = draw_box(axes, Box(4.35, 1.1, 2.3, 0.75), "$m_{ij} = W_V x_j$", CARRY)
    _finish(axes, weight, message)
    for start, end in (
        (target.right, query.left),
        (source.right, key.left),
        (source.right, value.left),
        (query.right, (3.2, 3.95)),
        (key.right, (3.2, 3.4)),
        (value.right, message.left),
    ):
        draw_arrow(axes, start, end)


def _coupled(axes: Any) -> None:
    blank_axes(axes, 7, 5.2)
    target = draw_box(axes, Box(0.6, 4.4, 1.1, 0.7), "$x_i,\\ q_i$")
    source = draw_box(axes, Box(0.6, 1.1, 1.1, 0.7), "$x_j,\\ q_j$")
    draw_box(axes, Box(2.15, 2.75, 1.45, 0.95), "$r_{ij} =$\n$q_i^{*} \\otimes q_j$", GREEN)
    weight = draw_box(axes, Box(4.55, 3.85, 2.1, 0.95), "$C_{ij} =$ softmax$_j$\n$(\\beta_h\\,$Re$\\,r_{ij})$", ROUTE)
    message = draw_box(axes, Box(4.55, 1.1, 2.1, 0.95), "$m_{ij} =$\n$r_{ij} \\otimes x_j \\otimes r_{ij}^{*}$", CARRY)
    _finish(axes, weight, message)
    draw_arrow(axes, target.bottom, (1.75, 3.22))
    draw_arrow(axes, source.top, (1.75, 2.28))
    draw_arrow(axes, (2.6, 3.22), (3.5, 3.75), ROUTE)
    draw_arrow(axes, (2.6, 2.28), (3.5, 1.5), CARRY)
    draw_arrow(axes, source.right, message.left)
    axes.text(2.55, 3.68, "how much", fontsize=7, color=ROUTE, ha="center")
    axes.text(2.62, 1.68, "what", fontsize=7, color=CARRY, ha="center")


def _finish(axes: Any, weight: Box, message: Box) -> None:
    """The weighted sum at the right, the same in both kernels."""
    total = draw_box(axes, Box(6.4, 2.4, 1.05, 1.1), "$z_i =$\n$\\sum_j C_{ij} m_{ij}$", GREY, size=7.5)
    draw_arrow(axes, (weight.right[0], weight.y - 0.1), total.top, ROUTE, bend=-0.25)
    draw_arrow(axes, (message.right[0], message.y + 0.1), total.bottom, CARRY, bend=0.25)


SHADES = ("#9ECAE1", "#6BAED6", "#4292C6", "#2171B5", "#084594")
"""Shells from outside in: one hue, darker inwards, told apart in grey."""
WITHIN = PURPLE
"""Colour of the edges within a shell."""
SLAB = 0.22
"""Half the thickness of the slice through the shells that is drawn, as a share of each radius."""

COSTS = ("routing_uniform", "transport_identity", "both_off", "frozen_random")
"""Variants whose cost is a label of the figure."""

Edges = Sequence[tuple[Array, Array]]
"""Position of one target and positions of its sources: on its own shell (first step) or on the shell outside."""


@styled
def qsv_in_one_view(positions: Sequence[Array], edges: Edges, costs: Mapping[str, float], source: str) -> Figure:
    """(a) a slice through the shells: positions (V, 3), outer first; (b) the kernel.

    `costs` are changes of accuracy in points: routing_uniform, transport_identity, both_off, frozen_random; those
    missing are left out. `source` is the caption below: what is drawn, and from which runs the costs are.
    """
    figure = Figure(figsize=(WIDE, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.12, 1))
    _shells(left, positions, edges)
    _kernel(right, costs)
    left.set_title("(a) from the image inwards through the shells")
    right.set_title("(b) the coupled kernel, and the cost of removing a role")
    figure.supxlabel(source, fontsize=7, color=GREY)
    return figure


def _shells(axes: Any, positions: Sequence[Array], edges: Edges) -> None:
    blank_axes(axes, 8, 7)
    centre, scale = np.array([4.75, 3.68]), 2.62
    _image(axes)
    for shell, places in enumerate(positions):
        radius = float(np.linalg.norm(places[0]))
        axes.add_patch(Circle(tuple(centre), scale * radius, facecolor="none", edgecolor=PALE, linewidth=0.8, zorder=1))
        near = places[np.abs(places[:, 1]) < SLAB * radius]
        colour = SHADES[min(shell, len(SHADES) - 1)]
        axes.scatter(*_flat(near, centre, scale).T, s=11, color=colour, edgecolors="white", linewidths=0.3, zorder=4)
    for target, sources in edges:
        _neighbours(axes, _flat(target[None], centre, scale)[0], _flat(sources, centre, scale), _same(target, sources))
    counts = " → ".join(str(len(places)) for places in positions)
    axes.text(centre[0], 0.72, f"vertices: {counts}", ha="center", fontsize=7, color=INK)
    axes.text(centre[0], 0.25, "lines: the neighbours of one vertex", ha="center", fontsize=7, color=GREY)
    _steps_within(axes, centre)


def _same(target: Array, sources: Array) -> bool:
    """Whether target and sources lie on one shell."""
    return bool(np.allclose(np.linalg.norm(sources, axis=1), np.linalg.norm(target), rtol=1e-3))


def _neighbours(axes: Any, target: Array, sources: Array, within: bool) -> None:
    colour = WITHIN if within else INK
    for source in sources:
        axes.plot(*np.stack((source, target)).T, color=colour, linewidth=0.5, alpha=0.7, zorder=3)
    axes.scatter(*target, s=20, facecolor="white", edgecolor=colour, linewidth=0.9, zorder=5)


def _flat(places: Array, centre: Array, scale: float) -> Array:
    """Seen along the polar axis; vertices of the slice are put on their circle."""
    seen = places[:, (2, 0)]
    radius = np.linalg.norm(places, axis=1, keepdims=True)
    slab = np.abs(places[:, 1:2]) < SLAB * radius
    length = np.linalg.norm(seen, axis=1, keepdims=True)
    return np.asarray(centre + scale * np.where(slab, seen / np.maximum(length, 1e-9) * radius, seen))


def _image(axes: Any) -> None:
    """An image as a grid of pixels, and the way onto the first shell."""
    side = np.linspace(-1, 1, 12)
    shade = np.exp(-(side[:, None] ** 2 * 2 + side[None] ** 2 * 4)) + 0.25 * side[:, None]
    axes.imshow(shade, extent=(0.05, 1.45, 3.0, 4.4), cmap="Greys", vmin=-0.3, vmax=1.4, zorder=2)
    axes.add_patch(Rectangle((0.05, 3.0), 1.4, 1.4, facecolor="none", edgecolor=GREY, linewidth=0.7, zorder=3))
    axes.set(xlim=(0, 8), ylim=(0, 7))
    axes.text(0.75, 4.55, "image", ha="center", fontsize=7.5)
    axes.text(0.8, 2.85, "Lambert patch\nembedding,\n5 x 5 samples", ha="center", va="top", fontsize=7, color=GREY)
    draw_arrow(axes, (1.5, 3.75), (1.95, 3.75))


def _steps_within(axes: Any, centre: Array) -> None:
    """What happens within the first and the last shell and after it."""
    axes.text(0.8, 5.6, "first step:\nwithin the\nfirst shell", ha="center", va="center", fontsize=7, zorder=6)
    axes.text(*centre, "two rounds\nwithin the\nlast shell", ha="center", va="center", fontsize=7, zorder=6)
    out = draw_box(axes, Box(4.75, 6.75, 3.9, 0.44), "pooling, classifier → logits", GREY, size=7)
    draw_arrow(axes, (centre[0], centre[1] + 0.45), out.bottom, GREEN)


def _kernel(axes: Any, costs: Mapping[str, float]) -> None:
    blank_axes(axes, 7, 7)
    target = draw_box(axes, Box(1.2, 6.3, 2.2, 0.7), "target $x_i,\\ q_i$")
    source = draw_box(axes, Box(5.8, 6.3, 2.2, 0.7), "source $x_j,\\ q_j$")
    draw_box(axes, Box(3.5, 4.75, 2.7, 0.8), "$r_{ij} = q_i^{*} \\otimes q_j$", GREEN, size=8.5)
    weight = draw_box(axes, Box(1.5, 2.95, 2.8, 0.95), "routing\nsoftmax$_j(\\beta_h\\,$Re$\\,r_{ij})$", ROUTE)
    message = draw_box(axes, Box(5.4, 2.95, 2.8, 0.95), "transport\n$r_{ij} \\otimes x_j \\otimes r_{ij}^{*}$", CARRY)
    draw_box(axes, Box(3.5, 1.05, 3.0, 0.7), "$z_i = \\sum_j C_{ij}\\, m_{ij}$")
    for start, end in ((target.bottom, (2.6, 5.2)), (source.bottom, (4.4, 5.2))):
        draw_arrow(axes, start, end)
    draw_arrow(axes, (2.8, 4.33), weight.top, ROUTE)
    draw_arrow(axes, (4.2, 4.33), message.top, CARRY)
    draw_arrow(axes, (6.2, source.bottom[1]), (6.2, message.top[1]), GREY)
    draw_arrow(axes, (2.65, weight.bottom[1]), (3.1, 1.42), ROUTE)
    draw_arrow(axes, (4.3, message.bottom[1]), (3.9, 1.42), CARRY)
    _label(axes, (0.1, 2.15), "uniform 1/k", costs.get("routing_uniform"), "left")
    _label(axes, (6.8, 2.15), "identity", costs.get("transport_identity"), "right")
    _label(axes, (6.8, 1.05), "both", costs.get("both_off"), "right")
    _label(axes, (2.0, 4.7), "frozen random\nfield", costs.get("frozen_random"), "right")


def _label(axes: Any, place: tuple[float, float], change: str, points: float | None, side: str) -> None:
    if points is not None:
        text = f"{change}: {points:+.1f}".replace("-", "\N{MINUS SIGN}")
        axes.text(*place, text, ha=side, va="center", fontsize=7.5, fontweight="bold", color=INK, zorder=5)
