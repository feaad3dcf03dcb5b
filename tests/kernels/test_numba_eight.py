"""A quaternion product from eight multiplications, forwards and as the sums that weight gradients are made of."""

from __future__ import annotations

import pytest
import torch

from quatsphere.geometry import quaternion as Q
from quatsphere.kernels import numba_cpu, numba_cpu_hamilton

pytestmark = pytest.mark.skipif(not numba_cpu.available(), reason="numba is not installed")


def factors() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    w, x = torch.randn(2, 500, 4, generator=generator, dtype=torch.float64)
    return w, x


def test_eight_multiplications_make_a_product() -> None:
    from quatsphere.kernels.numba_eight import SIGNS

    (w, x), H = factors(), torch.tensor(SIGNS, dtype=torch.float64)
    _, matrices = numba_cpu_hamilton.arguments(1, w[:, None, None], w[:, None, None], False, 1.0)
    packed = torch.from_numpy(matrices.up).view(500, 8, -1)[..., 0]  # one weight of one head each
    multiplied = packed * torch.cat((x @ H, x[:, [0, 2, 3, 1]]), dim=1)
    g, rest = multiplied[:, :4] @ H, multiplied[:, 4:]
    product = torch.cat((rest[:, :1] - g[:, :1], rest[:, 1:] + g[:, 1:]), dim=1)
    assert torch.allclose(product, Q.multiply(w, x), rtol=0, atol=1e-13)


def test_eight_sums_make_a_sum_of_products() -> None:
    from quatsphere.kernels.numba_eight import SIGNS, unpack

    (w, x), H = factors(), torch.tensor(SIGNS, dtype=torch.float64)
    eight = torch.cat(((w @ H) * (x @ H), w[:, [0, 3, 1, 2]] * x[:, [0, 2, 3, 1]]), dim=1)
    assert torch.allclose(unpack(eight.sum(0)[:, None], 1)[0], Q.multiply(w, x).sum(0), rtol=0, atol=1e-11)


def test_weights_are_filled_up_to_whole_vectors_with_zeros() -> None:
    up, down = torch.randn(3, 5, 2, 4), torch.randn(3, 2, 5, 4)
    widths, matrices = numba_cpu_hamilton.arguments(1, up, down, False, 1.0)
    packed = torch.from_numpy(matrices.up).view(3, 2, 8, widths.wide // 4)
    assert not packed[..., 5:].any()
    real = torch.from_numpy(matrices.down).view(3, 4, widths.wide // 4, widths.narrow)
    assert not real[:, :, 5:].any()
    assert not real[..., 8:].any()


def test_sums_over_wide_rows_are_real_matrices_of_the_weights() -> None:
    up, down = torch.randn(3, 5, 2, 4), torch.randn(3, 2, 5, 4)
    widths, matrices = numba_cpu_hamilton.arguments(1, up, down, False, 1.0)
    back = Q.conjugate(up).transpose(1, 2)
    for found, weight in ((matrices.down, down), (matrices.up_back, back)):
        real = torch.from_numpy(found).view(3, 4, widths.wide // 4, widths.narrow)[:, :, :5, :8].unflatten(3, (2, 4))
        assert torch.equal(real.permute(0, 3, 2, 4, 1), Q.left_matrix(weight))
