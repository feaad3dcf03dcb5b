"""Interleaved laps: every round runs every contender once, so whatever else the machine does falls on all alike."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from quatsphere.kernels import explain_backend
from quatsphere.train.provenance import commit, processor, versions

Pass = Callable[[], object]

WARM_UP = 2
"""Rounds that do not count: loops are compiled, threads started, pages touched."""
SELDOM = 4
"""A contender that is a hundred times slower than the others runs in every fourth round only."""


def interleave(passes: Mapping[str, Pass], rounds: int, seldom: Collection[str] = ()) -> dict[str, list[float]]:
    """Milliseconds of every contender in every round it took part in, warm-up excluded."""
    laps: dict[str, list[float]] = {name: [] for name in passes}
    for number in range(-WARM_UP, rounds):
        for name, run in passes.items():
            if number < 0 or number % SELDOM == 0 or name not in seldom:
                laps[name].append(lap(run))
    return {name: times[WARM_UP:] for name, times in laps.items()}


def lap(run: Pass) -> float:
    """Milliseconds of one pass."""
    start = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - start)


def summary(laps: Sequence[float]) -> dict[str, float]:
    """Best and median."""
    return {"best_ms": min(laps), "median_ms": statistics.median(laps)}


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


SIDE = 1536
"""Side of the square matrices whose product is the machine's peak."""


def machine() -> dict[str, Any]:
    """Processor, threads, versions, and the backend that runs with the reason."""
    backend, reason = explain_backend("auto", "cpu")
    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "versions": versions(),
        "commit": commit(),
        "backend": backend,
        "backend_reason": reason,
    }


def gemm_pass() -> Pass:
    """One float32 product of two large square matrices."""
    a, b = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
    out = torch.empty(SIDE, SIDE)
    return lambda: torch.mm(a, b, out=out)


def gemm_gflops(milliseconds: float) -> float:
    """Billions of operations per second of `gemm_pass`."""
    return 2 * SIDE**3 / milliseconds / 1e6
