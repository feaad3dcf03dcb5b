"""How the weights C_ij are spread over a target's neighbours."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

HISTOGRAM_WIDTH, HISTOGRAM_BINS = 0.05, 80


def histogram_edges() -> list[float]:
    """Edges of the bins of weight times k: 0, 0.05, ..., 4; what lies above counts into the last bin."""
    return [round(HISTOGRAM_WIDTH * i, 6) for i in range(HISTOGRAM_BINS + 1)]


def weight_histogram(weights: Float[Tensor, "b t k h"]) -> Float[Tensor, "bins"]:
    """Share of the weights (B, T, k, H), as multiples of the uniform 1/k, in each bin; uniform is all at 1."""
    multiples = (weights.double() * weights.shape[2]).flatten()
    bins = (multiples / HISTOGRAM_WIDTH + 1e-6).long().clamp(max=HISTOGRAM_BINS - 1)
    return torch.bincount(bins, minlength=HISTOGRAM_BINS).double() / len(multiples)
