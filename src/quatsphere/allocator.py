"""The C library's allocator, set for programs that allocate the same large tensors step after step."""

from __future__ import annotations

import ctypes
import sys

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
