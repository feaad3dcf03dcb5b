"""A real browser that notices every complaint and every request, and models to look into without training them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from quatsphere.config import AttentionConfig, QSVConfig, RunConfig
from quatsphere.data import load_dataset
from quatsphere.models import build_model
from quatsphere.report.view import Trace, write_trace, write_view
from quatsphere.report.view_trace import Shown, compute_trace
from quatsphere.storage.run_folder import RunFolder
from quatsphere.train.load import Trained

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SMALL: dict[str, Any] = {"base_vertices": 32, "shells": 3, "plane_rows": 8, "in_channels": 1, "image_size": 8}
MODELS = {
    "sphere": QSVConfig(dim=64, heads=4, backend="factored", **SMALL),
    "plane": QSVConfig(dim=64, heads=4, backend="factored", layout="plane", **SMALL),
    "attention": AttentionConfig(dim=24, heads=3, **SMALL),
    "paper": QSVConfig(backend="factored"),
}
"""Models by what is special about them; `paper` has the default size."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium with an empty profile; skipped where there is none."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra 'dev')")
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no chromium here; 'make browser' installs Debian's")
    with driver.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens files; fails at the end if a page complained, popped something up, or asked for anything but itself."""
    complaints: list[str] = []
    requests: list[str] = []
    asked: list[str] = []

    def opened(path: Path, width: int = 1280, height: int = 800, scheme: str = "light") -> Any:
        size = {"width": width, "height": height}
        page = browser.new_page(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: requests.append(request.url))
        asked.append(path.absolute().as_uri())
        page.goto(asked[-1])
        return page

    yield opened
    assert not complaints
    assert {url for url in requests if not url.startswith("data:")} == set(asked)


def made_up(name: str, classes: list[str] | None = None, images: int = 2) -> Trace:
    """The trace of a model whose weights are moved from their start by noise, on digits or on noise."""
    config = RunConfig(model=MODELS[name])
    model = build_model(config.model, seed=config.train.seed).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if not parameter_name.startswith("layout."):
                parameter.add_(0.1 * torch.randn_like(parameter))
        for field in getattr(model, "fields", []):
            field.base.div_(field.base.norm(dim=-1, keepdim=True))
    channels = MODELS[name].in_channels
    if channels == 1:
        digits = load_dataset("digits").test
        pixels, labels = digits.images[[0, 40][:images]], digits.labels[[0, 40][:images]].tolist()
    else:
        pixels, labels = torch.randint(0, 256, (images, 3, 32, 32), dtype=torch.uint8), [3, 5][:images]
    names = classes or [f"class {index}" for index in range(MODELS[name].num_classes)]
    meta = {"classes": names, "mean": [0.5] * channels, "std": [0.25] * channels}
    trained = Trained(RunFolder("a run <b>"), config, model, 7, meta)
    shown = [Shown(f"image {i}", image, label) for i, (image, label) in enumerate(zip(pixels, labels, strict=True))]
    return compute_trace(trained, shown)


@pytest.fixture(scope="session")
def make_view(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Path]]:
    """`make_view(name, ...)` -> (page, trace file)."""

    def make(name: str, **changes: Any) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp(name)
        write_trace(folder / "view.safetensors", made_up(name, **changes))
        write_view(folder / "view.html", folder / "view.safetensors")
        return folder / "view.html", folder / "view.safetensors"

    return make
