"""GELU by polynomials is GELU: values and slopes over the whole line, in both precisions and both ways."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch

from quatsphere.kernels import numba_cpu

pytestmark = pytest.mark.skipif(not numba_cpu.available(), reason="numba is not installed")


def fused(x: np.ndarray, way: str) -> tuple[np.ndarray, np.ndarray]:
    """gelu and its slope, by this machine's way or by one that is named."""
    from numba import njit

    from quatsphere.kernels import numba_gelu
    from quatsphere.kernels.numba_vector import WIDE, load_wide, many_registers, store

    if way == "_by_pieces" and not many_registers():
        pytest.skip("needs AVX-512")
    both = getattr(numba_gelu, way)

    @njit
    def run(x, value, slope):  # type: ignore[no-untyped-def]
        for at in range(0, len(x), WIDE):
            found = both(load_wide(x, at))
            store(value, at, found[0])
            store(slope, at, found[1])

    out = np.empty_like(x), np.empty_like(x)
    run(x, *out)
    return out


WAYS = [
    ("gelu_with_slope", np.float64, 1e-14, 1e-14),
    ("gelu_with_slope", np.float32, 4e-7, 1e-6),
    ("_by_pieces", np.float32, 1e-7, 7e-7),
    ("_by_eighth_roots", np.float32, 4e-7, 1e-6),
]


@pytest.mark.parametrize(("way", "dtype", "value_error", "slope_error"), WAYS)
def test_equals_the_exact_gelu(way: str, dtype: type, value_error: float, slope_error: float) -> None:
    x = np.concatenate([np.linspace(-12, 12, 100_008), [0.0, -0.0, 6.0, -6.0, 1e4, -1e4, 1e-30, -40.0]]).astype(dtype)
    exact = torch.from_numpy(x).double().requires_grad_()
    expected = torch.nn.functional.gelu(exact)
    (slopes,) = torch.autograd.grad(expected.sum(), exact)
    scale = np.maximum(1.0, np.abs(x))
    value, slope = fused(x, way)
    assert np.max(np.abs(value - expected.detach().numpy()) / scale) < value_error
    assert np.max(np.abs(slope - slopes.numpy())) < slope_error
    assert (value[x == 0] == 0).all()


@pytest.mark.parametrize("way", ["_by_pieces", "_by_eighth_roots"])
def test_nan_stays_nan(way: str) -> None:
    x = np.full(16, np.nan, np.float32)
    assert all(np.isnan(part).all() for part in fused(x, way))


@pytest.mark.parametrize(
    "told", [{"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"}, {"NUMBA_CPU_NAME": "generic"}]
)
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names a processor of this family")
def test_another_processor_is_believed(told: dict[str, str]) -> None:
    """Where Numba is told to compile for a processor without AVX-512, none of its instructions is asked for."""
    program = (
        "import torch; from quatsphere.kernels import feed_forward\n"
        "x, up, down = torch.randn(1, 9, 2, 8), torch.randn(2, 5, 2, 4), torch.randn(2, 2, 5, 4)\n"
        "fused, plain = (feed_forward(x, up, down, backend=name) for name in ('numba_cpu', 'factored'))\n"
        "assert torch.allclose(fused, plain, rtol=0, atol=1e-5 * float(plain.abs().max()))"
    )
    result = subprocess.run([sys.executable, "-c", program], env={**os.environ, **told}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
