"""The page that runs a model, in Chromium: its numbers are torch's, and drawing, pictures and switches work offline."""

from __future__ import annotations

import dataclasses
import io
import math
import re
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export.test_frozen import MEAN, STD, shaken_model
from helpers.browser import FLAGS, chromium_program
from helpers.variants import QSV_VARIANTS, SMALL
from PIL import Image

import quatsphere
from quatsphere.config import RunConfig
from quatsphere.data.augment import normalize
from quatsphere.errors import ConfigError, NumericsError, QuatsphereError
from quatsphere.export import live
from quatsphere.export.live import Example, photo_example, write_live_page
from quatsphere.storage.run_folder import RunFolder
from quatsphere.train.load import TrainedModel
from quatsphere.train.predict import image_pixels

COMBINED: dict[str, dict[str, Any]] = {
    "absolute": {"routing": "absolute", "transport": "one_sided", "pooling": "quaternion_per_head", "wrap": True},
    "geometric": {"routing": "geometric", "transport": "lower", "perturbation": "shell", "inner_skip": "residual"},
    "plane": {"routing": "uniform", "transport": "projected", "head_mixing": "linear", "layout": "plane"},
    "lift": {"transport": "lift", "field": "frozen_random", "pooling": "mean", "resample": "geometric"},
    "identity": {"transport": "identity", "field": "static", "self_neighbour": False, "bound": "none", "rounds": 0},
}
"""Models that together have every routing, transport and part; `slow` tests take every variant alone."""
VARIANTS = [
    *COMBINED.items(),
    *(pytest.param(name, changes, marks=pytest.mark.slow) for name, changes in QSV_VARIANTS.items()),
]
RUN = """([images, off]) => images.map((pixels) => {
  const { logits, pool, steps } = quatsphere.run(pixels, off);
  const list = (name) => steps.map((step) => Array.from(step[name]));
  return { logits: Array.from(logits), pool: Array.from(pool), weights: list('weights'), field: list('target') };
})"""


@pytest.fixture(scope="module")
def digits() -> TrainedModel:
    return quatsphere.load("digits-qsv")


