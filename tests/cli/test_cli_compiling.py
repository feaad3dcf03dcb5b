"""Notes and times of compilations; `info` compiles nothing."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import TextColumn

from quatsphere.cli import console
from quatsphere.cli.console import COMPILING, Bars, CompileNotice
from quatsphere.kernels.cpu.loops import jit
from quatsphere.runtime import compilation, working_time
from quatsphere.train import Progress, Reporter

Kernel = Callable[..., Any]
NOTE = f"quatsphere: note: {COMPILING}"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Report every compilation, however short."""
    monkeypatch.setattr(console, "COMPILE_PATIENCE", 0.01)
    before, compilation.watch = compilation.watch, CompileNotice()
    yield
    compilation.watch = before


SOURCE = """
import numba

@numba.njit(cache=True)
def kernel(x):
    total = 0.0
    for i in range(x):
        total += i**0.5
    return total
"""


@pytest.fixture
def new_kernel(tmp_path: Path) -> Kernel:
    """Gives a function as a new process would import it; `cold` empties its cache on disk before."""
    file = tmp_path / "made_up_kernel.py"
    file.write_text(SOURCE)

    def load(cold: bool = True) -> Any:
        if cold:
            shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        return runpy.run_path(str(file))["kernel"]

    return load


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_file_gets_one_line_and_a_warm_kernel_none(
    new_kernel: Kernel, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = new_kernel()
    before = compilation.seconds
    kernel(3)
    assert capsys.readouterr().err.splitlines() == [NOTE]
    assert compilation.seconds > before
    spent = compilation.seconds
    kernel(4)
    new_kernel()(3)
    assert capsys.readouterr().err == ""
    assert compilation.seconds > spent


def test_a_kernel_in_the_disk_cache_is_not_mentioned(new_kernel: Kernel, capsys: pytest.CaptureFixture[str]) -> None:
    new_kernel()(3)
    assert capsys.readouterr().err.splitlines() == [NOTE]
    compilation.watch, spent = CompileNotice(), compilation.seconds
    new_kernel(cold=False)(3)
    assert capsys.readouterr().err == ""
    assert compilation.seconds == spent


def test_a_terminal_gets_a_spinner(new_kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    new_kernel()(3)
    assert COMPILING in screen.getvalue()
    assert NOTE not in screen.getvalue()


def test_a_bar_shows_the_spinner_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen, elsewhere = Terminal(), Terminal()
    monkeypatch.setattr("sys.stderr", elsewhere)
    bars = Bars(TextColumn("epoch 1"), console=Console(file=screen, width=100))
    bars.add_task("x")
    bars.start()
    compilation.begin()
    time.sleep(0.1)
    bars.refresh()
    compilation.end()
    bars.stop()
    assert re.search(rf"{COMPILING}: \d+ s", screen.getvalue())
    assert elsewhere.getvalue() == ""
    assert not Bars.shown


def test_a_bar_without_a_terminal_is_not_shown() -> None:
    bars = Bars(console=Console(file=io.StringIO()))
    bars.start()
    bars.stop()
    assert not Bars.shown


def test_working_time_excludes_compilation() -> None:
    begin = working_time()
    compilation.begin()
    compilation.begin()
    time.sleep(0.1)
    compilation.end()
    assert working_time() - begin < 0.05
    assert compilation.current > 0
    compilation.end()
    assert working_time() - begin < 0.05
    assert compilation.current == 0
    assert jit.compilation is compilation


class Compiles(Reporter):
    """Spends half a second on a compilation after every step."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        compilation.begin()
        time.sleep(0.5)
        compilation.end()

    def epoch(self, record: dict[str, Any]) -> None:
        self.records.append(record)


def test_speeds_leave_compilation_out(tiny: list[str]) -> None:
    from quatsphere.cli.train import make_parser
    from quatsphere.train import train

    begin = time.monotonic()
    result = train(make_parser().parse_config([*tiny, "--train.epochs=2"]).config, "run", None, Compiles())
    assert result["steps"] == 4
    assert result["seconds"] < time.monotonic() - begin - 4 * 0.5


def test_info_compiles_nothing(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    here = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "quatsphere", "info", "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    ended = subprocess.run(words, env=here, capture_output=True, text=True, check=True)
    facts = json.loads(ended.stdout)
    assert facts["backend"] == "numba_cpu"
    assert facts["memory_bytes"] > 16 * facts["parameters"]
    assert list(cache.iterdir()) == []
    assert ended.stderr == ""
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 15


@pytest.mark.slow
def test_commands_report_compilation_only_with_a_cold_cache(
    tiny_run: Path, noise: Callable[..., bytes], tmp_path: Path
) -> None:
    """The kernels of a real command are compiled; takes half a minute."""
    (tmp_path / "x.png").write_bytes(noise(0))
    config = (tiny_run / "config.yaml").read_text()
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").symlink_to(tiny_run / "checkpoints")
    (run / "config.yaml").write_text(config.replace("backend: factored", "backend: auto"))
    here = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "quatsphere", "predict", "run", "x.png"]
    said = [subprocess.run(words, env=here, capture_output=True, text=True, check=True).stderr for _ in range(2)]
    assert said == [f"{NOTE}\n", ""]
