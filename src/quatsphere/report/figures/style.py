"""One style for all figures: Okabe and Ito's colours, told apart by all eyes and, with marks and dashes, in grey."""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec

from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray

from quatsphere.report.pictures import plain
from quatsphere.storage.atomic import write_bytes

Array = NDArray[Any]
Arguments = ParamSpec("Arguments")

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, AMBER, INK, GREY, PALE = "#56B4E9", "#E69F00", "#222222", "#666666", "#DDDDDD"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER, INK, GREY)
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), "-", (0, (5, 1.5)), "-", "-")
WIDE, COLUMN = 7.0, 3.4
"""Inches: the text's width and one column's."""

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 3.5,
    "svg.hashsalt": "quatsphere",
    "pdf.fonttype": 42,
}
METADATA: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
"""No time in the file: the same numbers give the same bytes."""
FORMATS = tuple(METADATA)

__all__ = ["FORMATS", "plain", "save", "styled", "to_bytes"]


def styled(draw: Callable[Arguments, Figure]) -> Callable[Arguments, Figure]:
    """A drawing function in our style, whatever the user's matplotlibrc says."""

    @functools.wraps(draw)
    def drawn(*arguments: Arguments.args, **named: Arguments.kwargs) -> Figure:
        with rc_context(STYLE):
            return draw(*arguments, **named)

    return drawn


def to_bytes(figure: Figure, kind: str = "svg") -> bytes:
    """The figure as SVG, PDF or PNG; letters are outlines, so it looks the same everywhere.

    A letter the font lacks is drawn as a box, without a warning.
    """
    buffer = io.BytesIO()
    with rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(buffer, format=kind, dpi=200, facecolor="white", bbox_inches="tight", metadata=METADATA[kind])
    return buffer.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format its name ends with, whole or not at all."""
    write_bytes(path, to_bytes(figure, path.suffix.removeprefix(".")))


def light_grid(axes: Any, axis: str = "y") -> None:
    """Lines to read values by, that do not compete with the data."""
    axes.grid(True, axis=axis, color=PALE, linewidth=0.6)


def whole_epochs(axes: Any) -> None:
    """Epochs are whole numbers."""
    axes.set_xlabel("epoch")
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
