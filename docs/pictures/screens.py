"""Take screenshots of the pages of a run for the README: python docs/pictures/screens.py RUN.

Report, view and live page are written into the run folder if they are missing. The screenshots, report.png,
view.png and live.png, are saved beside this script in 256 colours to keep them small.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from quatsphere.cli import main

HERE = Path(__file__).parent
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
SIZE: Any = {"width": 1280, "height": 800}


def save_small(screenshot: bytes, path: Path) -> None:
    """Save a PNG with a palette of 256 colours."""
    with Image.open(io.BytesIO(screenshot)) as picture:
        picture.convert("RGB").quantize(256, kmeans=2, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path, f"{path.stat().st_size / 1000:.0f} kB")


def set_control(page: Any, name: str, value: str) -> None:
    """Set a slider or list as a user does."""
    script = "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', { bubbles: true })) }"
    page.eval_on_selector(f"#{name}", script, value)


def capture_view(browser: Any, path: Path) -> None:
    """Save the view of the first cross-shell step, vertices coloured by the norm of their tokens."""
    page = browser.new_page(viewport=SIZE, color_scheme="dark")
    page.goto(path.absolute().as_uri())
    set_control(page, "step", "2")
    set_control(page, "quantity", "norm")
    page.wait_for_timeout(300)
    save_small(page.screenshot(), HERE / "view.png")


THREE = ((34, 32), (42, 22), (54, 20), (64, 28), (63, 39), (45, 48), (57, 51), (66, 60), (65, 73), (54, 81), (33, 71))
"""Points of a stroke, in percent of the pad's side."""


def capture_live(browser: Any, path: Path) -> None:
    """Save the page that runs the model after drawing a digit."""
    page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="dark")
    page.goto(path.absolute().as_uri())
    page.wait_for_selector("html[data-check=same]")
    page.click("#clear")
    box = page.locator("#pad").bounding_box()
    points = [(box["x"] + x / 100 * box["width"], box["y"] + y / 100 * box["height"]) for x, y in THREE]
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point)
    page.mouse.up()
    page.wait_for_timeout(500)
    save_small(page.screenshot(), HERE / "live.png")


def capture_report(browser: Any, path: Path) -> None:
    """Save the top of the report."""
    page = browser.new_page(viewport=SIZE)
    page.goto(path.absolute().as_uri())
    save_small(page.screenshot(), HERE / "report.png")


def capture(run: Path) -> None:
    """Save screenshots of all pages."""
    for name, words in {"view": ["view"], "live": ["view", "--live"], "report": ["report"]}.items():
        if not (run / f"{name}.html").is_file():
            main([*words, str(run)])
    program = next(found for name in PROGRAMS if (found := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        capture_view(browser, run / "view.html")
        capture_live(browser, run / "live.html")
        capture_report(browser, run / "report.html")
        browser.close()


if __name__ == "__main__":
    capture(Path(sys.argv[1]))
