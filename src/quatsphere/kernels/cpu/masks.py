"""Dropout masks on CPUs: the same bits as `randomness.keep_mask`, in one pass instead of twenty."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from quatsphere.kernels.cpu import available
from quatsphere.kernels.cpu.arrays import flat
from quatsphere.randomness import dropped_of_65536, keep_mask


def fused_keep_mask(keys: Tensor, site: int, shape: Sequence[int], rate: float) -> Tensor:
    """`keep_mask` by compiled loops."""
    from quatsphere.kernels.cpu.loops.masks import fill_masks

    out = torch.empty(*keys.shape, *shape, dtype=torch.bool)
    fill_masks(flat(keys), site, math.prod(shape), dropped_of_65536(rate) - 2**15, flat(out))
    return out


def register_masks() -> None:
    """Use the compiled loops for `keep_mask` on CPUs if Numba is installed."""
    if available():
        keep_mask.register_kernel("cpu", fused_keep_mask)
