"""Time this process has spent compiling kernels; code read back from the disk cache does not count."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
"""Names of glibc's malloc.h for `mallopt`."""


def keep_freed_memory() -> bool:
    """Let malloc keep what is freed instead of returning it to the system; whether this C library can.

    glibc maps every large block anew, and the system fills each page with zeros when it is first touched: a tenth of
    a training step. Only our own programs do this (commands and their workers), never an import: it changes the whole
    process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    settings = ((MMAP_MAX, 0), (TRIM_THRESHOLD, -1), (TOP_PAD, 64 * 2**20))
    return all(mallopt(name, value) == 1 for name, value in settings)


class Compilation:
    """A stopwatch over compilations, nested ones counted once; `watch` is called with True at a start, else False."""

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
        """Seconds since the running compilation began, 0 where none runs."""
        return time.monotonic() - self._begun if self._depth else 0.0

    @property
    def seconds(self) -> float:
        """Seconds of all compilations, the running one included."""
        return self._finished + self.current


compilation = Compilation()


def working_time() -> float:
    """A monotonic clock that stands still during compilations."""
    return time.monotonic() - compilation.seconds
