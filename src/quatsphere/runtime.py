"""State of this process: memory allocator, and the time spent compiling kernels."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
"""Parameters of `mallopt`, from glibc's malloc.h."""


def disable_malloc_trimming() -> bool:
    """Make malloc keep freed memory instead of returning it to the system; False if the C library cannot.

    By default glibc maps every large block anew, and the system zeroes each page when it is first touched, which takes
    a tenth of a training step. Only commands and their workers call this, never an import: it affects the process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    settings = ((MMAP_MAX, 0), (TRIM_THRESHOLD, -1), (TOP_PAD, 64 * 2**20))
    return all(mallopt(name, value) == 1 for name, value in settings)


class Compilation:
    """Stopwatch of compilations, nested ones counted once, loads from the disk cache not counted.

    `watch` is called with True when a compilation starts and with False when it ends.
    """

    def __init__(self) -> None:
        self.watch: Callable[[bool], None] = lambda begins: None
        self._depth = 0
        self._begun = self._finished = 0.0

    def begin(self) -> None:
        """Start of a compilation."""
        self._depth += 1
        if self._depth == 1:
            self._begun = time.monotonic()
            self.watch(True)

    def end(self) -> None:
        """End of a compilation."""
        self._depth -= 1
        if self._depth == 0:
            self._finished += time.monotonic() - self._begun
            self.watch(False)

    @property
    def current(self) -> float:
        """Seconds since the current compilation began, 0 if there is none."""
        return time.monotonic() - self._begun if self._depth else 0.0

    @property
    def seconds(self) -> float:
        """Seconds of all compilations, including the current one."""
        return self._finished + self.current


compilation = Compilation()


def working_time() -> float:
    """Monotonic clock in seconds that stands still during compilations."""
    return time.monotonic() - compilation.seconds
