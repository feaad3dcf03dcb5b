"""A reader that neither hangs nor swallows more than it was promised."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quatsphere.storage.atomic import read_regular


def test_reads_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_regular(tmp_path / "file", 4)


def test_pipe_folder_device_and_loop_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
            read_regular(path, 100)
    with pytest.raises(OSError, match="symbolic links"):
        read_regular(tmp_path / "loop", 100)
