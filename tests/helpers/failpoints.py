"""Death of a process at a named moment of a write, chosen by the environment variable QUATSPHERE_FAILPOINT."""

from __future__ import annotations

import os
from collections import Counter

from quatsphere.storage import atomic

_passes: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Exit at once, as by kill -9, if QUATSPHERE_FAILPOINT is `name` or `name:n` (the n-th call); else do nothing."""
    wanted, _, nth = os.environ.get("QUATSPHERE_FAILPOINT", "").partition(":")
    if name == wanted:
        _passes[name] += 1
        if _passes[name] == int(nth or 1):
            os._exit(137)


def enable_failpoints() -> None:
    """Make writes of this process and its forks obey the variable; production code ignores it."""
    atomic.failpoint = failpoint
