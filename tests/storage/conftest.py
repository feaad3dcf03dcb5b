"""Fixtures of the storage tests: forked processes, small and read-only disks."""

from __future__ import annotations

import os
import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.disks import mounted_tmpfs

Forked = Callable[..., int]


@pytest.fixture
def forked() -> Forked:
    """`forked(work, NAME=value)` runs `work()` in a forked process and returns its exit code, negative for a signal.

    A new interpreter would take seconds to import torch.
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
    """File system of 1 MiB."""
    with mounted_tmpfs(tmp_path / "small disk", "1m") as disk:
        yield disk


@pytest.fixture
def read_only_folder(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Folder that cannot be written; root ignores permissions, so for root it is a read-only disk."""
    if os.geteuid() != 0:
        folder = tmp_path / "read-only"
        folder.mkdir(mode=0o500)
        yield folder
        return
    disk = request.getfixturevalue("small_disk")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    yield disk
