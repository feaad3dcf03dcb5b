"""The paper's first figure: dot-product attention and the coupled kernel side by side."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from quatsphere.report.figures.boxes import Box, blank_axes, draw_arrow, draw_box
from quatsphere.report.figures.style import BLUE, GREEN, GREY, ORANGE, WIDE, styled

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
