"""Real processes and real small disks: what the tests of this room share."""

from __future__ import annotations

import os
import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Forked = Callable[..., int]


@pytest.fixture
def forked() -> Forked:
    """`forked(work, NAME=value)` runs `work()` in a process of its own, returns its exit code (0, 1 or how it died).

    A fork, not a new interpreter: importing torch again would take seconds per death.
    """

    def run(work: Callable[[], object], **environment: str) -> int:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.environ.update(environment)
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    return run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; skipped where this user may not mount one."""
    disk = tmp_path / "small disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.fixture
def read_only_folder(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder in which nothing can be made; root ignores permissions, so for root it is a read-only disk."""
    if os.geteuid() != 0:
        folder = tmp_path / "read-only"
        folder.mkdir(mode=0o500)
        yield folder
        return
    disk = request.getfixturevalue("small_disk")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    yield disk
