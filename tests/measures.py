"""Distance of two tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def relative_error(value: Tensor, expected: Tensor) -> float:
    """max |value - expected| / max |expected|, used for all comparisons of backends."""
    scale = expected.abs().max().clamp(min=torch.finfo(expected.dtype).tiny)
    return float((value.to(expected.dtype) - expected).abs().max() / scale)
