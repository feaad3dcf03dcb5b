"""The polynomial GELU equals the exact one: values and slopes, both precisions, both implementations."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch

from quatsphere.kernels import cpu

pytestmark = pytest.mark.skipif(not cpu.available(), reason="numba is not installed")


def fused(x: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """gelu and its slope by the named function; `gelu_with_slope` chooses for this machine."""
    from numba import njit

    from quatsphere.kernels.cpu.loops import elementwise
    from quatsphere.kernels.cpu.loops.jit import has_avx512
    from quatsphere.kernels.cpu.loops.simd import WIDE_LANES, load_wide, store

    if name in ("gelu_by_table", "short_gelu_with_slope") and not has_avx512():
        pytest.skip("needs AVX-512")
    both = getattr(elementwise, name)

    @njit
    def run(x, value, slope):
        for at in range(0, len(x), WIDE_LANES):
            found = both(load_wide(x, at))
            store(value, at, found[0])
            store(slope, at, found[1])

    out = np.empty_like(x), np.empty_like(x)
    run(x, *out)
    return out


IMPLEMENTATIONS = [
    ("gelu_with_slope", np.float64, 1e-14, 1e-14),
    ("gelu_with_slope", np.float32, 4e-7, 1e-6),
    ("gelu_by_table", np.float32, 1e-7, 7e-7),
    ("gelu_by_roots", np.float32, 4e-7, 1e-6),
    ("short_gelu_with_slope", np.float32, 2e-5, 3e-4),
]


@pytest.mark.parametrize(("name", "dtype", "value_error", "slope_error"), IMPLEMENTATIONS)
def test_equals_the_exact_gelu(name: str, dtype: type, value_error: float, slope_error: float) -> None:
    x = np.concatenate([np.linspace(-12, 12, 100_008), [0.0, -0.0, 6.0, -6.0, 1e4, -1e4, 1e-30, -40.0]]).astype(dtype)
    exact = torch.from_numpy(x).double().requires_grad_()
    expected = torch.nn.functional.gelu(exact)
    (slopes,) = torch.autograd.grad(expected.sum(), exact)
    scale = np.maximum(1.0, np.abs(x))
    value, slope = fused(x, name)
    assert np.max(np.abs(value - expected.detach().numpy()) / scale) < value_error
    assert np.max(np.abs(slope - slopes.numpy())) < slope_error
    assert (value[x == 0] == 0).all()


@pytest.mark.parametrize("name", ["gelu_by_table", "gelu_by_roots", "short_gelu_with_slope"])
def test_infinity_saturates(name: str) -> None:
    (positive, *_, negative), slope = fused(np.array([np.inf] * 8 + [-np.inf] * 8, np.float32), name)
    assert positive == np.inf
    assert abs(negative) < 2e-5
    assert np.allclose(slope, [1] * 8 + [0] * 8, rtol=0, atol=3e-4)


@pytest.mark.parametrize("name", ["gelu_by_table", "gelu_by_roots", "short_gelu_with_slope"])
def test_nan_propagates(name: str) -> None:
    x = np.full(16, np.nan, np.float32)
    assert all(np.isnan(part).all() for part in fused(x, name))


@pytest.mark.parametrize(
    "environment", [{"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"}, {"NUMBA_CPU_NAME": "generic"}]
)
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the processor names are those of x86")
def test_compiles_for_another_processor(environment: dict[str, str]) -> None:
    """No AVX-512 instruction is emitted if Numba compiles for a processor without it."""
    program = (
        "import torch; from quatsphere.kernels import feed_forward\n"
        "x, up, down = torch.randn(1, 9, 2, 8), torch.randn(2, 5, 2, 4), torch.randn(2, 2, 5, 4)\n"
        "fused, plain = (feed_forward(x, up, down, backend=name) for name in ('numba_cpu', 'factored'))\n"
        "assert torch.allclose(fused, plain, rtol=0, atol=1e-5 * float(plain.abs().max()))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-2000:]
