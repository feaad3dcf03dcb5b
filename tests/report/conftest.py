"""A browser that records console messages and requests, and views of untrained models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.browser import FLAGS, chromium_program

from quatsphere.config import AttentionConfig, QSVConfig, RunConfig
from quatsphere.data import load_dataset
from quatsphere.diagnostics.view_trace import ViewImage, ViewTrace, compute_trace
from quatsphere.models import build_model
from quatsphere.report.view import write_trace, write_view_page
from quatsphere.storage.run_folder import RunFolder
from quatsphere.train.load import TrainedModel

SMALL: dict[str, Any] = {"base_vertices": 32, "shells": 3, "plane_rows": 8, "in_channels": 1, "image_size": 8}
MODELS = {
    "sphere": QSVConfig(dim=64, heads=4, backend="factored", **SMALL),
    "plane": QSVConfig(dim=64, heads=4, backend="factored", layout="plane", **SMALL),
    "attention": AttentionConfig(dim=24, heads=3, **SMALL),
    "paper": QSVConfig(backend="factored"),
}
"""Models by their special property; `paper` has the default size."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium with an empty profile; skips the test if it is not installed."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra 'dev')")
    program = chromium_program()
    if program is None:
        pytest.skip("Chromium is not installed; 'make browser' installs it")
    with driver.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open files; fail at the end if a page logged a message, opened a dialog or requested another file."""
    messages: list[str] = []
    requests: list[str] = []
    opened_urls: list[str] = []

    def open_page(path: Path, width: int = 1280, height: int = 800, scheme: str = "light") -> Any:
        size = {"width": width, "height": height}
        page = browser.new_page(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        page.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("dialog", lambda dialog: (messages.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: requests.append(request.url))
        opened_urls.append(path.absolute().as_uri())
        page.goto(opened_urls[-1])
        return page

    yield open_page
    assert not messages
    assert {url for url in requests if not url.startswith("data:")} == set(opened_urls)


def example_trace(name: str, classes: list[str] | None = None, images: int = 2) -> ViewTrace:
    """Return the trace of a model with noise added to its initial weights, on digits or on noise."""
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
    trained = TrainedModel(RunFolder("a run <b>"), config, model, 7, meta)
    shown = [ViewImage(f"image {i}", image, label) for i, (image, label) in enumerate(zip(pixels, labels, strict=True))]
    return compute_trace(trained, shown)


@pytest.fixture(scope="session")
def make_view(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Path]]:
    """Return a function that writes the view of a model and returns (page, trace file)."""

    def make(name: str, **changes: Any) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp(name)
        write_trace(folder / "view.safetensors", example_trace(name, **changes))
        write_view_page(folder / "view.html", folder / "view.safetensors")
        return folder / "view.html", folder / "view.safetensors"

    return make
