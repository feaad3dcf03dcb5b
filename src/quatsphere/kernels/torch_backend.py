"""Every operation in plain torch: any device and dtype, derivatives of any order, rules given as functions.

The attention kernel needs V rotations instead of V*k:

    r_ij x_j r_ij* = q_i* (q_j x_j q_j*) q_i      lift every source into one shared frame, lower once per target
    Re(r_ij) = ⟨q_i, q_j⟩                          scores are inner products of 4-vectors
    -‖p_i - q_i p_j q_i*‖² = 2 ⟨q_i* p_i q_i, p_j⟩ - ‖q_i‖⁴ ‖p_j‖² - ‖p_i‖²

So the kernel is attention with 4-dimensional unit queries and keys between a rotation in and a rotation out. The
learned connection is flat (r_ij r_jk = r_ik): there is a map per token, never one per pair. All three hold for any
quaternions, not only unit ones, so the gradients agree with the literal form in every direction of R⁴.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quatsphere.geometry import quaternion
from quatsphere.geometry.quaternion import conjugate, multiply, rotate, to_rotation_matrix
from quatsphere.kernels.inputs import ROUTINGS, TRANSPORTS, AttentionInputs
from quatsphere.kernels.neighbour_ops import edge_dot, gather_sum, scatter_sum
from quatsphere.torch_operators import transformed


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


def alignment_scores(inputs: AttentionInputs) -> Tensor:
    """⟨q_i, q_j⟩ = Re(r_ij), (B, T, k, H)."""
    return edge_dot(inputs.target_field, inputs.source_field, inputs.neighbours)


def absolute_scores(inputs: AttentionInputs) -> Tensor:
    """|⟨q_i, q_j⟩|."""
    return alignment_scores(inputs).abs()


def geometric_scores(inputs: AttentionInputs) -> Tensor:
    """-‖p_i - q_i p_j q_i*‖² as an inner product of keys, less ‖p_i‖²."""
    assert inputs.target_directions is not None
    squares = (inputs.target_directions * inputs.target_directions).sum(-1)[None, :, None, None]
    keys = geometric_keys(inputs.target_field, inputs.target_directions, inputs.source_directions)
    return edge_dot(*keys, inputs.neighbours) - squares


def geometric_keys(q: Tensor, p_target: Tensor | None, p_source: Tensor | None) -> tuple[Tensor, Tensor]:
    """(2 q_i* p_i q_i, -‖q_i‖⁴) of the targets (B, T, H, 4) and (p_j, ‖p_j‖²) of the sources (B, S, H, 4)."""
    assert p_target is not None
    assert p_source is not None
    turned = rotate(conjugate(q), p_target[None, :, None])
    target = torch.cat((2 * turned, -(q * q).sum(-1, keepdim=True).square()), dim=-1)
    source = torch.cat((p_source, (p_source * p_source).sum(-1, keepdim=True)), dim=-1)
    return target, source[None, :, None].expand(q.shape[0], -1, q.shape[2], 4)


def uniform_weights(inputs: AttentionInputs) -> Tensor:
    """1/k on every edge."""
    B, T, H, _ = inputs.target_field.shape
    k = inputs.neighbours.shape[1]
    return inputs.features.new_full((B, T, k, H), 1 / k)


def _softmax_of(scores: Callable[[AttentionInputs], Tensor]) -> Callable[[AttentionInputs], Tensor]:
    return lambda inputs: torch.softmax(inputs.beta * scores(inputs), dim=2)


SCORES: dict[str, Callable[[AttentionInputs], Tensor]] = {
    "alignment": alignment_scores,
    "absolute": absolute_scores,
    "uniform": alignment_scores,
    "geometric": geometric_scores,
}
"""Scores for a trace; under uniform routing they are those of `alignment` and do not affect the weights."""

WEIGHTS: dict[str, Callable[[AttentionInputs], Tensor]] = {
    "alignment": _softmax_of(alignment_scores),
    "absolute": _softmax_of(absolute_scores),
    "uniform": uniform_weights,
    "geometric": _softmax_of(geometric_scores),
}


def edge_scores(inputs: AttentionInputs) -> Tensor:
    """Scores (B, T, k, H) of a routing; those of `alignment` for a routing given as a function."""
    return SCORES[inputs.routing if isinstance(inputs.routing, str) else "alignment"](inputs)


def edge_weights(inputs: AttentionInputs) -> Tensor:
    """Weights (B, T, k, H) of a routing, before dropout."""
    routing = inputs.routing
    return WEIGHTS[routing](inputs) if isinstance(routing, str) else inputs.edge_weights(routing)


def quaternion_attention(inputs: AttentionInputs) -> Tensor:
    """lower_i(Σ_j C_ij lift_j(x_j)) = Σ_j C_ij r_ij ⊗ x_j ⊗ r_ij* -> (B, T, H, Q, 4)."""
    return aggregate(inputs, inputs.drop(edge_weights(inputs)))


def aggregate(inputs: AttentionInputs, weights: Tensor) -> Tensor:
    """The kernel with given weights (B, T, k, H)."""
    transport = inputs.transport
    if not isinstance(transport, str):
        return (weights[..., None, None] * inputs.edge_messages(transport)).sum(dim=2)
    lifted = LIFT[transport](inputs.source_field, inputs.features)
    aggregated = gather_sum(weights, lifted.flatten(-2), inputs.neighbours).unflatten(-1, (-1, 4))
    return LOWER[transport](inputs.target_field, aggregated)


def attend(*operands: Any) -> Tensor:
    """`quaternion_attention` with the arguments of the fused operator: all tensors, rules by index, scale."""
    *tensors, keep, target_directions, source_directions, routing, transport, keep_scale = operands
    rules, directions = (ROUTINGS[routing], TRANSPORTS[transport]), (target_directions, source_directions)
    inputs = (*tensors, *rules, keep, *directions, keep_scale)
    return quaternion_attention(AttentionInputs(*inputs))


def dot_attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    neighbours: Tensor,
    keep: Tensor | None,
    keep_scale: float,
    scale: float,
) -> Tensor:
    """Scaled dot-product attention over the k neighbours, for any number of channels."""
    weights = torch.softmax(edge_dot(queries, keys, neighbours) * scale, dim=2)
    return gather_sum(_drop(weights, keep, keep_scale), values, neighbours)


def feed_forward(x: Tensor, up: Tensor, down: Tensor, keep: Tensor | None, keep_scale: float) -> Tensor:
    """down_h gelu(up_h x_h) per head with matrices of quaternions, then dropout."""
    hidden = F.gelu(torch.einsum("bvhc,hmc->bvhm", x, quaternion.block_expand(up)))
    return _drop(torch.einsum("bvhm,hcm->bvhc", hidden, quaternion.block_expand(down)), keep, keep_scale)


def tangent(hidden: Tensor, inner: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The perturbation network after its first product: gelu(inner + hidden_h) weight_h + bias_h per head."""
    activated = F.gelu(hidden + inner.to(hidden.dtype)).unflatten(-1, weight.shape[:2])
    return torch.einsum("bvhi,hio->bvho", activated, weight) + bias


