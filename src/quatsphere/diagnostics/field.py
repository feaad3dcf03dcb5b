"""The quaternion field: how far neighbours are turned against each other, how much of its bound the input uses."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from quatsphere.geometry.quaternion import distance, log, relative
from quatsphere.kernels.neighbour_ops import edge_dot
from quatsphere.nn.measures import head_overlap


def orientation_spread(
    target_field: Float[Tensor, "b t h 4"], source_field: Float[Tensor, "b s h 4"], neighbours: Int[Tensor, "t k"]
) -> float:
    """Mean rotation angle 2 acos|Re r_ij| in radians between a target and its neighbours; Haar: π/2 + 2/π = 2.207."""
    total = 0.0
    for index in neighbours.unbind(1):
        total += float(distance(target_field, source_field.index_select(1, index)).double().mean())
    return total / neighbours.shape[1]


def score_spread(
    target_field: Float[Tensor, "b t h 4"], source_field: Float[Tensor, "b s h 4"], neighbours: Int[Tensor, "t k"]
) -> float:
    """Standard deviation of Re r_ij over a target's neighbours, root mean square over all targets; Haar: 0.5.

    The variance of each neighbourhood is the unbiased one, so that the value does not depend on k.
    """
    if neighbours.shape[1] < 2:
        return 0.0
    scores = edge_dot(target_field.contiguous(), source_field.contiguous(), neighbours).double()
    return float(scores.var(dim=2).mean().sqrt())


def tangent_norms(field: Float[Tensor, "b v h 4"], base: Float[Tensor, "v h 4"]) -> Float[Tensor, "b v h"]:
    """|ω| of q_eff = q_base ⊗ exp(ω) (eq:perturb): how far the input turned each quaternion, as a tangent."""
    return log(relative(base.double().expand_as(field), field.double())).norm(dim=-1)


def head_similarity(base: Float[Tensor, "v h 4"]) -> float | None:
    """Mean ⟨q^h, q^h'⟩² over pairs of heads: 1 where all heads agree up to sign, 0.25 for Haar; none for one head."""
    heads = base.shape[1]
    return float(head_overlap(base.double()).mean()) / (heads * (heads - 1)) if heads > 1 else None
