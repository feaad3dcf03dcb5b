"""Common style of all figures, in Okabe and Ito's colour-blind safe colours, and saving of figures.

A figure is drawn for a page; inside `phone_layout()` it has the width of a phone and its panels are stacked.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ParamSpec

from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray

from quatsphere.storage.atomic import write_bytes

Array = NDArray[Any]
Panels = tuple[Figure, int, int]
"""A figure, and the rows and columns of its panels."""
Arguments = ParamSpec("Arguments")

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, AMBER, INK, GREY, PALE = "#56B4E9", "#E69F00", "#222222", "#666666", "#DDDDDD"
LIGHT_BLUE, PAPER, ON_COLOUR, MAP_GRID = "#A6CDE3", "#FFFFFF", "#FCFCFC", "#EEEEEE"
"""PAPER is the background; ON_COLOUR is text on a dark patch, the same in light and dark."""
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER, INK, GREY)
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), "-", (0, (5, 1.5)), "-", "-")
WIDE, COLUMN = 7.0, 3.4
"""Width of the text and of one column, in inches."""
SHADES = ("#9ECAE1", "#6BAED6", "#4292C6", "#2171B5", "#084594")
"""Colours of the shells, darker inwards, distinguishable in grey."""
SHELL_EDGE, SHELL_OUTLINE = "#888888", "#BBBBBB"
DARK: dict[str, str] = {
    INK: "#E6E9EE",
    GREY: "#A0AAB6",
    PALE: "#313A45",
    PAPER: "#181D24",
    MAP_GRID: "#262E38",
    BLUE: "#2F8FD0",
    SKY: "#A9DCFA",
    ORANGE: "#F08A48",
    GREEN: "#33C296",
    PURPLE: "#DE93BE",
    LIGHT_BLUE: "#335C78",
    **dict(zip(SHADES, ("#C6DBEF", "#9ECAE1", "#6BAED6", "#4A90D9", "#3572C6"), strict=True)),
    SHELL_EDGE: "#5F6B78",
    SHELL_OUTLINE: "#46515D",
}
"""Colour -> its counterpart on a dark page; other colours stay."""
SLANTED: dict[str, Any] = {"ha": "right", "rotation_mode": "anchor"}
"""Alignment of slanted tick labels."""

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "text.color": INK,
    "axes.labelcolor": INK,
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


_on_phone: ContextVar[bool] = ContextVar("_on_phone", default=False)


@contextlib.contextmanager
def phone_layout() -> Iterator[None]:
    """Draw figures at most as wide as a phone, with their panels below each other."""
    before = _on_phone.set(True)
    try:
        yield
    finally:
        _on_phone.reset(before)


def on_phone() -> bool:
    """Return whether figures are being drawn for a phone."""
    return _on_phone.get()


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches with constrained layout; on a phone it is at most a column wide."""
    return NotebookFigure(figsize=(min(width, COLUMN) if on_phone() else width, height), layout="constrained")


def new_panels(count: int, columns: int, height: float, *, width: float = WIDE, extra: float = 0.0) -> Panels:
    """Return a figure for `count` panels and the numbers of rows and columns: at most `columns`, one or two on a phone.

    Args:
        count: number of panels.
        columns: largest number of panels side by side on a page.
        height: height of a panel in inches.
        width: width of the figure in inches.
        extra: height of titles and legends above or below the panels.
    """
    if on_phone():
        columns = max(1, min(2, columns // 2)) if columns > 3 else 1
    columns = max(1, min(count, columns))
    rows = max(1, -(-count // columns))
    return new_figure(width, rows * height + extra), rows, columns


def styled(draw: Callable[Arguments, Figure]) -> Callable[Arguments, Figure]:
    """Decorate a drawing function to use our style, independent of the user's matplotlibrc."""

    @functools.wraps(draw)
    def drawn(*arguments: Arguments.args, **named: Arguments.kwargs) -> Figure:
        with rc_context(STYLE):
            return draw(*arguments, **named)

    return drawn


def to_bytes(figure: Figure, kind: str = "svg", dpi: int = 200, facecolor: str = "white") -> bytes:
    """Return the figure as SVG, PDF or PNG; text is drawn as outlines and looks the same everywhere.

    Characters missing from the font are drawn as boxes, without a warning.
    """
    buffer = io.BytesIO()
    with rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(buffer, format=kind, dpi=dpi, facecolor=facecolor, bbox_inches="tight", metadata=METADATA[kind])
    return buffer.getvalue()


def to_themed_svg(figure: Figure) -> bytes:
    """Return the figure as SVG without a background, whose colours follow the light or dark scheme of the page."""
    svg = to_bytes(figure, "svg", facecolor="none").decode()
    names = {colour.lower(): f"--c{colour[1:].lower()}" for colour in DARK}
    used: set[str] = set()

    def variable(found: re.Match[str]) -> str:
        used.add(found[0])
        return f"var({names[found[0]]})"

    themed = re.sub("|".join(names), variable, svg)
    dark = {colour.lower(): value for colour, value in DARK.items()}
    light_rule, dark_rule = (
        ":root {" + "".join(f"{names[colour]}:{values[colour]};" for colour in sorted(used)) + "}"
        for values in ({colour: colour for colour in used}, dark)
    )
    style = f"<style>{light_rule}@media (prefers-color-scheme: dark) {{{dark_rule}}}</style>"
    return themed.replace("<defs>", f"{style}<defs>", 1).encode()


def save(figure: Figure, path: Path) -> None:
    """Write the figure atomically, in the format of the file's suffix: svg, pdf or png."""
    write_bytes(path, to_bytes(figure, path.suffix.removeprefix(".")))


def escape_math(text: str, max_length: int = 24) -> str:
    """Return text as one line of at most `max_length` characters in which matplotlib sees no formula."""
    short = text if len(text) <= max_length else text[: max_length - 1] + "…"
    return short.replace("$", r"\$").replace("\n", " ")


def fill_caption(text: str) -> str:
    """Return a caption of a figure, on a phone in lines that fit."""
    return "\n".join(textwrap.wrap(text, 62)) if on_phone() else text


def light_grid(axes: Any, axis: str = "y") -> None:
    """Draw pale grid lines."""
    axes.grid(True, axis=axis, color=PALE, linewidth=0.6)


def epoch_axis(axes: Any) -> None:
    """Label the x axis with whole epochs."""
    axes.set_xlabel("epoch")
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
