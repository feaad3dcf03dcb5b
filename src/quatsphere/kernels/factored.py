"""The same kernel with V rotations instead of V*k (plain torch, any device).

    r_ij x_j r_ij* = q_i* (q_j x_j q_j*) q_i      lift every source into one shared frame, lower once per target
    Re(r_ij) = ⟨q_i, q_j⟩                          scores are inner products of 4-vectors
    -‖p_i - q_i p_j q_i*‖² = 2 ⟨q_i* p_i q_i, p_j⟩ - ‖q_i‖⁴ ‖p_j‖² - ‖p_i‖²

So the kernel is attention with 4-dimensional unit queries and keys between a rotation in and a rotation out. The
learned connection is flat (r_ij r_jk = r_ik): there is a map per token, never one per pair. All three hold for any
quaternions, not only unit ones, so the gradients agree with the literal form in every direction of R⁴.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quatsphere.geometry.quaternion import conjugate, multiply, rotate, to_rotation_matrix
from quatsphere.kernels.neighbour_ops import edge_dot, gather_sum
from quatsphere.kernels.problem import Problem


def turn(q: Tensor, x: Tensor) -> Tensor:
    """q ⊗ x ⊗ q* of q (B, V, H, 4) on features (B, V, H, Q, 4), as one small matrix product per token."""
    square = (q * q).sum(-1)[..., None, None]
    return torch.cat((square * x[..., :1], x[..., 1:] @ to_rotation_matrix(q).transpose(-1, -2)), dim=-1)


def _same(q: Tensor, x: Tensor) -> Tensor:
    return x


LIFT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sandwich": turn,
    "identity": _same,
    "one_sided": lambda q, x: multiply(q.unsqueeze(-2), x),
    "lift": turn,
    "lower": _same,
}
"""Vertex frame -> shared frame, with the source's quaternion."""

LOWER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sandwich": lambda q, z: turn(conjugate(q), z),
    "identity": _same,
    "one_sided": lambda q, z: multiply(conjugate(q).unsqueeze(-2), z),
    "lift": _same,
    "lower": lambda q, z: turn(conjugate(q), z),
}
"""Shared frame -> vertex frame, with the target's quaternion."""


def alignment_scores(problem: Problem) -> Tensor:
    """⟨q_i, q_j⟩ = Re(r_ij), (B, T, k, H)."""
    return edge_dot(problem.target_field, problem.source_field, problem.neighbours)


def absolute_scores(problem: Problem) -> Tensor:
    """|⟨q_i, q_j⟩|."""
    return alignment_scores(problem).abs()


def geometric_scores(problem: Problem) -> Tensor:
    """-‖p_i - q_i p_j q_i*‖² as an inner product of (2 q_i* p_i q_i, -‖q_i‖⁴) with (p_j, ‖p_j‖²), less ‖p_i‖²."""
    assert problem.target_directions is not None
    assert problem.source_directions is not None
    q, p_target, p_source = problem.target_field, problem.target_directions, problem.source_directions
    turned = rotate(conjugate(q), p_target[None, :, None])
    target = torch.cat((2 * turned, -(q * q).sum(-1, keepdim=True).square()), dim=-1)
    source = torch.cat((p_source, (p_source * p_source).sum(-1, keepdim=True)), dim=-1)
    source = source[None, :, None].expand(q.shape[0], -1, q.shape[2], 4)
    return edge_dot(target, source, problem.neighbours) - (p_target * p_target).sum(-1)[None, :, None, None]


def uniform_weights(problem: Problem) -> Tensor:
    """1/k on every edge."""
    B, T, H, _ = problem.target_field.shape
    k = problem.neighbours.shape[1]
    return problem.features.new_full((B, T, k, H), 1 / k)


def _softmax_of(scores: Callable[[Problem], Tensor]) -> Callable[[Problem], Tensor]:
    return lambda problem: torch.softmax(problem.beta * scores(problem), dim=2)


SCORES: dict[str, Callable[[Problem], Tensor]] = {
    "alignment": alignment_scores,
    "absolute": absolute_scores,
    "uniform": alignment_scores,
    "geometric": geometric_scores,
}
"""What one looks at; under uniform routing the scores exist but weigh nothing."""

WEIGHTS: dict[str, Callable[[Problem], Tensor]] = {
    "alignment": _softmax_of(alignment_scores),
    "absolute": _softmax_of(absolute_scores),
    "uniform": uniform_weights,
    "geometric": _softmax_of(geometric_scores),
}


def quaternion_attention(problem: Problem) -> Tensor:
    """lower_i(Σ_j C_ij lift_j(x_j)) = Σ_j C_ij r_ij ⊗ x_j ⊗ r_ij* -> (B, T, H, Q, 4)."""
    return aggregate(problem, problem.drop(WEIGHTS[problem.routing](problem)))


def aggregate(problem: Problem, weights: Tensor) -> Tensor:
    """The kernel with given weights (B, T, k, H)."""
    lifted = LIFT[problem.transport](problem.source_field, problem.features)
    aggregated = gather_sum(weights, lifted.flatten(-2), problem.neighbours).unflatten(-1, (-1, 4))
    return LOWER[problem.transport](problem.target_field, aggregated)
