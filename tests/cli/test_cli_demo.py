"""The demo in its shortest version: a table, an accuracy line, and pages that show any name as text."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

Command = Callable[..., Any]


class Demo(NamedTuple):
    """A finished demo: its folder, exit code, output and the addresses that it opened."""

    folder: Path
    ended: Any
    opened: list[str]


@pytest.fixture(scope="module")
def short(tiny: list[str]) -> list[str]:
    return tiny[2:]


@pytest.fixture(scope="module")
def demo(short: list[str], command: Command, shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """`quatsphere demo --open` with the shortest training and without a browser."""
    folder = tmp_path_factory.mktemp("demo")
    opened: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webbrowser, "open", lambda address: bool(opened.append(address)) or True)
        patch.setenv("XDG_CACHE_HOME", str(shared_cache))
        patch.setenv("COLUMNS", "100")
        patch.chdir(folder)
        ended = command("demo", *short, "--open")
    assert ended.code == 0, ended.err
    return Demo(folder, ended, opened)


def test_demo_leaves_a_report_and_a_view(demo: Demo) -> None:
    *_, accuracy, report, view, live, photo = demo.ended.out.splitlines()
    assert re.fullmatch(r"test accuracy 0\.\d{3}", accuracy)
    assert report == "report: runs/demo/report.html"
    assert view == "view: runs/demo/view.html"
    assert live == "live: runs/demo/live.html"
    assert photo == "photo: runs/demo/photo.html"
    assert "│ all " in demo.ended.out
    assert "epoch   1  loss" in demo.ended.err
    page = (demo.folder / "runs/demo/report.html").read_text()
    for heading in ("results", "predictions", "what-the-model-sees", "training", "settings", "identity"):
        assert f'<section id="{heading}"' in page
    assert re.findall(r'href="(\w+\.html)"', page) == ["view.html", "live.html", "photo.html"]
    assert "<h1>Draw a digit</h1>" in (demo.folder / "runs/demo/live.html").read_text()
    assert "<h1>Show it a picture</h1>" in (demo.folder / "runs/demo/photo.html").read_text()
    for code in re.findall(r'data:image/png;base64,([^"]+)"', page):
        with Image.open(io.BytesIO(base64.b64decode(code, validate=True))) as picture:
            picture.load()


def test_demo_diagnoses_explains_and_opens(demo: Demo) -> None:
    """Every chart has a phone form and normal values, all numbers and tables are explained, no values of the paper."""
    assert demo.opened == [(demo.folder / "runs/demo/report.html").as_uri()]
    assert (demo.folder / "runs/demo/diagnostics.json").is_file()
    page = (demo.folder / "runs/demo/report.html").read_text()
    assert "None yet" not in page
    charts = page.count("<figure>")
    assert charts == page.count("<b>Normal:</b>") == page.count("<source media=") == 12
    assert page.count('class="tile"') == page.count('class="meaning"') == 5
    diagnostics = page.split('<section id="diagnostics"')[1].split("</section>")[0]
    assert diagnostics.count("<table>") == diagnostics.count('class="under"') + 1 == 8  # all but the remarks
    assert ">paper</th>" not in page
    assert "paper: all" not in page


@pytest.mark.usefixtures("blank_figures")
def test_demo_never_overwrites_and_shows_names_as_text(short: list[str], tmp_path: Path, command: Command) -> None:
    name = "<img src=x onerror=alert(1)>&$x^$"
    (tmp_path / name).mkdir()
    ended = command("demo", *short, "--run-dir", name, "--json", "--model.layout", "plane")
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert (result["report"], result["view"]) == (f"{name}-2/report.html", f"{name}-2/view.html")
    for path in (result["report"], result["view"], result["live"]):
        page = (tmp_path / path).read_text()
        assert "&lt;img src=x onerror=alert(1)&gt;&amp;$x^$-2" in page
        assert "<img src=x" not in page
        assert "default-src &#39;none&#39;" in page
    assert not list((tmp_path / name).iterdir())


@pytest.mark.usefixtures("blank_figures")
def test_demo_of_a_model_without_shells(tmp_path: Path, command: Command) -> None:
    words = ["--model.name", "resnet20", "--model.width", "2", "--train.epochs", "1", "--data.max_train_images", "64"]
    ended = command("demo", *words, "--run-dir", "deep/er/run")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[-1] == "report: deep/er/run/report.html"
    assert not (tmp_path / "deep/er/run/view.html").exists()


def test_demo_mistakes_write_nothing(tmp_path: Path, fails: Command) -> None:
    fails(2, "train.epochs must be >= 1", "demo", "--train.epochs", "0")
    fails(2, "unknown option '--epochs'; did you mean '--train.epochs'", "demo", "--epochs", "1")
    fails(2, "File name too long", "demo", "--run-dir", "x" * 300)
    fails(2, "null", "demo", "--run-dir", "a\0b")
    assert not list(tmp_path.iterdir())


def test_demo_requires_matplotlib_before_training(
    short: list[str], tmp_path: Path, fails: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    fails(2, r"pictures and pages need matplotlib and jinja2; pip install 'quatsphere\[report\]'", "demo", *short)
    fails(2, "pictures and pages need matplotlib", "data", "preview", "digits")
    assert not list(tmp_path.iterdir())
