"""A folder is locked by one process at a time, and its death releases the lock."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quatsphere.errors import CheckpointError
from quatsphere.storage.run_folder import folder_lock


@contextmanager
def another_holder(path: Path) -> Iterator[int]:
    """Process that holds the lock and is killed at the end of the block."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with folder_lock(path, "x", print):
                os.write(write_end, b"locked")
                time.sleep(60)
        finally:
            os._exit(1)
    try:
        os.read(read_end, 6)
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read_end)
        os.close(write_end)


def lock_once(path: Path) -> list[str]:
    notes: list[str] = []
    with folder_lock(path, "x", notes.append):
        pass
    return notes


def test_lock_of_a_live_process_is_refused_and_of_a_dead_one_taken_over(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with another_holder(path) as pid:
        since = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[-+]\d\d:\d\d"
        holder = rf"pid {pid} on host {re.escape(os.uname().nodename)} since {since}"
        with pytest.raises(
            CheckpointError, match=rf"^run 'x' is locked by {holder}; wait until it ends or use another name$"
        ):
            lock_once(path)
    (note,) = lock_once(path)
    assert re.fullmatch(rf"took over a stale lock of run 'x': {holder} is gone", note)


def test_clean_end_and_exception_leave_no_stale_lock(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert lock_once(path) == []
    with pytest.raises(KeyboardInterrupt), folder_lock(path, "x", print):
        raise KeyboardInterrupt
    assert lock_once(path) == []


def test_lock_is_exclusive_within_a_process(tmp_path: Path) -> None:
    with (
        folder_lock(tmp_path / ".lock", "x", print),
        pytest.raises(CheckpointError, match=f"locked by pid {os.getpid()} "),
    ):
        lock_once(tmp_path / ".lock")


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[]", b'{"pid": 3}'])
def test_incomplete_stale_lock_is_taken_over(tmp_path: Path, text: bytes) -> None:
    (tmp_path / ".lock").write_bytes(text)
    assert lock_once(tmp_path / ".lock") == ["took over a stale lock of run 'x': another process is gone"]
