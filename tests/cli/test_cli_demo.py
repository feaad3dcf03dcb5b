"""The demo in its shortest version: a table, an accuracy line, and a page that shows any name as text."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

Command = Callable[..., Any]


@pytest.fixture
def short(tiny: list[str]) -> list[str]:
    return tiny[2:]


def test_demo_leaves_a_page(short: list[str], tmp_path: Path, command: Command) -> None:
    ended = command("demo", *short)
    assert ended.code == 0, ended.err
    *_, accuracy, place = ended.out.splitlines()
    assert re.fullmatch(r"test accuracy 0\.\d{3}", accuracy)
    assert place == "pictures: runs/demo/page.html"
    assert "│ all " in ended.out
    assert "epoch   1  loss" in ended.err
    page = (tmp_path / "runs/demo/page.html").read_text()
    assert page.count("data:image/png;base64,") == 5
    for heading in ("Predictions", "Confusion", "What the model samples", "Shells", "Training"):
        assert f"<h2>{heading}</h2>" in page
    for code in re.findall(r'base64,([^"]+)"', page):
        with Image.open(io.BytesIO(base64.b64decode(code, validate=True))) as picture:
            picture.load()
            assert picture.width > 300


def test_demo_never_overwrites_and_shows_names_as_text(short: list[str], tmp_path: Path, command: Command) -> None:
    name = "<img src=x onerror=alert(1)>&$x^$"
    (tmp_path / name).mkdir()
    ended = command("demo", *short, "--run-dir", name, "--json", "--model.layout", "plane")
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert result["page"] == f"{name}-2/page.html"
    page = (tmp_path / result["page"]).read_text()
    assert "<h1>quatsphere: run &lt;img src=x onerror=alert(1)&gt;&amp;$x^$-2</h1>" in page
    assert "<img src=x" not in page
    tags = set(re.findall(r"<([a-z0-9]+)", re.sub(r"base64,[^\"]*", "", page)))
    assert tags <= {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "table", "tr", "td", "img"}
    sources = re.findall(r'(?:src|href|url|action)\s*[=(]\s*"?([^"\s>]{0,12})', page)
    assert sources
    assert all(source in ("data:image/p", "x") for source in sources)
    assert "default-src 'none'" in page
    assert not list((tmp_path / name).iterdir())


def test_demo_of_a_model_without_shells(tmp_path: Path, command: Command) -> None:
    words = ["--model.name", "resnet20", "--model.width", "2", "--train.epochs", "1", "--data.train_limit", "64"]
    ended = command("demo", *words, "--run-dir", "deep/er/run")
    assert ended.code == 0, ended.err
    assert (tmp_path / "deep/er/run/page.html").read_text().count("data:image/png;base64,") == 3


def test_demo_mistakes_write_nothing(tmp_path: Path, fails: Command) -> None:
    fails(2, "train.epochs must be >= 1", "demo", "--train.epochs", "0")
    fails(2, "unknown option '--epochs'; did you mean '--train.epochs'", "demo", "--epochs", "1")
    fails(2, "File name too long", "demo", "--run-dir", "x" * 300)
    fails(2, "null", "demo", "--run-dir", "a\0b")
    assert not list(tmp_path.iterdir())


def test_demo_asks_for_matplotlib_before_training(
    short: list[str], tmp_path: Path, fails: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "quatsphere.report.pictures", None)
    monkeypatch.delattr("quatsphere.report.pictures", raising=False)
    fails(2, r"pictures need matplotlib; pip install 'quatsphere\[report\]'", "demo", *short)
    fails(2, "pictures need matplotlib", "data", "preview", "digits")
    assert not list(tmp_path.iterdir())
