"""GELU by polynomials is GELU: values and slopes over the whole line, in both precisions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quatsphere.kernels import numba_cpu

pytestmark = pytest.mark.skipif(not numba_cpu.available(), reason="numba is not installed")


def fused(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    from numba import njit

    from quatsphere.kernels.numba_gelu import gelu, gelu_with_slope
    from quatsphere.kernels.numba_vector import LANES, load, store

    @njit
    def run(x, alone, value, slope):  # type: ignore[no-untyped-def]
        for at in range(0, len(x), LANES):
            both = gelu_with_slope(load(x, at))
            store(alone, at, gelu(load(x, at)))
            store(value, at, both[0])
            store(slope, at, both[1])

    out = np.empty_like(x), np.empty_like(x), np.empty_like(x)
    run(x, *out)
    return out


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-14)])
def test_equals_the_exact_gelu(dtype: type, tolerance: float) -> None:
    x = np.concatenate([np.linspace(-12, 12, 100_000), [0.0, -0.0, 6.0, -6.0, 1e4, -1e4, 1e-30, -40.0]]).astype(dtype)
    exact = torch.from_numpy(x).double().requires_grad_()
    expected = torch.nn.functional.gelu(exact)
    (slopes,) = torch.autograd.grad(expected.sum(), exact)
    scale = np.maximum(1.0, np.abs(x))
    alone, value, slope = fused(x)
    assert np.array_equal(alone, value)
    assert np.max(np.abs(value - expected.detach().numpy()) / scale) < 2 * tolerance
    assert np.max(np.abs(slope - slopes.numpy())) < tolerance


def test_nan_stays_nan() -> None:
    x = np.full(8, np.nan, np.float32)
    assert all(np.isnan(part).all() for part in fused(x))
