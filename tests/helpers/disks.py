"""Small file systems for tests of full disks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quatsphere.train import Progress, Reporter


@contextmanager
def mounted_tmpfs(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system of the given size; the test is skipped if this user may not mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


class Filler(Reporter):
    """Fills a disk up to a level after a step and frees it at the first note."""

    def __init__(self, disk: Path, step: int, left: int) -> None:
        self.disk, self.at, self.left = disk, step, left
        self.messages: list[str] = []

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        if progress.step == self.at:
            system = os.statvfs(self.disk)
            free = system.f_bavail * system.f_frsize
            (self.disk / "filler").write_bytes(bytes(max(0, free - self.left)))

    def note(self, message: str) -> None:
        self.messages.append(message)
        (self.disk / "filler").unlink(missing_ok=True)
