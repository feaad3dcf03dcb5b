"""The cache of compiled code is checked before it is used; a bad one costs time and nothing else."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba")

from numba.core import config

from quatsphere.kernels.cpu.loops import jit

KERNEL = "def double(x):\n    return 2 * x\n"


class Poison:
    """Object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Function that calls a compiled function as a new process would and returns how often it was compiled."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "cache").mkdir(mode=0o755)
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))

    def call() -> int:
        space: dict[str, Any] = {"__name__": "builtins"}  # a module that unpickling can import
        exec(compile(KERNEL, str(tmp_path / "kernel.py"), "exec"), space)
        function = jit.compiled(space["double"])
        assert function(2.0) == 4.0
        return 1 - sum(function.stats.cache_hits.values())

    return call


def files(tmp_path: Path, suffix: str) -> list[Path]:
    return sorted((tmp_path / "cache").rglob(f"*{suffix}"))


def test_second_process_reads_the_cache(run: Callable[[], int]) -> None:
    assert [run(), run()] == [1, 0]


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", ["empty", "cut", "flip", "poison", "folder", "pipe"])
def test_damaged_cache_is_compiled_again(run: Callable[[], int], tmp_path: Path, suffix: str, damage: str) -> None:
    run()
    (file,) = files(tmp_path, suffix)
    data = file.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) * 2 // 3] ^= 4
    file.unlink()
    if damage == "folder":
        file.mkdir()
    elif damage == "pipe":
        os.mkfifo(file)
    else:
        poison = pickle.dumps(Poison(tmp_path / "executed"))
        file.write_bytes({"empty": b"", "cut": data[:-50], "flip": flipped, "poison": poison + data}[damage])
    assert run() == 1
    assert run() == int(damage == "folder")
    assert not (tmp_path / "executed").exists()


def test_exchanged_file_is_compiled_again(run: Callable[[], int], tmp_path: Path) -> None:
    run()
    (index,), (code,) = files(tmp_path, ".nbi"), files(tmp_path, ".nbc")
    code.write_bytes(jit._sealed("another.1.nbc", code.read_bytes()[32:]))
    assert [run(), run()] == [1, 0]
    assert index.exists()


@pytest.mark.parametrize("mode", [0o775, 0o777, 0o757])
def test_folder_that_others_can_write_is_not_used(run: Callable[[], int], tmp_path: Path, mode: int) -> None:
    run()
    files(tmp_path, ".nbi")[0].parent.chmod(mode)
    assert [run(), run()] == [1, 1]


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_file_that_others_can_write_is_replaced(run: Callable[[], int], tmp_path: Path, suffix: str) -> None:
    run()
    files(tmp_path, suffix)[0].chmod(0o666)
    assert [run(), run()] == [1, 0]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("what", ["folder", ".nbi", ".nbc"])
def test_cache_of_another_user_is_not_used(run: Callable[[], int], tmp_path: Path, what: str) -> None:
    run()
    file = files(tmp_path, ".nbi")[0].parent if what == "folder" else files(tmp_path, what)[0]
    os.chown(file, 12345, 12345)
    assert run() == 1


def test_cache_that_cannot_be_written_is_left_out(run: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._open_for_write", full)
    assert [run(), run()] == [1, 1]


TWO = """
import sys
from numba.core import config
config.CACHE_DIR = sys.argv[2]
from quatsphere.kernels.cpu.loops import jit
space = {"__name__": "builtins"}
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), space)
print(jit.compiled(space["double"])(2.0))
"""


def test_two_processes_compile_at_once(run: Callable[[], int], tmp_path: Path) -> None:
    words = [sys.executable, "-c", TWO, str(tmp_path / "kernel.py"), str(tmp_path / "cache")]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0] for process in both] == ["4.0\n", "4.0\n"]
    assert run() == 0
