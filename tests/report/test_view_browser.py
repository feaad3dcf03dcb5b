"""The 3-D view in a browser shows the content of the trace after every rotation, click and slider."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quatsphere.diagnostics.view_trace import ViewTrace
from quatsphere.report.view import read_trace

KINDS = ("sphere", "plane", "attention")
View = tuple[Path, Path]


@pytest.fixture(scope="module")
def views(make_view: Callable[..., View]) -> dict[str, View]:
    return {kind: make_view(kind) for kind in KINDS}


def wait(page: Any) -> None:
    """Wait until the next frame is drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def move(page: Any, slider: str, value: int | str) -> None:
    """Set a slider or list as a user does."""
    page.eval_on_selector(
        slider, "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', { bubbles: true })) }", str(value)
    )
    wait(page)


def table(page: Any) -> list[list[str]]:
    return page.eval_on_selector_all(
        "#neighbours tr", "rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )


def chosen(page: Any) -> tuple[int, int, int]:
    """Return (step, head, vertex), counted from 0."""
    step, head = (int(page.input_value(f"#{name}")) - 1 for name in ("step", "head"))
    return step, head, int(page.input_value("#vertex"))


def check_table(page: Any, trace: ViewTrace) -> None:
    """Compare neighbours, scores and weights on the page with the trace."""
    step, head, vertex = chosen(page)
    rows, arrays = table(page), trace.arrays
    neighbours = arrays[f"neighbours.{step}"][vertex]
    assert [int(row[0]) for row in rows] == neighbours.tolist()
    shown = np.array([[float(cell) for cell in row[-2:]] for row in rows]).T
    assert np.abs(shown - arrays[f"weights.{step}"][:, vertex, :, head]).max() < 1e-4
    if f"field.{step}" in arrays:
        own, theirs = arrays[f"field.{step}"][0, vertex, head], arrays[f"source_field.{step}"][0, neighbours, head]
        assert np.abs([float(row[1]) for row in rows] - theirs @ own).max() < 1e-3


def picture(page: Any, scene: int = 0) -> str:
    return page.evaluate("n => document.querySelectorAll('.stage')[n].toDataURL()", scene)


def centre(page: Any, scene: int = 0) -> tuple[float, float]:
    box = page.locator(".stage").nth(scene).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.parametrize("kind", KINDS)
def test_every_slider_shows_the_trace(kind: str, views: dict[str, View], visit: Callable[..., Any]) -> None:
    path, file = views[kind]
    page, trace = visit(path), read_trace(file)
    print(f"{kind}: ready after {float(page.get_attribute('html', 'data-ready')):.0f} ms")
    check_table(page, trace)
    before = picture(page)
    for step in range(1, len(trace.meta["steps"])):
        move(page, "#step", step + 1)
        assert trace.meta["steps"][step]["name"] in page.text_content("#step-name")
        check_table(page, trace)
        assert picture(page) != before
        before = picture(page)
    for head in range(1, trace.meta["heads"]):
        move(page, "#head", head + 1)
        check_table(page, trace)
        assert picture(page) != before
        before = picture(page)
    assert chosen(page)[:2] == (len(trace.meta["steps"]) - 1, trace.meta["heads"] - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_rotate_zoom_and_click(kind: str, views: dict[str, View], visit: Callable[..., Any]) -> None:
    path, file = views[kind]
    page, trace = visit(path), read_trace(file)
    seen = [picture(page)]
    x, y = centre(page)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 90, y + 40, steps=4)
    page.mouse.up()
    wait(page)
    seen.append(picture(page))
    first = chosen(page)[2]
    page.mouse.wheel(0, -200)
    wait(page)
    seen.append(picture(page))
    picked = set()
    for dx, dy in ((0, 0), (60, 0), (0, -50), (-50, 30)):
        page.mouse.click(x + dx, y + dy)
        wait(page)
        check_table(page, trace)
        picked.add(chosen(page)[2])
    assert picked - {first}
    page.locator(".stage").first.press("ArrowLeft")
    wait(page)
    seen.append(picture(page))
    page.click("#reset")
    wait(page)
    assert len(set(seen)) == len(seen)


def test_the_middle_of_the_image_faces_the_viewer(views: dict[str, View], visit: Callable[..., Any]) -> None:
    """The vertex selected first is the one nearest to the eye, slightly above and beside longitude 0."""
    path, file = views["sphere"]
    positions = read_trace(file).arrays["positions.0"]
    yaw, pitch = 0.3, 0.22
    eye = [math.cos(pitch) * math.cos(yaw), -math.sin(pitch), -math.cos(pitch) * math.sin(yaw)]
    assert chosen(visit(path))[2] == int(np.argmax(positions @ eye))


@pytest.mark.parametrize("kind", KINDS)
def test_colour_scales(kind: str, views: dict[str, View], visit: Callable[..., Any]) -> None:
    path, file = views[kind]
    page, arrays = visit(path), read_trace(file).arrays
    ends = lambda: [float(page.text_content(f"#{name}")) for name in ("low", "high")]  # noqa: E731
    names = page.eval_on_selector_all("#quantity option", "all => all.map((option) => option.value)")
    assert names == ["image", "norm", "evidence", "pool"] + (["drift"] if "drift.0" in arrays else [])
    for name in names[1:]:
        move(page, "#quantity", name)
        low, high = ends()
        if name == "norm":
            assert (low, high) == pytest.approx((arrays["norm.0"].min(), arrays["norm.0"].max()), rel=1e-2)
        elif name == "evidence":
            assert high == pytest.approx(np.abs(arrays["evidence.0"]).max(), rel=1e-2)
            assert low == -high
        elif name == "pool":
            assert chosen(page)[0] == len(read_trace(file).meta["steps"]) - 1
            assert (low, high) == pytest.approx((0, arrays["pool"].max()), rel=1e-2)
        move(page, "#step", 1)


def test_message_rotates_by_the_relative_quaternion(views: dict[str, View], visit: Callable[..., Any]) -> None:
    path, file = views["sphere"]
    page, arrays = visit(path), read_trace(file).arrays
    move(page, "#step", 2)
    page.locator("#neighbours button").nth(3).click()
    wait(page)
    step, head, vertex = chosen(page)
    source = arrays[f"neighbours.{step}"][vertex, 3]
    real = arrays[f"field.{step}"][0, vertex, head] @ arrays[f"source_field.{step}"][0, source, head]
    angle = math.degrees(2 * math.acos(min(1.0, abs(real))))
    text = page.text_content("#message-text")
    assert f"from vertex {source}" in text
    assert abs(float(text.split("by ")[1].split("°")[0]) - angle) < 0.2


def test_frames_are_shown_for_quaternion_models_only(views: dict[str, View], visit: Callable[..., Any]) -> None:
    for kind in KINDS:
        shown = visit(views[kind][0]).locator("#frames").is_visible()
        assert shown == (kind != "attention")


def test_camera_fits_the_target_shell(views: dict[str, View], visit: Callable[..., Any]) -> None:
    """Far from the middle of the panel the pointer is still over vertices of the innermost shell."""
    page = visit(views["sphere"][0])
    move(page, "#step", 3)
    box = page.locator(".stage").first.bounding_box()
    (x, y), away = centre(page), 0.28 * min(box["width"], box["height"])
    said = []
    for turn in range(8):
        page.mouse.move(x + away * math.cos(turn * math.pi / 4), y + away * math.sin(turn * math.pi / 4))
        said.append(page.text_content(".hover"))
    assert sum("of shell 3" in text for text in said) >= 6, said


def test_play_walks_through_the_steps(views: dict[str, View], visit: Callable[..., Any]) -> None:
    """The step changes every 1.4 s, cyclically, until it is paused or a step is chosen."""
    page = visit(views["sphere"][0])
    page.clock.install()
    steps = []
    page.click("#play")
    assert page.get_attribute("#play", "aria-pressed") == "true"
    for _ in range(5):
        page.clock.run_for(1400)
        steps.append(page.input_value("#step"))
    assert steps == ["2", "3", "4", "5", "1"]
    page.eval_on_selector("#step", "(e) => { e.value = 3; e.dispatchEvent(new Event('input')) }")
    page.clock.run_for(5000)
    assert page.input_value("#step") == "3"
    assert page.get_attribute("#play", "aria-pressed") == "false"


def test_evidence_is_painted_on_the_image(views: dict[str, View], visit: Callable[..., Any]) -> None:
    """Over a grey image, places with evidence for the class are orange and those against it blue."""
    page, arrays = visit(views["plane"][0]), read_trace(views["plane"][1]).arrays
    move(page, "#quantity", "evidence")
    pixels = page.evaluate("""() => {
      const thumb = document.querySelector('.thumb');
      return Array.from(thumb.getContext('2d').getImageData(0, 0, thumb.width, thumb.height).data);
    }""")
    side = math.isqrt(len(pixels) // 4)
    red, _, blue, _ = np.moveaxis(np.array(pixels).reshape(side, side, 4), -1, 0)
    evidence, places = arrays["evidence.0"][0], arrays["positions.0"][:, :2]
    strong = np.abs(evidence) > 0.5 * np.abs(evidence).max()
    column, row = ((places + 1) / 2 * side).astype(int).clip(0, side - 1).T
    warm = (red - blue)[row, column]
    assert strong.sum() >= 2
    assert (np.sign(warm[strong]) == np.sign(evidence[strong])).mean() > 0.8


def test_words_have_tooltips(views: dict[str, View], visit: Callable[..., Any]) -> None:
    for kind in KINDS:
        page = visit(views[kind][0])
        shown = [tip for tip in page.locator("abbr[title]").all() if tip.is_visible()]
        words = [tip.text_content() for tip in shown]
        assert words == ["uniform", *([] if kind == "attention" else ["Re r"]), "weight", "weight"]
        assert all(len(tip.get_attribute("title").split()) > 5 for tip in shown)
        assert page.locator(".introduction p").is_visible()


@pytest.mark.parametrize(("width", "height", "scheme"), [(1280, 800, "dark"), (390, 844, "light"), (820, 1180, "dark")])
def test_page_fits_every_window_size(
    width: int, height: int, scheme: str, views: dict[str, View], visit: Callable[..., Any]
) -> None:
    page = visit(views["sphere"][0], width, height, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for name in ("#step", "#head", "#quantity", "#theme", ".stage >> nth=1", "#neighbours", "#frames"):
        box = page.locator(name).bounding_box()
        assert box["x"] >= 0, name
        assert box["x"] + box["width"] <= width, name


def test_one_image_and_names_with_html(make_view: Callable[..., View], visit: Callable[..., Any]) -> None:
    hostile = "<script>alert(1)</script>"
    path, _ = make_view("sphere", classes=[hostile] * 10, images=1)
    page = visit(path)
    assert page.locator(".stage").count() == 1
    assert hostile in page.text_content(".scene h2")
    assert page.text_content(".predictions li").strip().startswith(hostile)
    assert page.text_content("h1") == "Inside a run <b>"
    assert page.locator("h1 b").count() == 0
    assert page.locator("script").count() == 2


def test_the_default_size(make_view: Callable[..., View], visit: Callable[..., Any]) -> None:
    """With 1,280 vertices and 16 heads the file has at most 15 MB; the speed is printed."""
    path, file = make_view("paper")
    assert path.stat().st_size <= 15e6
    page, trace = visit(path), read_trace(file)
    check_table(page, trace)
    times = slider_times(page)
    ready = float(page.get_attribute("html", "data-ready"))
    size = path.stat().st_size / 1e6
    print(f"{size:.1f} MB, ready after {ready:.0f} ms, sliders {np.median(times):.0f} ms (at most {max(times):.0f})")
    check_table(page, trace)


def slider_times(page: Any) -> list[float]:
    """Return the milliseconds from moving a slider to the finished picture, over steps and heads."""
    return page.evaluate("""async () => {
      const root = document.documentElement;
      const frame = () => new Promise(requestAnimationFrame);
      const times = [];
      for (const [id, count] of [['step', 7], ['head', 16]]) {
        for (let value = 1; value <= count; value++) {
          const element = document.getElementById(id);
          const start = performance.now();
          root.dataset.drawn = '';
          element.value = value;
          element.dispatchEvent(new Event('input', { bubbles: true }));
          while (!root.dataset.drawn) await frame();
          times.push(performance.now() - start);
        }
      }
      return times;
    }""")


@pytest.mark.slow
def test_the_default_size_is_fast(make_view: Callable[..., View], visit: Callable[..., Any]) -> None:
    """The page is ready within 3 s and follows a slider within 100 ms, in its own processor time."""
    page = visit(make_view("paper")[0])
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    spent = lambda: next(  # noqa: E731
        metric["value"]
        for metric in session.send("Performance.getMetrics")["metrics"]
        if metric["name"] == "TaskDuration"
    )
    page.reload()
    begun = spent()
    assert begun < 3
    times = slider_times(page)
    each = 1000 * (spent() - begun) / len(times)
    print(
        f"ready after {1000 * begun:.0f} ms, a slider {each:.0f} ms, of processor time; {np.median(times):.0f} by clock"
    )
    assert each < 100
