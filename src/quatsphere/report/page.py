"""Self-contained HTML pages: templates with inline assets, the parts of a report page, and its small pictures."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from quatsphere.errors import ConfigError
from quatsphere.storage.atomic import write_text
from quatsphere.study.table_formats import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ImageArray = NDArray[Any]
ASSETS = Path(__file__).with_name("assets")


def page_path(requested: str | None, default: Path) -> Path:
    """Return the path of a page to write; ConfigError if its folder does not exist."""
    page = default if requested is None else Path(requested)
    if not page.absolute().parent.is_dir():
        raise ConfigError(f"no folder {page.parent} (for {page.name}); create it or use another -o")
    return page


def read_assets(*names: str) -> str:
    """Return the concatenated text of asset files."""
    return "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in names)


def inline_script(*names: str) -> tuple[Markup, str]:
    """Return script files as one function, and its hash for the Content-Security-Policy.

    Comments on lines of their own and indentation are left out, which saves a fifth. The function is asynchronous: it
    runs at once up to its first `await`.
    """
    lines = [line.strip() for line in read_assets(*names).splitlines()]
    code = "\n".join(line for line in lines if line and not line.startswith("//"))
    text = f"'use strict';\n(async () => {{\n{code}\n}})();\n"
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(text), f"'sha256-{digest}'"


def security_policy(scripts: str = "'none'") -> str:
    """Return the Content-Security-Policy: inline styles, data URIs, the given script hashes, no connections."""
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {scripts}"


def render_page(template: str, styles: tuple[str, ...], **values: Any) -> str:
    """Render a template in `assets`; characters that are not Unicode are escaped."""
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template(template).render(style=Markup(read_assets(*styles)), **values)
    return text.encode("utf-8", "backslashreplace").decode()


def write_page(path: Path, template: str, styles: tuple[str, ...], **values: Any) -> None:
    """Render a template in `assets` and write it atomically."""
    write_text(path, render_page(template, styles, **values))


@dataclass(frozen=True)
class Tile:
    """A headline number; `meaning` says what it is and what is normal."""

    label: str
    value: str
    detail: str = ""
    meaning: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure with a caption; `title` is also its text for screen readers. Sizes are in points.

    `phone` is the same figure for narrow windows; without it a wide figure scrolls there.
    """

    title: str
    text: str
    uri: str
    width: float
    height: float
    normal: str = ""
    phone: str = ""

    @property
    def wide(self) -> bool:
        """True if the picture scrolls on a phone, because its text would become too small."""
        return self.width > 380 and not self.phone


@dataclass(frozen=True)
class Card:
    """One image, the patches sampled from it, and the prediction."""

    name: str
    image: str
    patches: str | None
    predicted: str
    probability: float
    truth: str

    @property
    def correct(self) -> bool:
        """True if the prediction is the true class."""
        return self.predicted == self.truth


@dataclass(frozen=True)
class PageClaim:
    """A statement of the paper with its value, our value and the verdict."""

    id: str
    statement: str
    verdict: str
    why: str = ""
    ours: str = ""
    paper: str = ""
    interval: str = ""
    n: str = ""
    section: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page with an anchor."""

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    cards: Sequence[Card] = ()
    claims: Sequence[PageClaim] = ()

    @property
    def anchor(self) -> str:
        """`#what-the-model-samples`."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    @property
    def verdicts(self) -> dict[str, int]:
        """Number of claims by verdict."""
        return {verdict: sum(claim.verdict == verdict for claim in self.claims) for verdict in VERDICTS}


VERDICTS = {"holds": "✓", "fails": "✗", "undecided": "?"}
"""verdict -> sign, readable without colour."""


@dataclass(frozen=True)
class Report:
    """A report page."""

    title: str
    subtitle: str
    tiles: Sequence[Tile]
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    links: Sequence[tuple[str, str]] = field(default=())
    introduction: str = ""
    words: Sequence[tuple[str, str]] = ()


def write_report(path: Path, report: Report) -> None:
    """Write the page atomically; all text is escaped."""
    write_page(
        path, "report.html.j2", ("base.css", "report.css"), report=report, signs=VERDICTS, policy=security_policy()
    )


def to_picture(title: str, text: str, figure: Figure, normal: str = "", phone: Figure | None = None) -> Picture:
    """Return a figure as SVG in a data URI, in which scripts do not run; its colours follow the page's.

    Args:
        title: title of the picture.
        text: what it shows.
        figure: the figure for windows of a page's width.
        normal: what is normal.
        phone: the same figure drawn inside `phone_layout()`, for narrow windows.
    """
    from quatsphere.report.figures.style import to_themed_svg  # pages without figures do without matplotlib

    svg = to_themed_svg(figure)
    size = re.search(rb'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert size is not None
    narrow = "" if phone is None else _svg_uri(to_themed_svg(phone))
    return Picture(title, text, _svg_uri(svg), float(size[1]), float(size[2]), normal, narrow)


def _svg_uri(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def rgb_pixels(image: ImageArray) -> ImageArray:
    """Return a uint8 image (C, Y, X) as (Y, X, 3): its first three channels, or grey."""
    channels = image[:3] if image.shape[0] >= 3 else np.repeat(image[:1], 3, axis=0)
    return np.moveaxis(channels, 0, -1)


def png_uri(pixels: ImageArray) -> str:
    """Return uint8 pixels (Y, X, 3) as a PNG in a data URI."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def patch_sheet(points: ImageArray, samples: ImageArray, gap: int = 1) -> ImageArray:
    """Return one picture of all patches (V, S, C) in [0, 1], each near its place in the image.

    Vertices are sorted into rows by height and within a row by longitude (points (V, S, 2) are image coordinates), so
    the sheet resembles the image while every patch stays whole. Gaps and the ends of short rows are grey.
    """
    count, size, _ = samples.shape
    side, rows = math.isqrt(size), round(math.sqrt(count))
    centre, cell = points[:, size // 2], side + gap
    by_height = np.array_split(np.argsort(centre[:, 1], kind="stable"), rows)
    columns = len(by_height[0])
    sheet = np.full((rows * cell + gap, columns * cell + gap, 3), 128, np.uint8)
    for row, members in enumerate(by_height):
        indent = gap + (columns - len(members)) * cell // 2
        for column, vertex in enumerate(members[np.argsort(centre[members, 0], kind="stable")]):
            patch = np.rint(255 * samples[vertex].clip(0, 1)).astype(np.uint8).reshape(side, side, -1)
            top, left = row * cell + gap, column * cell + indent
            sheet[top : top + side, left : left + side] = rgb_pixels(np.moveaxis(patch, -1, 0))
    return sheet
