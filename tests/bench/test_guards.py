"""Guards by ratio: the fused kernel against plain torch and dense masked SDPA, in one process, interleaved.

Not part of the default tests: `pytest -m bench --benchmark-enable tests/bench`.
"""

from __future__ import annotations

from typing import Any

import pytest

from quatsphere.bench import kernel
from quatsphere.bench.timing import interleave
from quatsphere.kernels import backends_on

pytestmark = [pytest.mark.bench, pytest.mark.skipif("numba_cpu" not in backends_on("cpu"), reason="needs numba")]


@pytest.mark.parametrize(
    ("slower", "times"),
    [("quaternion: reference", 60), ("quaternion: factored", 4), ("quaternion: sdpa dense", 2)],
)
def test_the_fused_kernel_stays_ahead(slower: str, times: float, benchmark: Any) -> None:
    """Best of interleaved rounds; the fused one's times go to pytest-benchmark, with the ratio beside them."""
    makers = kernel.contenders()
    passes = {name: makers[name](16) for name in (slower, "quaternion: numba_cpu")}
    laps = interleave(passes, 8, kernel.SELDOM)
    ratio = min(laps[slower]) / min(laps["quaternion: numba_cpu"])
    benchmark.extra_info["ratio"] = ratio
    benchmark.pedantic(passes["quaternion: numba_cpu"], rounds=8, warmup_rounds=1)
    assert ratio >= times, f"{slower} takes {ratio:.1f} times as long, wanted {times}"
