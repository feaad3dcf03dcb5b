"""The plain form of every fused operator for CPUs: the same arguments, any device, derivatives of any order."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quatsphere.geometry import quaternion
from quatsphere.kernels import factored
from quatsphere.kernels.neighbour_ops import edge_dot, gather_sum, scatter_sum
from quatsphere.kernels.problem import ROUTINGS, TRANSPORTS, Problem
from quatsphere.kernels.transforms import transformed


def attend(
    target_field: Tensor,
    source_field: Tensor,
    features: Tensor,
    neighbours: Tensor,
    beta: Tensor,
    keep: Tensor | None,
    target_directions: Tensor | None,
    source_directions: Tensor | None,
    routing: int,
    transport: int,
    keep_scale: float,
) -> Tensor:
    """`numba_cpu.attend`."""
    rules, directions = (ROUTINGS[routing], TRANSPORTS[transport]), (target_directions, source_directions)
    problem = Problem(target_field, source_field, features, neighbours, beta, *rules, keep, *directions, keep_scale)
    return factored.quaternion_attention(problem)


def dot_attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    neighbours: Tensor,
    keep: Tensor | None,
    keep_scale: float,
    scale: float,
) -> Tensor:
    """`numba_cpu_dot.dot_attend`, for any number of channels."""
    weights = torch.softmax(edge_dot(queries, keys, neighbours) * scale, dim=2)
    return gather_sum(_drop(weights, keep, keep_scale), values, neighbours)


def feed_forward(x: Tensor, up: Tensor, down: Tensor, keep: Tensor | None, keep_scale: float) -> Tensor:
    """`numba_cpu_hamilton.feed_forward`."""
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
    """`numba_cpu_field.perturb`; without a target its field is an empty tensor."""

    def field(rows: Tensor, bound: Tensor, base: Tensor) -> Tensor:
        return perturb_by(bound * torch.tanh(tangent(rows, inner, weight, bias).to(base.dtype)), base)

    here = field(hidden, bounds[0], source)
    if target is None or indices is None or shares is None:
        return here, here.new_empty(0)
    return here, field(resample(hidden, indices, shares), bounds[1], target)


def resample(x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """`numba_cpu_resample.resample`."""
    return gather_sum(_per_image(weights, x), x.unsqueeze(2), indices).squeeze(2)


def resample_back(gradient: Tensor, indices: Tensor, weights: Tensor, sources: int) -> Tensor:
    """`numba_cpu_resample.resample_back`."""
    return scatter_sum(_per_image(weights, gradient), gradient.unsqueeze(2), indices, sources).squeeze(2)


def _per_image(weights: Tensor, x: Tensor) -> Tensor:
    """Weights (T, terms) as those of one head for every image of x: (B, T, terms, 1)."""
    return weights.to(x.dtype)[None, :, :, None].expand(x.shape[0], -1, -1, 1)


def resample_onto(onto: Tensor, gate: Tensor, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """`numba_cpu_resample.resample_onto`."""
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
    """The first result of `numba_cpu_step.step`."""
    here, there = perturb(tokens @ first.T, inner, weight, bias, bounds, source, target, indices, shares)
    features, rules = tokens.unflatten(2, (beta.shape[0], -1, 4)), (routing, transport, edge_scale)
    targets = here if target is None else there
    aggregated = attend(targets, here, features, neighbours, beta, keep_edges, None, None, *rules).flatten(3)
    keep = None if keep_update is None else keep_update.view(aggregated.shape)
    update = feed_forward(aggregated, up, down, keep, update_scale).flatten(2)
    if gate is None or indices is None or shares is None:
        return update + tokens
    return resample_onto(update, gate, tokens, indices, shares)


def _drop(x: Tensor, keep: Tensor | None, keep_scale: float) -> Tensor:
    """Inverted dropout by a mask."""
    return x if keep is None else x * (keep.to(x.dtype) * keep_scale)
