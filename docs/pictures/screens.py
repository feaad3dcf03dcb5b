"""Take screenshots of the pages of a run for the README: python docs/pictures/screens.py RUN.

Report and view are written into the run folder if they are missing. The screenshots, report.png and view.png, are saved
beside this script in 256 colours to keep them small.
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


def capture_report(browser: Any, path: Path) -> None:
    """Save the top of the report."""
    page = browser.new_page(viewport=SIZE)
    page.goto(path.absolute().as_uri())
    save_small(page.screenshot(), HERE / "report.png")


def capture(run: Path) -> None:
    """Save screenshots of both pages."""
    for verb in ("view", "report"):
        if not (run / f"{verb}.html").is_file():
            main([verb, str(run)])
    program = next(found for name in PROGRAMS if (found := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        capture_view(browser, run / "view.html")
        capture_report(browser, run / "report.html")
        browser.close()


if __name__ == "__main__":
    capture(Path(sys.argv[1]))
