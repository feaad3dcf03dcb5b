"""A report as plain parts (tiles, tables, pictures, cards, claims) and the one HTML file they make."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from quatsphere.report.figures import to_bytes
from quatsphere.storage.atomic import write_text

ASSETS = Path(__file__).with_name("assets")


def asset(*names: str) -> str:
    """The text of asset files, one after the other."""
    return "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in names)


def inline_script(*names: str) -> tuple[Markup, str]:
    """(script for the page, its hash for the policy): the files as one function, so that no name leaks."""
    text = f"'use strict';\n(() => {{\n{asset(*names)}\n}})();\n"
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(text), f"'sha256-{digest}'"


def policy(scripts: str = "'none'") -> str:
    """Content-Security-Policy: inline style and pictures, this script and no other, no connection at all."""
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {scripts}"


def render(template: str, styles: tuple[str, ...], **facts: Any) -> str:
    """The page of a template in `assets`."""
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(style=Markup(asset(*styles)), **facts)


def write_page(path: Path, template: str, styles: tuple[str, ...], **facts: Any) -> None:
    """Write the page atomically; what is no Unicode in a file's name is shown escaped."""
    text = render(template, styles, **facts)
    write_text(path, text.encode("utf-8", "backslashreplace").decode())


@dataclass(frozen=True)
class Tile:
    """A number to see first."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of text under headings; the first column names the row, `marked` rows stand out."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: str = ""
    marked: frozenset[int] = frozenset()
    folded: bool = False


@dataclass(frozen=True)
class Picture:
    """A figure with a sentence; `title` is also what a screen reader says. Sizes are in points."""

    title: str
    text: str
    uri: str
    width: float
    height: float

    @property
    def wide(self) -> bool:
        """Whether its letters would be too small on a phone, which then scrolls it."""
        return self.width > 380


@dataclass(frozen=True)
class Card:
    """One image, what the model samples of it, and what it says."""

    name: str
    image: str
    patches: str | None
    said: str
    sure: float
    truth: str

    @property
    def right(self) -> bool:
        """Whether the model says what it is."""
        return self.said == self.truth


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, the two numbers, and what our runs say of it."""

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
    """A part of the page with an anchor of its own."""

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    cards: Sequence[Card] = ()
    claims: Sequence[Claim] = ()

    @property
    def anchor(self) -> str:
        """`#what-the-model-samples`."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    @property
    def verdicts(self) -> dict[str, int]:
        """verdict -> how many claims have it."""
        return {verdict: sum(claim.verdict == verdict for claim in self.claims) for verdict in VERDICTS}


VERDICTS = {"holds": "✓", "fails": "✗", "undecided": "?"}
"""verdict -> its sign, so that nobody needs the colour."""


@dataclass(frozen=True)
class Report:
    """The whole page."""

    title: str
    subtitle: str
    tiles: Sequence[Tile]
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    links: Sequence[tuple[str, str]] = field(default=())


def write_report(path: Path, report: Report) -> None:
    """Write the page atomically; every word in it is shown as text, whatever it contains."""
    write_page(path, "report.html.j2", ("base.css", "report.css"), report=report, signs=VERDICTS, policy=policy())


def draw(title: str, text: str, figure: Figure) -> Picture:
    """A figure as SVG in a data URI: sharp at every size, and no script inside it would run."""
    svg = to_bytes(figure, "svg")
    size = re.search(rb'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert size is not None
    uri = "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
    return Picture(title, text, uri, float(size[1]), float(size[2]))
