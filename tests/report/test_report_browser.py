"""The report in a browser: it opens from disk, fits the window, draws all pictures, and has no dead links."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from quatsphere.report.page import Card, PageClaim, Report, Section, Tile, png_uri, to_picture, write_report
from quatsphere.study.table_formats import Table

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a hundred runs with every kind of part and hostile names."""
    figure = Figure(figsize=(7, 2.5))
    figure.subplots().plot([0, 1])
    image = png_uri(np.zeros((8, 8, 3), np.uint8))
    rows = [(f"{HOSTILE} {number}", *(["0.1234"] * 9)) for number in range(100)]
    sections = [
        Section("Runs", HOSTILE, [Table([HOSTILE] * 10, rows, "a hundred")], [to_picture(HOSTILE, "text", figure)]),
        Section("Predictions", cards=[Card(HOSTILE, image, image, "x" * 80, 0.5, HOSTILE) for _ in range(24)]),
        Section("Claims", claims=[PageClaim(f"id.{i}", "word " * 30, "fails", HOSTILE) for i in range(120)]),
    ]
    tiles = [Tile(HOSTILE, "0.9876", "detail")] * 5
    path = tmp_path_factory.mktemp("a <b>folder") / "report.html"
    write_report(path, Report(HOSTILE, "y" * 200, tiles, [("command", "z" * 400)], sections))
    return path


@pytest.mark.parametrize(
    ("width", "height", "scheme"), [(1280, 800, "light"), (1280, 800, "dark"), (390, 844, "light"), (390, 844, "dark")]
)
def test_page_fits_every_window(width: int, height: int, scheme: str, path: Path, visit: Callable[..., Any]) -> None:
    page = visit(path, width, height, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.text_content("h1") == HOSTILE
    assert page.locator("script").count() == 0
    assert page.locator("#runs tbody tr").count() == 100
    broken = "all => all.filter((image) => !image.complete || !image.naturalWidth).length"
    assert page.eval_on_selector_all("img", broken) == 0
    loaded = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    print(f"{width}x{height}: {path.stat().st_size / 1e6:.1f} MB, loaded after {loaded:.0f} ms")


def test_links_have_targets(path: Path, visit: Callable[..., Any]) -> None:
    page = visit(path)
    targets = page.eval_on_selector_all("a[href^='#']", "all => all.map((link) => link.hash.slice(1))")
    assert {"runs", "predictions", "claims", "identity", "claim-id.7"} <= set(targets)
    lost = "ids => ids.filter((id) => id !== 'top' && !document.getElementById(id))"
    assert page.evaluate(lost, targets) == []
    page.click("nav a[href='#claims']")
    assert abs(page.evaluate("document.getElementById('claims').getBoundingClientRect().top")) < 120


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(scheme: str, path: Path, visit: Callable[..., Any]) -> None:
    """WCAG AA requires a contrast of at least 4.5 between text and background."""
    page = visit(path, scheme=scheme)
    for name in (
        "body",
        ".subtitle",
        ".tile .label",
        ".verdict",
        "thead th",
        "figcaption",
        "nav a",
        "dt",
        ".card .sign",
    ):
        ink, paper = page.locator(name).first.evaluate(
            """(element) => {
              const paper = (part) => getComputedStyle(part).backgroundColor;
              let behind = element;
              while (/rgba\\(.*, 0\\)|transparent/.test(paper(behind))) behind = behind.parentElement;
              return [getComputedStyle(element).color, paper(behind)];
            }"""
        )
        assert contrast(ink, paper) >= 4.5, name


def test_charts_are_dark_on_a_dark_page(path: Path, visit: Callable[..., Any]) -> None:
    """A white card would be nearly white on average."""
    for scheme, is_dark in (("dark", True), ("light", False)):
        shot = visit(path, scheme=scheme).locator("figure img").first.screenshot()
        assert (np.asarray(Image.open(io.BytesIO(shot)).convert("L")).mean() < 80) == is_dark


def contrast(ink: str, paper: str) -> float:
    """Return the ratio of the relative luminances of two CSS colours."""
    light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    levels = np.array([float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]) / 255
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])
