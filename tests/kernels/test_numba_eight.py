"""A quaternion product from eight multiplications, forwards and as the sums that weight gradients are made of."""

from __future__ import annotations

import pytest
import torch

from quatsphere.geometry import quaternion as Q
from quatsphere.kernels import numba_cpu

pytestmark = pytest.mark.skipif(not numba_cpu.available(), reason="numba is not installed")


def factors() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    w, x = torch.randn(2, 500, 4, generator=generator, dtype=torch.float64)
    return w, x


def test_eight_multiplications_make_a_product() -> None:
    from quatsphere.kernels.numba_eight import SIGNS, pack

    (w, x), H = factors(), torch.tensor(SIGNS, dtype=torch.float64)
    packed = pack(w[:, None, None])[:, 0, :, 0]  # one weight of one head each
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
    from quatsphere.kernels.numba_eight import WIDE, pack

    packed = pack(torch.randn(3, 5, 2, 4))
    assert packed.shape == (3, 2, 8, WIDE)
    assert not packed[..., 5:].any()
