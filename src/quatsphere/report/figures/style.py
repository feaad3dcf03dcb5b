"""Common style of all figures, in Okabe and Ito's colour-blind safe colours, and saving of figures."""

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

from quatsphere.storage.atomic import write_bytes

Array = NDArray[Any]
Arguments = ParamSpec("Arguments")

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, AMBER, INK, GREY, PALE = "#56B4E9", "#E69F00", "#222222", "#666666", "#DDDDDD"
LIGHT_BLUE = "#A6CDE3"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER, INK, GREY)
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), "-", (0, (5, 1.5)), "-", "-")
WIDE, COLUMN = 7.0, 3.4
"""Width of the text and of one column, in inches."""
SLANTED: dict[str, Any] = {"ha": "right", "rotation_mode": "anchor"}
"""Alignment of slanted tick labels."""

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
"""Metadata without a date, so that equal figures give equal files."""
FIGURE_FORMATS = tuple(METADATA)


class NotebookFigure(Figure):
    """A matplotlib figure that notebooks display without pyplot."""

    def _repr_png_(self) -> bytes:
        return to_bytes(self, "png", dpi=120)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches with constrained layout."""
    return NotebookFigure(figsize=(width, height), layout="constrained")


def styled(draw: Callable[Arguments, Figure]) -> Callable[Arguments, Figure]:
    """Decorate a drawing function to use our style, independent of the user's matplotlibrc."""

    @functools.wraps(draw)
    def drawn(*arguments: Arguments.args, **named: Arguments.kwargs) -> Figure:
        with rc_context(STYLE):
            return draw(*arguments, **named)

    return drawn


def to_bytes(figure: Figure, kind: str = "svg", dpi: int = 200) -> bytes:
    """Return the figure as SVG, PDF or PNG; text is drawn as outlines and looks the same everywhere.

    Characters missing from the font are drawn as boxes, without a warning.
    """
    buffer = io.BytesIO()
    with rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(buffer, format=kind, dpi=dpi, facecolor="white", bbox_inches="tight", metadata=METADATA[kind])
    return buffer.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Write the figure atomically, in the format of the file's suffix: svg, pdf or png."""
    write_bytes(path, to_bytes(figure, path.suffix.removeprefix(".")))


def escape_math(text: str, max_length: int = 24) -> str:
    """Return text as one line of at most `max_length` characters in which matplotlib sees no formula."""
    short = text if len(text) <= max_length else text[: max_length - 1] + "…"
    return short.replace("$", r"\$").replace("\n", " ")


def light_grid(axes: Any, axis: str = "y") -> None:
    """Draw pale grid lines."""
    axes.grid(True, axis=axis, color=PALE, linewidth=0.6)


def epoch_axis(axes: Any) -> None:
    """Label the x axis with whole epochs."""
    axes.set_xlabel("epoch")
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
