"""The oracle: eq:rel-quat and eq:attn-weight literally, edge by edge. Slow on purpose, never simplified."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quatsphere.geometry.quaternion import multiply, relative, rotate, sandwich
from quatsphere.kernels.problem import Problem

MESSAGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sandwich": sandwich,
    "identity": lambda relative_quaternion, features: features,
    "one_sided": multiply,
}
"""m_ij from r_ij (B, T, k, H, 1, 4) and x_j (B, T, k, H, Q, 4)."""


def alignment_logits(problem: Problem) -> Tensor:
    """Re(r_ij), (B, T, k, H)."""
    return _relative(problem)[..., 0]


def absolute_logits(problem: Problem) -> Tensor:
    """|Re(r_ij)|: antipodal quaternions count as one."""
    return _relative(problem)[..., 0].abs()


def uniform_logits(problem: Problem) -> Tensor:
    """Zero on every edge: softmax gives 1/k."""
    return torch.zeros_like(_relative(problem)[..., 0])


def geometric_logits(problem: Problem) -> Tensor:
    """-‖p_i - q_i p_j q_i*‖² with unit directions p: the neighbour's direction turned by the target's quaternion."""
    assert problem.target_directions is not None
    assert problem.source_directions is not None
    neighbour = problem.source_directions[problem.neighbours][None, :, :, None, :]
    turned = rotate(problem.target_field[:, :, None], neighbour)
    return -((problem.target_directions[None, :, None, None, :] - turned) ** 2).sum(-1)


LOGITS: dict[str, Callable[[Problem], Tensor]] = {
    "alignment": alignment_logits,
    "absolute": absolute_logits,
    "uniform": uniform_logits,
    "geometric": geometric_logits,
}


def quaternion_attention(problem: Problem) -> Tensor:
    """C_ij = softmax_j(β_h logit_ij), m_ij = r_ij ⊗ x_j ⊗ r_ij*, z_i = Σ_j C_ij m_ij -> (B, T, H, Q, 4)."""
    weights = problem.drop(torch.softmax(problem.beta * LOGITS[problem.routing](problem), dim=2))
    neighbour_features = _gather(problem.features, problem.neighbours)
    message = MESSAGES[problem.transport](_relative(problem)[..., None, :], neighbour_features)
    return (weights[..., None, None] * message).sum(dim=2)


def _relative(problem: Problem) -> Tensor:
    """r_ij = q_i* ⊗ q_j on every edge, (B, T, k, H, 4)."""
    return relative(problem.target_field[:, :, None], _gather(problem.source_field, problem.neighbours))


def _gather(x: Tensor, neighbours: Tensor) -> Tensor:
    """x_j for every edge: (B, S, ...) -> (B, T, k, ...)."""
    return x.index_select(1, neighbours.reshape(-1)).unflatten(1, neighbours.shape)
