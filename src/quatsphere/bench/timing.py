"""Interleaved timing (every round runs every candidate once, so other load affects all alike), memory, the machine."""

from __future__ import annotations

import contextlib
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
Row = dict[str, Any]

WARM_UP = 2
"""Rounds that are not counted: kernels are compiled, threads started, pages touched."""
SLOW_EVERY = 4
"""Slow candidates run only in every fourth round."""


def lap(run: Pass) -> float:
    """Milliseconds of one pass."""
    start = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - start)


def interleave(
    passes: Mapping[str, Pass], rounds: int, slow: Collection[str] = (), lap: Callable[[Pass], float] = lap
) -> dict[str, list[float]]:
    """Milliseconds of every candidate in each of its rounds, without warm-up."""
    laps: dict[str, list[float]] = {name: [] for name in passes}
    for number in range(-WARM_UP, rounds):
        for name, run in passes.items():
            if number < 0 or number % SLOW_EVERY == 0 or name not in slow:
                laps[name].append(lap(run))
    return {name: times[WARM_UP:] for name, times in laps.items()}


def best_and_median(laps: Sequence[float]) -> dict[str, float]:
    """Minimum and median of the times."""
    return {"best_ms": min(laps), "median_ms": statistics.median(laps)}


def resident_bytes() -> tuple[int, int]:
    """Resident memory of this process (now, peak); the peak for both where the current value is unknown."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        now, peak = (1024 * int(lines[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    except (OSError, KeyError):
        import resource  # not on Windows

        unit = 1 if sys.platform == "darwin" else 1024
        now = peak = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return now, peak


def peak_mb(run: Pass) -> float:
    """Megabytes that one pass adds to the peak memory of this process."""
    with contextlib.suppress(OSError):  # only Linux resets the peak; elsewhere it includes the import of torch
        Path("/proc/self/clear_refs").write_text("5")
    before, _ = resident_bytes()
    run()
    return (resident_bytes()[1] - before) / 1e6


GEMM_SIZE = 1536
"""Rows and columns of the matrices whose product measures the machine's peak."""


def machine(requested: str = "auto", device: str = "cpu") -> dict[str, Any]:
    """Processor, threads, versions, and the selected backend with the reason."""
    backend, reason = explain_backend(requested, device)
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
    """Pass of one float32 product of two large square matrices."""
    a, b = torch.ones(GEMM_SIZE, GEMM_SIZE), torch.ones(GEMM_SIZE, GEMM_SIZE)
    out = torch.empty(GEMM_SIZE, GEMM_SIZE)
    return lambda: torch.mm(a, b, out=out)


def gemm_gflops(milliseconds: float) -> float:
    """GFLOPS of a `gemm_pass` of this duration."""
    return 2 * GEMM_SIZE**3 / milliseconds / 1e6
