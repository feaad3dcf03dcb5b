"""The report page escapes all text, contains its pictures, requests nothing, and has an anchor per section."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from quatsphere.report.page import (
    Card,
    PageClaim,
    Picture,
    Report,
    Section,
    Tile,
    png_uri,
    to_picture,
    write_report,
)
from quatsphere.study.table_formats import Table

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></style></h1><b>bold</b>",
    "&lt;already&gt; & more",
    "{{ 7 * 7 }} {% raw %}",
    "ünïcode 球 \u202e rtl",
]
PIXEL = png_uri(np.zeros((1, 1, 3), np.uint8))


class Reader(HTMLParser):
    """Tags, attributes and text of a page as a browser parses them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def report_of(text: str) -> Report:
    """Return a report in which every text is the given one."""
    section = Section(
        text,
        text,
        [Table((text, text), [(text, text)], text, text=text), Table((text,), [(text,)], text, folded=True)],
        [Picture(text, text, PIXEL, 10, 10)],
        [Card(text, PIXEL, PIXEL, text, 0.5, text), Card(text, PIXEL, None, text, 0.5, text + "!")],
        [
            PageClaim(text, text, verdict, text, text, text, text, text, text)
            for verdict in ("holds", "fails", "undecided")
        ],
    )
    return Report(text, text, [Tile(text, text, text)], [(text, text)], [section], [("view.html", text)])


def written(report: Report, folder: Path) -> str:
    write_report(folder / "report.html", report)
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", HOSTILE)
def test_all_text_is_escaped(text: str, tmp_path: Path) -> None:
    """Tags and attributes do not depend on the text, and the text is shown unchanged."""
    seen, plain = Reader(written(report_of(text), tmp_path)), Reader(written(report_of("plainest"), tmp_path))
    assert seen.tags == plain.tags
    assert [name for name, _ in seen.attributes] == [name for name, _ in plain.attributes]
    assert "script" not in seen.tags
    counted = [sum(word in part for part in page.texts) for page, word in ((seen, text), (plain, "plainest"))]
    assert counted[0] == counted[1] > 40
    assert ("alt", text) in seen.attributes


def test_page_is_self_contained(tmp_path: Path) -> None:
    page = written(report_of("word"), tmp_path)
    seen = Reader(page)
    addresses = [str(value) for name, value in seen.attributes if name in ("src", "href", "action", "srcset")]
    assert all(address.startswith(("data:image/png;base64,", "#", "view.html")) for address in addresses)
    assert not re.search(r"https?:|@import|url\(|<script|<link|<iframe|javascript:", page)
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'none'" in page.replace(
        "&#39;", "'"
    )
    assert page.startswith("<!doctype html>")


def test_every_section_has_an_anchor(tmp_path: Path) -> None:
    report = Report("r", "", [], [("a", "b")], [Section("One & two"), Section("Three", "text")])
    page = written(report, tmp_path)
    for anchor in ("one-two", "three", "identity"):
        assert page.count(f'id="{anchor}"') == 1
        assert page.count(f'href="#{anchor}"') == 2  # in the navigation and beside the heading


def test_verdicts_have_signs_and_words(tmp_path: Path) -> None:
    claims = [PageClaim("a", "A", "holds"), PageClaim("b", "B", "holds"), PageClaim("c", "C", "undecided", "too short")]
    page = written(Report("r", "", [], [], [Section("Claims", claims=claims)]), tmp_path)
    for words in ("✓ 2 holds", "✗ 0 fails", "? 1 undecided", "too short"):
        assert words in page


def test_figures_are_embedded_as_svg(tmp_path: Path) -> None:
    figure = Figure(figsize=(6, 2))
    figure.add_axes((0, 0, 1, 1))
    picture = to_picture("title", "text", figure)
    svg = base64.b64decode(picture.uri.removeprefix("data:image/svg+xml;base64,"))
    assert b"<svg" in svg
    assert 2 < picture.width / picture.height < 4
    assert picture.wide
    assert b"<script" not in svg


def test_pages_are_replaced_atomically(tmp_path: Path) -> None:
    written(report_of("old"), tmp_path)
    assert "<h1>new</h1>" in written(report_of("new"), tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == ["report.html"]


def test_invalid_unicode_is_escaped(tmp_path: Path) -> None:
    assert "<h1>bad\\udcff</h1>" in written(report_of("bad\udcff"), tmp_path)
