"""The page: every word is text, pictures are inside, nothing comes from elsewhere."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from quatsphere.report.page import Section, write_page

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></style></h1><b>bold</b>",
    "&lt;already&gt; & more",
    "javascript:alert(1)",
    "ünïcode 球 \u202e rtl",
]


class Reader(HTMLParser):
    """Tags, attributes and the text of a page, as a browser would see them."""

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


@pytest.mark.parametrize("text", HOSTILE)
def test_every_word_is_text(text: str, tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", text, {text: text}, [Section(text, text, b"png")])
    seen = Reader((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert seen.texts.count(text) == 6  # title, heading, fact and its name, section and its sentence
    assert ("alt", text) in seen.attributes
    allowed = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "table", "tr", "td", "img"}
    assert set(seen.tags) == allowed
    assert {name for name, _ in seen.attributes} == {"lang", "charset", "http-equiv", "content", "alt", "src"}


def test_nothing_comes_from_elsewhere(tmp_path: Path) -> None:
    sections = [Section("one", "a", b"\x89PNG one"), Section("two", "b", b"\x89PNG two")]
    write_page(tmp_path / "page.html", "title", {"accuracy": 0.5, "commit": None}, sections)
    page = (tmp_path / "page.html").read_text()
    seen = Reader(page)
    sources = [value for name, value in seen.attributes if name == "src"]
    decoded = [base64.b64decode(str(value).removeprefix("data:image/png;base64,")) for value in sources]
    assert decoded == [section.png for section in sections]
    assert not re.search(r"https?:|//|@import|url\(|<script|<link|<iframe", page)
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in page
    assert page.startswith("<!doctype html>")


def test_a_page_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_page(path, "old", {}, [])
    write_page(path, "new", {}, [])
    assert "<h1>new</h1>" in path.read_text()
    assert [item.name for item in tmp_path.iterdir()] == ["page.html"]
