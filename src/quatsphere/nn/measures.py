"""Measures of routing weights and quaternion fields, for the training log, losses and diagnostics."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from quatsphere.geometry.quaternion import distance


def routing_entropy(weights: Float[Tensor, "b t k h"]) -> float:
    """Mean entropy of the weights (B, T, k, H) over the k neighbours, divided by its maximum log k."""
    k = weights.shape[2]
    return float(torch.special.entr(weights.double()).sum(2).mean() / math.log(k)) if k > 1 else 1.0


def routing_peak(weights: Float[Tensor, "b t k h"]) -> float:
    """Mean largest weight as a multiple of the uniform value 1/k."""
    return float(weights.double().amax(2).mean() * weights.shape[2])


def head_overlap(base: Float[Tensor, "v h 4"]) -> Float[Tensor, "v"]:
    """Σ_{h≠h'} ⟨q^h, q^h'⟩² over ordered pairs of heads, for each vertex.

    Over all pairs that is ‖Q Qᵀ‖² = ‖Qᵀ Q‖² for the H x 4 matrix Q of a vertex: 4 x 4 products instead of H x H.
    """
    everyone = (base.transpose(-1, -2) @ base).square().sum((-1, -2))
    return everyone - base.square().sum(-1).square().sum(-1)


def field_motion(fields: Sequence[Tensor], previous: Sequence[Tensor] | None) -> list[float]:
    """Mean rotation angle in radians that each shell's base quaternions moved since `previous`."""
    if previous is None:
        return []
    return [float(distance(q.detach(), old).mean()) for q, old in zip(fields, previous, strict=True)]
