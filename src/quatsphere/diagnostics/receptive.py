"""Back from a prediction to the image: which pixels its logit leans on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

LARGEST = 64
"""Side of the largest map that is kept; larger images are averaged down."""


def pixel_gradients(model: nn.Module, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "y x"]:
    """Σ over images of |∂ logit of the predicted class / ∂ pixel|, channels summed."""
    images = images.detach().clone().requires_grad_(True)
    logits = model(images)
    (gradient,) = torch.autograd.grad(logits.amax(1).sum(), images)
    return gradient.abs().sum((0, 1)).double()


def as_map(total: Float[Tensor, "y x"]) -> Float[Tensor, "y2 x2"]:
    """The gradients as shares that sum to one, at most 64 x 64."""
    rows, columns = (min(side, LARGEST) for side in total.shape)
    small = F.adaptive_avg_pool2d(total[None, None], (rows, columns))[0, 0]
    return small / small.sum().clamp(min=torch.finfo(small.dtype).tiny)


def effective_share(shares: Float[Tensor, "y x"]) -> float:
    """(Σ g)² / (N Σ g²): the share of pixels that would matter if those that do mattered equally; 1 where all do."""
    square = float(shares.square().sum())
    return float(shares.sum()) ** 2 / (shares.numel() * square) if square > 0 else 0.0
