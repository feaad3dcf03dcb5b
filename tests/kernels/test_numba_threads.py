"""Threads and the cache of compiled code: small results stay in one thread, stale code is not even unpickled."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

pytest.importorskip("numba")

from quatsphere.kernels import numba_threads


def double(x: float) -> float:
    return 2 * x


def test_a_stale_cache_is_left_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds may name classes that are gone."""
    monkeypatch.setattr(numba_threads, "__file__", str(tmp_path / "numba_threads.py"))
    source, index = tmp_path / "numba_called.py", tmp_path / "index"
    source.write_text("before")
    old = numba_threads.compiled(double)._cache._cache_file
    source.write_text("after it")
    new = numba_threads.compiled(double)._cache._cache_file
    index.write_bytes(pickle.dumps(old._version) + b"no pickle")
    old._index_path = new._index_path = str(index)
    assert new._load_index() == {}
    with pytest.raises(pickle.UnpicklingError):
        old._load_index()


def test_small_results_stay_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads join one by one with the size; nothing has less than one or more than torch has."""
    monkeypatch.setattr(numba_threads, "LEAST", 1000)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    assert [numba_threads.worthwhile(size) for size in (0, 999, 1999, 2000, 10**6)] == [1, 1, 1, 2, 3]
    shares: list[tuple[int, int]] = []
    numba_threads.share_out(shares.append, 7, 1999)
    assert shares == [(0, 7)]
