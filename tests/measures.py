"""How far two tensors are apart."""

from __future__ import annotations

import torch
from torch import Tensor


def relative_error(value: Tensor, expected: Tensor) -> float:
    """max |difference| over max |expected|: the measure of every backend comparison."""
    scale = expected.abs().max().clamp(min=torch.finfo(expected.dtype).tiny)
    return float((value.to(expected.dtype) - expected).abs().max() / scale)
