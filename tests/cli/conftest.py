"""Fixtures that run the command in this process, each test in a new working folder."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from quatsphere.cli.main import main

TINY = [
    "--preset",
    "demo",
    "--model.dim",
    "16",
    "--model.heads",
    "2",
    "--model.base_vertices",
    "8",
    "--model.shells",
    "2",
    "--model.plane_rows",
    "4",
    "--model.backend",
    "factored",
    "--train.epochs",
    "1",
    "--data.max_train_images",
    "64",
]


class Outcome(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


def call(*words: str) -> Outcome:
    """Run `quatsphere WORDS...` here."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    return Outcome(code, out.getvalue(), err.getvalue())


def call_to_fail(code: int, pattern: str, *words: str) -> str:
    """Run a command that must end with this code and one error line, after notes at most; gives the line."""
    outcome = call(*words)
    *before, last = outcome.err.splitlines() or [""]
    assert last.startswith("quatsphere: error: "), outcome
    assert all(line.startswith("quatsphere: note: ") for line in before), outcome
    assert re.search(pattern, last), last
    assert outcome.code == code, outcome
    assert not outcome.out
    return last


@pytest.fixture(scope="session")
def command() -> Command:
    return call


@pytest.fixture(scope="session")
def fails() -> Callable[..., str]:
    return call_to_fail


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Settings of a model that trains on 64 digits in a second."""
    return list(TINY)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty working folder, a separate cache, and no settings from the environment."""
    for name in [name for name in os.environ if re.match(r"QUATSPHERE_\w+__", name)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_cache))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny model, in a folder whose path is long, with spaces and letters of several scripts."""
    deep = tmp_path_factory.mktemp("runs") / f"späce ünd 球 {'x' * 100}" / f"{'y' * 100} 'quoted' \"double\""
    folder = deep / ("z" * 100)
    deep.mkdir(parents=True)
    assert len(str(folder)) > 300
    outcome = call("train", *TINY, "--run-dir", str(folder))
    assert outcome.code == 0, outcome.err
    return folder


SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><defs></defs></svg>'


@pytest.fixture
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw every figure but write an empty one, for tests of something else: saves most of the time of a report."""
    figure = pytest.importorskip("matplotlib.figure")

    def write_blank(self: object, target: io.BytesIO, *, format: str, **_: object) -> None:
        target.write(SVG if format == "svg" else noise_png(0))

    monkeypatch.setattr(figure.Figure, "savefig", write_blank)


def noise_png(seed: int, shape: tuple[int, ...] = (8, 8, 3)) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture(scope="session")
def write() -> Callable[[Path, Mapping[str, bytes]], Path]:
    return write_files


@pytest.fixture(scope="session")
def noise() -> Callable[..., bytes]:
    """`noise(seed, shape)`: a PNG of noise."""
    return noise_png


@pytest.fixture(scope="session")
def class_files() -> dict[str, bytes]:
    """Class folders of noise: 6 training and 2 test images of a, b and c."""
    return {
        f"{part}/{kind}/{i}.png": noise_png(100 * label + 50 * (part == "test") + i)
        for label, kind in enumerate("abc")
        for part, count in (("train", 6), ("test", 2))
        for i in range(count)
    }


@pytest.fixture(scope="session")
def class_folder(tmp_path_factory: pytest.TempPathFactory, class_files: dict[str, bytes]) -> Path:
    return write_files(tmp_path_factory.mktemp("classes"), class_files)
