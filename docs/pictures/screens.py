"""Take screenshots of the pages of a run for the README: python docs/pictures/screens.py RUN.

Writes the run's report and view beside it where they are missing, opens both in headless Chromium, and saves report.png
and view.png here, in 256 colours so that they stay small.
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


def save(photograph: bytes, path: Path) -> None:
    """Reduce a screenshot to a small PNG."""
    with Image.open(io.BytesIO(photograph)) as picture:
        few = picture.convert("RGB").quantize(256, kmeans=2, dither=Image.Dither.NONE)
        few.save(path, optimize=True)
    print(path, f"{path.stat().st_size / 1000:.0f} kB")


def choose(page: Any, name: str, value: str) -> None:
    """Set a slider or list and fire its events."""
    script = "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', { bubbles: true })) }"
    page.eval_on_selector(f"#{name}", script, value)


def photograph_view(browser: Any, path: Path) -> None:
    """The first cross-shell step, vertices coloured by the norm of their tokens."""
    page = browser.new_page(viewport=SIZE, color_scheme="dark")
    page.goto(path.absolute().as_uri())
    choose(page, "step", "2")
    choose(page, "quantity", "norm")
    page.wait_for_timeout(300)
    save(page.screenshot(), HERE / "view.png")


def photograph_report(browser: Any, path: Path) -> None:
    """The head of the report and its first section."""
    page = browser.new_page(viewport=SIZE)
    page.goto(path.absolute().as_uri())
    save(page.screenshot(), HERE / "report.png")


def photograph(run: Path) -> None:
    """Save both screenshots."""
    for verb in ("view", "report"):
        if not (run / f"{verb}.html").is_file():
            main([verb, str(run)])
    program = next(found for name in PROGRAMS if (found := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        photograph_view(browser, run / "view.html")
        photograph_report(browser, run / "report.html")
        browser.close()


if __name__ == "__main__":
    photograph(Path(sys.argv[1]))
