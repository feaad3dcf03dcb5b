"""Number of threads for small outputs, and invalidation of the cache of compiled code."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

pytest.importorskip("numba")

from quatsphere.kernels.cpu.loops import jit, threads


def double(x: float) -> float:
    return 2 * x


def test_stale_cache_is_not_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale cache may refer to classes that no longer exist, so it must not be unpickled."""
    monkeypatch.setattr(jit, "__file__", str(tmp_path / "jit.py"))
    source, index = tmp_path / "called.py", tmp_path / "index"
    source.write_text("before")
    old = jit.compiled(double)._cache._cache_file
    source.write_text("after it")
    new = jit.compiled(double)._cache._cache_file
    index.write_bytes(pickle.dumps(old._version) + b"no pickle")
    old._index_path = new._index_path = str(index)
    assert new._load_index() == {}
    with pytest.raises(pickle.UnpicklingError):
        old._load_index()


def test_small_outputs_use_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of threads grows with the size, from one to torch's number."""
    monkeypatch.setattr(threads, "MIN_WORK_PER_THREAD", 1000)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    assert [threads.thread_count(size) for size in (0, 999, 1999, 2000, 10**6)] == [1, 1, 1, 2, 3]
    spans: list[tuple[int, int]] = []
    threads.parallel_for(spans.append, 7, 1999)
    assert spans == [(0, 7)]


def test_stamp_covers_every_compiled_file() -> None:
    """Every file of the package with a compiled function is part of the stamp of every function."""
    folder = Path(jit.__file__).parent
    stamped = {name for name, *_ in threads_stamp()}
    assert stamped == {file.name for file in folder.glob("*.py")}
    others = [file for file in folder.parents[1].rglob("*.py") if file.parent != folder]
    assert not [file for file in others if "@inlined" in file.read_text() or "@compiled" in file.read_text()]


def threads_stamp() -> tuple[tuple[str, float, int], ...]:
    return jit.compiled(double)._cache._cache_file._version[1]
