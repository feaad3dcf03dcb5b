"""Peak memory: what a pass adds to a process that holds nothing else."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from quatsphere.bench.timing import Pass


def resident() -> tuple[int, int]:
    """(bytes held now, most ever held); where the system cannot tell what is held now, the most ever held twice."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        now, most = (1024 * int(lines[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    except (OSError, KeyError):
        unit = 1 if sys.platform == "darwin" else 1024
        now = most = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return now, most


def forget_peak() -> None:
    """Let the most ever held start again from what is held now (Linux; elsewhere the loading of torch stays in it)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_mb(run: Pass) -> float:
    """Megabytes that one pass adds to this process at its peak."""
    forget_peak()
    before, _ = resident()
    run()
    return (resident()[1] - before) / 1e6
