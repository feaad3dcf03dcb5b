"""What the figures were measured on, and how fast it multiplies matrices."""

from __future__ import annotations

from typing import Any

import torch

from quatsphere.bench.timing import Pass
from quatsphere.kernels import explain_backend
from quatsphere.train.identity import commit, processor, versions

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
