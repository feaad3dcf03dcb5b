"""After training: the commands that come next, and pages that open in a browser."""

from __future__ import annotations

import shlex
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


def test_training_names_the_next_commands(tiny: list[str], tmp_path: Path, command: Command) -> None:
    ended = command("train", *tiny, "--run-dir", "my run")
    accuracy, heading, *lines = ended.out.splitlines()
    assert accuracy.startswith("test accuracy")
    assert heading == "next:"
    words = [shlex.split(line) for line in lines]
    assert words == [
        ["quatsphere", "report", "my run", "--open"],
        ["quatsphere", "view", "my run", "--open"],
        ["quatsphere", "predict", "my run", "IMAGE"],
    ]


def test_a_model_without_shells_has_no_view(tiny: list[str], command: Command) -> None:
    small = ["--model.name", "resnet20", "--model.width", "2", "--train.epochs", "1", "--data.max_train_images", "64"]
    ended = command("train", "--preset", "demo", *small, "--run-dir", "r")
    assert ended.code == 0, ended.err
    assert "quatsphere predict r IMAGE" in ended.out
    assert "quatsphere view" not in ended.out


@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize("verb", ["report", "view"])
def test_pages_open_in_a_browser(
    verb: str, tiny_run: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)  # returns None, as if there were no browser
    ended = command(verb, str(tiny_run), "-o", "a page.html", "--open")
    assert ended.code == 0, ended.err
    assert opened == [(tmp_path / "a page.html").as_uri()]
    assert f"no browser found; open {opened[0]} in one" in ended.err