def perturb_by(tangent: Tensor, base: Tensor) -> Tensor:
    """normalize(q_base ⊗ exp(ω)); a product of unit quaternions cannot vanish, so the norm is not checked."""
    exp = quaternion.smooth_exp if transformed() else quaternion.exp
    return quaternion.normalize(quaternion.multiply(base, exp(tangent)), check=False)


def perturb(
    hidden: Tensor,
    inner: Tensor,
    weight: Tensor,
    bias: Tensor,
    bounds: Tensor,
    source: Tensor,
    target: Tensor | None,
    indices: Tensor | None,
    shares: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Perturbed fields of the sources and of the targets; without targets the second is an empty tensor."""

    def field(rows: Tensor, bound: Tensor, base: Tensor) -> Tensor:
        return perturb_by(bound * torch.tanh(tangent(rows, inner, weight, bias).to(base.dtype)), base)

    here = field(hidden, bounds[0], source)
    if target is None or indices is None or shares is None:
        return here, here.new_empty(0)
    return here, field(resample(hidden, indices, shares), bounds[1], target)


def resample(x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Σ_m w_im x_n(i,m): (B, S, d) -> (B, T, d)."""
    return gather_sum(_per_image(weights, x), x.unsqueeze(2), indices).squeeze(2)


def resample_back(gradient: Tensor, indices: Tensor, weights: Tensor, sources: int) -> Tensor:
    """Transpose of `resample`: (B, T, d) -> (B, sources, d)."""
    return scatter_sum(_per_image(weights, gradient), gradient.unsqueeze(2), indices, sources).squeeze(2)


def _per_image(weights: Tensor, x: Tensor) -> Tensor:
    """Expand weights (T, terms) to one head of every image of x: (B, T, terms, 1)."""
    return weights.to(x.dtype)[None, :, :, None].expand(x.shape[0], -1, -1, 1)


def resample_onto(onto: Tensor, gate: Tensor, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """onto + gate * resample(x)."""
    return onto + gate * resample(x, indices, weights)


def step(
    tokens: Tensor,
    first: Tensor,
    inner: Tensor,
    weight: Tensor,
    bias: Tensor,
    bounds: Tensor,
    source: Tensor,
    target: Tensor | None,
    beta: Tensor,
    up: Tensor,
    down: Tensor,
    gate: Tensor | None,
    neighbours: Tensor,
    indices: Tensor | None,
    shares: Tensor | None,
    keep_edges: Tensor | None,
    keep_update: Tensor | None,
    edge_scale: float,
    update_scale: float,
    routing: int,
    transport: int,
) -> Tensor:
    """A whole step of QSV with the arguments of the fused operator, without its intermediate results."""
    here, there = perturb(narrow_product(tokens, first), inner, weight, bias, bounds, source, target, indices, shares)
    features, rules = tokens.unflatten(2, (beta.shape[0], -1, 4)), (routing, transport, edge_scale)
    targets = here if target is None else there
    aggregated = attend(targets, here, features, neighbours, beta, keep_edges, None, None, *rules).flatten(3)
    keep = None if keep_update is None else keep_update.view(aggregated.shape)
    update = feed_forward(aggregated, up, down, keep, update_scale).flatten(2)
    if gate is None or indices is None or shares is None:
        return update + tokens
    return resample_onto(update, gate, tokens, indices, shares)


def narrow_product(tokens: Tensor, first: Tensor) -> Tensor:
    """tokens firstᵀ, multiplied in the dtype of `first` and returned in that of the tokens."""
    return (tokens.to(first.dtype) @ first.T).to(tokens.dtype)


def _drop(x: Tensor, keep: Tensor | None, keep_scale: float) -> Tensor:
    """Apply inverted dropout by a mask."""
    return x if keep is None else x * (keep.to(x.dtype) * keep_scale)
