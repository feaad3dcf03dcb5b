"""Boxes and arrows of the two schematic figures."""

from __future__ import annotations

from typing import Any, NamedTuple

from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from quatsphere.report.figures.style import GREY, INK

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
