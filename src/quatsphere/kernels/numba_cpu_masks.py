"""Dropout masks on CPUs (Numba): the stream of `randomness`, the same bits, in one pass instead of twenty."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from quatsphere.kernels.numba_cpu import available, flat
from quatsphere.randomness import keep_mask

FLOATS = (torch.float32, torch.float64)


def fused_keep_mask(keys: Tensor, shape: Sequence[int], rate: float, dtype: torch.dtype) -> Tensor:
    """`keep_mask` by compiled loops; the mask of a narrow dtype is a rounded float32 one."""
    from quatsphere.kernels import numba_masks as loops

    wide = dtype if dtype in FLOATS else torch.float32
    out = torch.empty(*keys.shape, *shape, dtype=wide)
    dropped = round(rate * 2**16)
    loops.fill_all(flat(keys), math.prod(shape), dropped - 2**15, 2**16 / (2**16 - dropped), flat(out))
    return out.to(dtype)


def register_masks() -> None:
    """Let `keep_mask` run the compiled loops on CPUs, where Numba is installed."""
    if available():
        keep_mask.register_kernel("cpu", fused_keep_mask)
