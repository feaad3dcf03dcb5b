"""`--plugin FILE.py` imports a file of the user before the verb; old spellings of options work, with a note."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from quatsphere import runtime
from quatsphere.cli.parser import OLD_OPTIONS, Parser
from quatsphere.config import QSVConfig
from quatsphere.config.checks import add_choice


@pytest.fixture(autouse=True)
def _no_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(runtime, "_loaded", set())
    monkeypatch.setattr("quatsphere.config.checks._ADDED", {})
    yield
    os.environ.pop(runtime.PLUGINS, None)


PLUGIN = """
from quatsphere.config import QSVConfig
from quatsphere.config.checks import add_choice
add_choice(QSVConfig, "routing", "nearest")
"""


def test_a_plugin_registers_a_choice(tmp_path: Path, command: Callable[..., Any], fails: Callable[..., str]) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    words = ["train", "--model.routing", "nearest", "--print-config"]
    fails(2, "model.routing must be alignment or absolute .*: got 'nearest'", *words)
    for plugin in (["--plugin", "mine.py"], ["--plugin=mine.py"]):
        printed = command(*plugin, *words)
        assert printed.code == 0, printed.err
        assert yaml.safe_load(printed.out)["model"]["routing"] == "nearest"
    assert "geometric,nearest}" in command("train", "--help", "--plugin", "mine.py").out
    fails(2, "did you mean 'nearest'", "train", "--model.routing=nearset")


def test_workers_load_the_plugins_of_their_command(tmp_path: Path, command: Callable[..., Any]) -> None:
    (tmp_path / "count.py").write_text("from pathlib import Path\nPath('loaded').open('a').write('x')\n")
    assert command("--plugin", "count.py", "--version").code == 0
    runtime._loaded.clear()
    runtime.load_plugins()
    runtime.load_plugins()
    assert (tmp_path / "loaded").read_text() == "xx"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nraise KeyError('odd\\nthing')", r"plugin mine.py fails at line 2 \(KeyError: .*\); correct the file"),
        ("x = (", r"plugin mine.py fails at line 1 \(SyntaxError: "),
        ("import no_such_module", r"line 1 \(ModuleNotFoundError: No module named 'no_such_module'\)"),
        (None, r"no Python file 'mine.py' for --plugin; name a file that ends in .py"),
    ],
)
def test_a_bad_plugin_is_one_line(text: str | None, message: str, tmp_path: Path, fails: Callable[..., str]) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    fails(2, message, "--plugin", "mine.py", "train")


def test_plugin_without_a_file(fails: Callable[..., str]) -> None:
    fails(2, "--plugin needs a Python file", "train", "--plugin")


def test_an_added_choice_is_valid_for_its_dataclass_alone() -> None:
    with pytest.raises(ValueError, match="routing must be"):
        QSVConfig(routing="nearest")  # type: ignore[arg-type]
    add_choice(QSVConfig, "routing", "nearest")
    assert QSVConfig(routing="nearest").routing == "nearest"  # type: ignore[arg-type]


@pytest.mark.parametrize(("old", "new"), OLD_OPTIONS.items())
def test_old_spellings_work_with_a_note(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser()
    parser.add_argument(new, dest="value", nargs="?", const="given")
    for words in ([old, "x"], [f"{old}=x"]):
        assert parser.parse_args(words).value == "x"
        note = f"quatsphere: note: {old} is now {new}; the old spelling will be removed in the next release\n"
        assert capsys.readouterr().err == note
    assert parser.parse_args([new, "x"]).value == "x"
    assert capsys.readouterr().err == ""
