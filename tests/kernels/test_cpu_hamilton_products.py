"""Quaternion products with eight multiplications, and the packed weights."""

from __future__ import annotations

import pytest
import torch

from quatsphere.geometry import quaternion as Q
from quatsphere.kernels import cpu
from quatsphere.kernels.cpu import feed_forward

pytestmark = pytest.mark.skipif(not cpu.available(), reason="numba is not installed")


def factors() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    w, x = torch.randn(2, 500, 4, generator=generator, dtype=torch.float64)
    return w, x


def test_eight_multiplications_give_the_product() -> None:
    from quatsphere.kernels.cpu.loops.hamilton_products import HADAMARD

    (w, x), H = factors(), torch.tensor(HADAMARD, dtype=torch.float64)
    _, packed_weights = feed_forward.feed_forward_arguments(1, w[:, None, None], w[:, None, None], False, 1.0)
    packed = torch.from_numpy(packed_weights.up).view(500, 8, -1)[..., 0]  # one weight of one head each
    multiplied = packed * torch.cat((x @ H, x[:, [0, 2, 3, 1]]), dim=1)
    g, rest = multiplied[:, :4] @ H, multiplied[:, 4:]
    product = torch.cat((rest[:, :1] - g[:, :1], rest[:, 1:] + g[:, 1:]), dim=1)
    assert torch.allclose(product, Q.multiply(w, x), rtol=0, atol=1e-13)


def test_eight_sums_give_the_sum_of_products() -> None:
    from quatsphere.kernels.cpu.loops.hamilton_products import HADAMARD, unpack_products

    (w, x), H = factors(), torch.tensor(HADAMARD, dtype=torch.float64)
    eight = torch.cat(((w @ H) * (x @ H), w[:, [0, 3, 1, 2]] * x[:, [0, 2, 3, 1]]), dim=1)
    assert torch.allclose(unpack_products(eight.sum(0)[:, None], 1)[0], Q.multiply(w, x).sum(0), rtol=0, atol=1e-11)


def test_weights_are_padded_with_zeros() -> None:
    up, down = torch.randn(3, 5, 2, 4), torch.randn(3, 2, 5, 4)
    sizes, packed_weights = feed_forward.feed_forward_arguments(1, up, down, False, 1.0)
    packed = torch.from_numpy(packed_weights.up).view(3, 2, 8, sizes.wide // 4)
    assert not packed[..., 5:].any()
    real = torch.from_numpy(packed_weights.down).view(3, 4, sizes.wide // 4, sizes.narrow)
    assert not real[:, :, 5:].any()
    assert not real[..., 8:].any()


def test_packed_weights_are_the_real_matrices_of_the_quaternions() -> None:
    up, down = torch.randn(3, 5, 2, 4), torch.randn(3, 2, 5, 4)
    sizes, packed_weights = feed_forward.feed_forward_arguments(1, up, down, False, 1.0)
    conjugated = Q.conjugate(up).transpose(1, 2)
    for found, weight in ((packed_weights.down, down), (packed_weights.up_conj, conjugated)):
        real = torch.from_numpy(found).view(3, 4, sizes.wide // 4, sizes.narrow)[:, :, :5, :8].unflatten(3, (2, 4))
        assert torch.equal(real.permute(0, 3, 2, 4, 1), Q.left_matrix(weight))