@pytest.fixture(scope="module")
def digits_page(digits: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("live") / "live.html"
    assert write_live_page(path, digits, digits.dataset().test.images, "359 test images") < 2e-5
    return path


@pytest.fixture(scope="module")
def photo_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("live") / "photo.html"
    trained = quatsphere.load("cifar10-qsv")
    example = photo_example(trained)
    write_live_page(path, trained, example.pixels[None], "one photograph", [example])
    return path


def settled(page: Any) -> Any:
    """Wait until the page has compared its examples."""
    page.locator("html[data-check]").wait_for()
    return page


def hinted(page: Any, start: str) -> None:
    """Wait until the hint starts with a text; `wait_for_function` evaluates strings, which the policy refuses."""
    page.locator("#hint").filter(has_text=re.compile("^" + re.escape(start))).wait_for()


def drawn(page: Any) -> None:
    """Wait until the classified image is drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def check_against_torch(page: Any, trained: TrainedModel, images: torch.Tensor, tolerance: float) -> None:
    """Compare logits, pool weights, fields and the weights of every step with a trace."""
    mean, std = (torch.tensor(trained.meta[key]) for key in ("mean", "std"))
    with torch.no_grad():
        logits, trace = trained.model(normalize(images, mean, std), return_trace=True)
    found = page.evaluate(RUN, [images.flatten(1).tolist(), {}])
    for name, expected in (("logits", logits), ("pool", trace["pool_weights"])):
        values = torch.tensor([one[name] for one in found])
        torch.testing.assert_close(values, expected.reshape(values.shape), atol=tolerance, rtol=0)
    for name, limit in (("weights", 1e-6), ("field", tolerance)):
        for step, expected in enumerate(trace[name]):
            values = torch.tensor([one[name][step] for one in found])
            torch.testing.assert_close(values, expected.reshape(values.shape), atol=limit, rtol=0)
    values = torch.tensor([one["logits"] for one in found])
    assert values.argmax(1).tolist() == logits.argmax(1).tolist()


def test_digits_equal_torch(digits: TrainedModel, digits_page: Path, visit: Callable[..., Any]) -> None:
    page = settled(visit(digits_page))
    assert page.get_attribute("html", "data-check") == "same"
    assert "Logits of 8 examples within" in page.text_content("#check")
    assert not page.locator("#warning").is_visible()
    check_against_torch(page, digits, digits.dataset().test.images[:20], 2e-5)


def test_photographs_equal_torch(photo_page: Path, visit: Callable[..., Any]) -> None:
    trained = quatsphere.load("cifar10-qsv")
    page = settled(visit(photo_page))
    assert page.get_attribute("html", "data-check") == "same"
    try:
        images = trained.dataset().test.images[:5]
    except QuatsphereError as error:
        pytest.skip(f"no CIFAR-10: {error}")
    check_against_torch(page, trained, images, 2e-5)


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_variants_equal_torch(name: str, changes: dict[str, Any], tmp_path: Path, visit: Callable[..., Any]) -> None:
    model = shaken_model("qsv", **{**SMALL, **changes})
    meta = {"classes": list("abcdefghij"), "mean": MEAN, "std": STD, "fingerprint": ""}
    trained = TrainedModel(RunFolder(tmp_path), RunConfig(model=model.config), model, 1, meta)
    torch.manual_seed(2)
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    write_live_page(tmp_path / "m.html", trained, images, "noise")
    page = settled(visit(tmp_path / "m.html"))
    assert page.get_attribute("html", "data-check") == "same"
    check_against_torch(page, trained, images, 2e-5)


def test_switches_equal_an_ablated_model(digits: TrainedModel, digits_page: Path, visit: Callable[..., Any]) -> None:
    """Routing off is the model with uniform routing and these weights, transport off with the identity."""
    page = settled(visit(digits_page))
    images = digits.dataset().test.images[:8]
    for off, change in (
        ({"routing": True}, {"routing": "uniform"}),
        ({"transport": True}, {"transport": "identity"}),
        ({"routing": True, "transport": True}, {"routing": "uniform", "transport": "identity"}),
    ):
        ablated = quatsphere.create_model(**{**dataclasses.asdict(digits.config.model), **change}).eval()
        ablated.load_state_dict(digits.model.state_dict())
        mean, std = (torch.tensor(digits.meta[key]) for key in ("mean", "std"))
        with torch.no_grad():
            expected = ablated(normalize(images, mean, std))
        found = torch.tensor([one["logits"] for one in page.evaluate(RUN, [images.flatten(1).tolist(), off])])
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)


def draw_lines(page: Any, lines: list[list[tuple[float, float]]]) -> None:
    """Draw lines on the pad with the mouse; points are shares of its side."""
    box = page.locator("#pad").bounding_box()
    for line in lines:
        points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in line]
        page.mouse.move(*points[0])
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*point)
        page.mouse.up()
    drawn(page)


ZERO = [[(0.5 + 0.2 * math.sin(t * math.pi / 12), 0.5 - 0.3 * math.cos(t * math.pi / 12)) for t in range(25)]]
FOUR = [[(0.55, 0.2), (0.3, 0.6), (0.72, 0.6)], [(0.58, 0.42), (0.58, 0.82)]]


def seen_pixels(page: Any) -> np.ndarray:
    """Levels of the small image, read from the array that the page draws."""
    return np.array(page.evaluate("quatsphere.pixels()")).reshape(8, 8)


def test_draw_with_the_mouse(digits: TrainedModel, digits_page: Path, visit: Callable[..., Any]) -> None:
    page = settled(visit(digits_page, 1440, 900))
    for lines, digit in ((ZERO, "0"), (FOUR, "4")):
        page.click("#clear")
        draw_lines(page, lines)
        assert page.text_content("#answer b") == digit
        assert page.text_content("#bars .first .name") == digit
        pixels = torch.tensor(seen_pixels(page), dtype=torch.uint8)
        probabilities = digits.predict(pixels[None]).probabilities[0]
        assert page.text_content("#bars .first .value") == f"{100 * float(probabilities.max()):.1f} %"
        assert digits.classes[int(probabilities.argmax())] == digit
    page.click("#transport")
    drawn(page)
    assert "Without transport: " in page.text_content("#effect")
    assert page.locator("#bars .complete").count() == 10
    assert "the transport is the identity" in page.text_content("#message-text")
    page.click("#transport")
    page.click("#routing")
    drawn(page)
    weights = page.eval_on_selector_all("#neighbours td.weight", "cells => cells.map((c) => c.textContent)")
    assert set(weights) == {"0.10000"}


def test_cells_are_averaged(digits_page: Path, visit: Callable[..., Any]) -> None:
    """Without fitting, a level is the share of inked cells in a block of 4 x 4, times 255."""
    page = settled(visit(digits_page))
    page.click("#clear")
    page.click("#fit")
    drawn(page)
    assert seen_pixels(page).max() == 0
    draw_lines(page, [[(8.5 / 32, 16.5 / 32), (24.5 / 32, 16.5 / 32)]])
    x, y = np.meshgrid(np.arange(32) + 0.5, np.arange(32) + 0.5)
    ink = np.hypot(x - x.clip(8.5, 24.5), y - 16.5) <= 2.5
    expected = np.rint(ink.reshape(8, 4, 8, 4).sum((1, 3)) * 255 / 16)
    assert np.abs(seen_pixels(page) - expected).max() <= 32  # the mouse moves by whole screen pixels
    assert (seen_pixels(page) == expected).mean() > 0.85


def test_pictures_are_fitted_as_predict_does(photo_page: Path, visit: Callable[..., Any], tmp_path: Path) -> None:
    """A chosen file gives the pixels of `predict`, up to rounding: larger, smaller, upright and transparent images."""
    trained = quatsphere.load("cifar10-qsv")
    page = settled(visit(photo_page))
    generator = np.random.default_rng(0)
    for number, size in enumerate([(97, 61), (20, 33), (32, 32), (48, 40), (49, 40), (61, 97)]):
        noise = generator.integers(0, 256, (*size, 4), dtype=np.uint8)
        noise[..., 3] = 255 if number else noise[..., 3] // 128 * 255
        path = tmp_path / f"{number}.png"
        Image.fromarray(noise).save(path)
        page.set_input_files("#file", path)
        hinted(page, f"{number}.png: {size[1]} x {size[0]} pixels.")
        drawn(page)
        found = np.array(page.evaluate("quatsphere.pixels()")).reshape(3, 32, 32)
        expected = image_pixels(path, trained.config).numpy().astype(int)
        assert np.abs(found - expected).max() <= 1, size
    (tmp_path / "text.png").write_text("no picture")
    page.set_input_files("#file", tmp_path / "text.png")
    hinted(page, "Cannot read text.png")


def test_drop_and_paste(photo_page: Path, visit: Callable[..., Any]) -> None:
    page = settled(visit(photo_page))
    before = page.text_content("#answer")
    buffer = io.BytesIO()
    Image.new("RGB", (40, 40), "blue").save(buffer, "PNG")
    for kind, field in (("drop", "dataTransfer"), ("paste", "clipboardData")):
        page.evaluate(
            """([kind, field, bytes]) => {
              const data = new DataTransfer();
              data.items.add(new File([new Uint8Array(bytes)], `${kind}.png`, { type: 'image/png' }));
              const Kind = kind === 'drop' ? DragEvent : ClipboardEvent;
              document.dispatchEvent(new Kind(kind, { [field]: data, bubbles: true, cancelable: true }));
            }""",
            [kind, field, list(buffer.getvalue())],
        )
        hinted(page, f"{kind}.png: 40 x 40")
    drawn(page)
    assert page.text_content("#answer") != before


@pytest.fixture
def served(photo_page: Path) -> Iterator[str]:
    """Address of the page on loopback."""
    handler = partial(SimpleHTTPRequestHandler, directory=photo_page.parent)
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{photo_page.name}"
        server.shutdown()


@pytest.fixture
def camera_browser(browser: Any) -> Iterator[Any]:
    """Chromium with a camera that shows a moving test picture."""
    flags = [*FLAGS, "--use-fake-device-for-media-stream"]
    other = browser.browser_type.launch(executable_path=chromium_program(), args=flags)
    yield other
    other.close()


@pytest.mark.parametrize("where", ["served", "file"])
def test_camera(where: str, photo_page: Path, served: str, camera_browser: Any) -> None:
    """Frames of the camera are classified until it is stopped, also on a page opened from disk."""
    context = camera_browser.new_context(permissions=["camera"])
    page = context.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(served if where == "served" else photo_page.as_uri())
    settled(page)
    example = page.evaluate("quatsphere.pixels()")
    page.click("#camera")
    page.locator("#camera", has_text="Stop camera").wait_for()
    hinted(page, "Camera: 320 x 240 pixels.")
    drawn(page)
    frame = page.evaluate("quatsphere.pixels()")
    assert frame != example
    page.wait_for_timeout(1500)
    assert page.evaluate("quatsphere.pixels()") != frame
    page.click("#camera")
    assert page.text_content("#camera") == "Camera"
    drawn(page)
    last = page.evaluate("quatsphere.pixels()")
    page.wait_for_timeout(500)
    assert page.evaluate("quatsphere.pixels()") == last
    assert not messages


def test_refused_and_missing_cameras(served: str, camera_browser: Any, browser: Any) -> None:
    """A camera that is not allowed is explained; without one, or without the interface, there is no button."""
    page = camera_browser.new_page()
    page.goto(served)
    settled(page)
    page.click("#camera")
    hinted(page, "The camera cannot be used")
    assert page.text_content("#camera") == "Camera"
    page = browser.new_page()
    page.add_init_script("Object.defineProperty(Navigator.prototype, 'mediaDevices', { get: () => undefined })")
    page.goto(served)
    settled(page)
    assert page.locator("#camera").is_hidden()
    page.close()


REFUSED = """(address) => new Promise((done) => {
  const seen = [];
  document.addEventListener('securitypolicyviolation', ({ effectiveDirective }) => {
    seen.push(effectiveDirective);
    if (seen.length === 3) done(seen.sort());
  });
  const script = document.createElement('script');
  script.textContent = 'window.strange = 1';
  document.head.append(script);
  new Image().src = `${address}/picture`;
  fetch(`${address}/data`).catch(() => {});
})"""


def test_the_policy_allows_no_request(digits_page: Path, browser: Any) -> None:
    """Only the page's own script runs, and requests are refused before they leave: a server sees no connection."""
    text = digits_page.read_text()
    assert len(text) < 330_000
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert policy[1].startswith("default-src &#39;none&#39;; img-src data:;")
    assert "http://" not in text
    assert "https://" not in text
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        page, requests, failures = browser.new_page(), [], {}
        page.on("request", lambda request: requests.append(request.url))
        page.on("requestfailed", lambda request: failures.update({request.url: request.failure}))
        page.goto(digits_page.as_uri())
        assert page.evaluate(REFUSED, address) == ["connect-src", "img-src", "script-src-elem"]
        assert page.evaluate("window.strange") is None
        drawn(page)
        # Chromium names the picture as a request, and then that the policy refused it
        asked = {url for url in requests if not url.startswith("data:")} - {digits_page.as_uri()}
        assert asked <= {f"{address}/picture"}
        assert failures == dict.fromkeys(asked, "csp")
        page.wait_for_timeout(500)
        page.close()
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
        server.settimeout(5)  # the same page without its policy does connect
        free = browser.new_page(bypass_csp=True)
        free.goto(digits_page.as_uri())
        free.evaluate("(address) => { new Image().src = `${address}/picture`; }", address)
        server.accept()[0].close()
        free.close()


def test_damaged_constants_are_reported(digits: TrainedModel, visit: Callable[..., Any], tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """A page whose weights are not the model's shows a warning; a frozen module that differs is refused before."""
    images = digits.dataset().test.images[:3]
    right = live.constants
    wrong = lambda frozen: {**right(frozen), "classifier.bias": right(frozen)["classifier.bias"] + 1e-3}  # noqa: E731
    monkeypatch.setattr(live, "constants", wrong)
    write_live_page(tmp_path / "m.html", digits, images, "three")
    page = settled(visit(tmp_path / "m.html"))
    assert page.get_attribute("html", "data-check") == "different"
    assert "logits differ by 1.0e-3" in page.text_content("#warning")
    assert page.locator("#warning").is_visible()
    monkeypatch.setattr(live, "frozen_model", lambda trained: lambda images: torch.zeros(len(images), 10))
    with pytest.raises(NumericsError, match="the html file differs from the model"):
        write_live_page(tmp_path / "other.html", digits, images, "three")
    assert not (tmp_path / "other.html").exists()


@pytest.mark.parametrize(("width", "height", "scheme"), [(1440, 900, "dark"), (390, 844, "light")])
def test_pages_fit_laptops_and_phones(
    width: int, height: int, scheme: str, digits_page: Path, photo_page: Path, visit: Callable[..., Any]
) -> None:
    for path in (digits_page, photo_page):
        page = settled(visit(path, width, height, scheme))
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for name in ("#pad", "#bars", "#routing", "#transport", "#play", "#step", ".stage", "#neighbours", "#frames"):
            box = page.locator(name).bounding_box()
            assert box["x"] >= 0, name
            assert box["x"] + box["width"] <= width, name
        if width > 1000:
            box = page.locator(".switches").bounding_box()
            assert box["y"] + box["height"] <= height  # pad, answer and switches need no scrolling
        else:
            assert page.locator("#bars").bounding_box()["y"] < height


def test_play_and_evidence(digits_page: Path, visit: Callable[..., Any]) -> None:
    """The view's controls follow the drawing: play moves the step, evidence is exact after the last step."""
    page = settled(visit(digits_page))
    page.clock.install()
    page.click("#play")
    page.clock.run_for(1500)
    assert page.text_content("#step-name").startswith("2: ")
    page.click("#play")
    page.clock.run_for(5000)
    assert page.text_content("#step-name").startswith("2: ")
    page.select_option("#quantity", "evidence")
    page.clock.run_for(100)
    assert page.text_content("#step-name").startswith("5: ")
    assert float(page.text_content("#high")) > 0


def test_other_models_are_refused(tmp_path: Path, digits: TrainedModel) -> None:
    trained = quatsphere.load("cifar10-attention")
    with pytest.raises(ConfigError, match="a live page runs qsv, not 'attention'; use 'quatsphere export --to onnx'"):
        write_live_page(tmp_path / "m.html", trained, torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "")
    model = shaken_model("qsv", **SMALL)
    model.within.routing.rule = lambda *inputs: None
    meta = {"classes": list("abcdefghij"), "mean": MEAN, "std": STD}
    own = TrainedModel(RunFolder(tmp_path), RunConfig(model=model.config), model, 1, meta)
    with pytest.raises(ConfigError, match="a live page runs built-in rules, not the routing 'alignment'"):
        write_live_page(tmp_path / "m.html", own, torch.zeros(1, 3, 16, 16, dtype=torch.uint8), "")
    assert not list(tmp_path.glob("*.html"))


def test_names_are_text(digits: TrainedModel, tmp_path: Path, visit: Callable[..., Any]) -> None:
    hostile = "</script><b>x</b>"
    meta = {**digits.meta, "classes": [hostile] * 10}
    trained = dataclasses.replace(digits, meta=meta)
    example = Example(digits.dataset().test.images[0], hostile)
    write_live_page(tmp_path / "m.html", trained, example.pixels[None], hostile, [example])
    page = settled(visit(tmp_path / "m.html"))
    assert page.text_content("#answer b") == hostile
    assert hostile in page.text_content("#hint")
    assert page.locator("script").count() == 2
    assert page.locator("b:has-text('x'):not(#answer b, .switches b)").count() == 0


def test_pages_are_reproducible(digits: TrainedModel, digits_page: Path, tmp_path: Path) -> None:
    write_live_page(tmp_path / "again.html", digits, digits.dataset().test.images, "359 test images")
    assert (tmp_path / "again.html").read_bytes() == digits_page.read_bytes()
