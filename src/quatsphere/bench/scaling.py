"""Time and memory of a training step against the number of vertices, at fixed k and batch 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from quatsphere.bench.step import TrainingStep
from quatsphere.bench.timing import best_and_median, interleave, peak_mb
from quatsphere.errors import ConfigError
from quatsphere.models.registry import model_config
from quatsphere.runtime import disable_malloc_trimming

SIZES = [1_280, 3_200, 10_000, 32_000, 100_000]
"""Vertices in all shells; the five shells have 1, 1.5, 2, 2.5 and 3 tenths of them."""
NEIGHBOURS = 16


def scaling_settings(vertices: int, dim: int) -> dict[str, int]:
    """Valid settings of a QSV with this total number of vertices."""
    if vertices < 10 * NEIGHBOURS:
        raise ConfigError(f"scaling needs {10 * NEIGHBOURS} vertices or more, k of them on each shell: got {vertices}")
    settings = {"dim": dim, "base_vertices": vertices // 10, "neighbours": NEIGHBOURS}
    model_config("qsv", **settings)
    return settings


def compile_kernels(dim: int) -> None:
    """Compile the kernels by a training step of a small model."""
    TrainingStep("qsv", 1, dim=dim, base_vertices=16, shells=2, neighbours=8)()


def measure_size(vertices: int, dim: int, rounds: int) -> dict[str, Any]:
    """Seconds of a training step of a QSV of this size, and the memory that training adds to this process."""
    settings = scaling_settings(vertices, dim)
    compile_kernels(dim)
    steps: list[TrainingStep] = []

    def start() -> None:
        steps.append(TrainingStep("qsv", 1, **settings))
        steps[0]()
        steps[0].repulse()

    peak = peak_mb(start)
    disable_malloc_trimming()  # as in training; only after the peak is measured, from which it would hide memory
    model = steps[0].model
    laps = best_and_median(interleave({"step": steps[0]}, rounds)["step"])
    return {
        "vertices": sum(model.layout.vertex_counts),
        "dim": dim,
        "seconds": laps["best_ms"] / 1000,
        "median_seconds": laps["median_ms"] / 1000,
        "peak_mb": peak,
    }


def exponent(points: Sequence[Mapping[str, Any]], key: str) -> float:
    """Exponent p of the least-squares fit key = c vertices^p; nan for a single size."""
    x = [math.log(point["vertices"]) for point in points]
    y = [math.log(point[key]) for point in points]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread if spread else math.nan
