"""Dropout masks on CPUs (Numba): the stream of `randomness`, the same bits, in one pass instead of twenty."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from quatsphere.kernels.numba_cpu import available, flat
from quatsphere.randomness import dropped_of_65536, keep_mask


def fused_keep_mask(keys: Tensor, site: int, shape: Sequence[int], rate: float) -> Tensor:
    """`keep_mask` by compiled loops."""
    from quatsphere.kernels import numba_masks as loops

    out = torch.empty(*keys.shape, *shape, dtype=torch.bool)
    loops.fill_all(flat(keys), site, math.prod(shape), dropped_of_65536(rate) - 2**15, flat(out))
    return out


def register_masks() -> None:
    """Let `keep_mask` run the compiled loops on CPUs, where Numba is installed."""
    if available():
        keep_mask.register_kernel("cpu", fused_keep_mask)
