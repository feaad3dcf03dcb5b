"""Lower bounds on speed as ratios, measured interleaved in one process.

Not part of the default tests: `pytest -m bench --benchmark-enable tests/bench`.
"""

from __future__ import annotations

from typing import Any

import pytest

from quatsphere.bench import kernel, step
from quatsphere.bench.measure import run_isolated
from quatsphere.bench.timing import interleave
from quatsphere.kernels import backends_on

pytestmark = [pytest.mark.bench, pytest.mark.skipif("numba_cpu" not in backends_on("cpu"), reason="needs numba")]

FUSED = "quaternion: numba_cpu"


@pytest.mark.parametrize(
    ("slower", "bound"),
    [("quaternion: reference", 60), ("quaternion: factored", 4), ("quaternion: sdpa dense", 2)],
)
def test_fused_kernel_is_faster(slower: str, bound: float, benchmark: Any) -> None:
    """Best of interleaved rounds; pytest-benchmark records the times of the fused kernel and the ratio."""
    makers = kernel.candidates()
    passes = {name: makers[name](16) for name in (slower, FUSED)}
    laps = interleave(passes, 8, kernel.SLOW_CANDIDATES)
    ratio = min(laps[slower]) / min(laps[FUSED])
    benchmark.extra_info["ratio"] = ratio
    benchmark.pedantic(passes[FUSED], rounds=8, warmup_rounds=1)
    assert ratio >= bound, f"{slower} takes {ratio:.1f} times as long, expected {bound}"


def test_fused_kernel_needs_less_memory() -> None:
    requests = [
        {"subject": "kernel", "variant": name, "batch": 16, "threads": 1} for name in ("quaternion: reference", FUSED)
    ]
    reference, fused = (run_isolated(request)["peak_mb"] for request in requests)
    assert reference / fused >= 15


@pytest.mark.parametrize("make", [step.TrainingStep, step.inference], ids=["training step", "inference"])
@pytest.mark.parametrize("precision", ["", " bf16"], ids=["fp32", "bf16"])
def test_throughput_is_close_to_attention(make: Any, precision: str) -> None:
    """QSV against the faster form of the matched baseline."""
    laps = interleave({name: make(name + precision, 64) for name in step.EAGER}, 8)
    best = {name: min(times) for name, times in laps.items()}
    assert min(best["attention fused"], best["attention dense"]) / best["qsv"] >= 0.7
