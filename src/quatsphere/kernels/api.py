"""Public operations: the coupled quaternion kernel, the dot-product kernel it is compared with, and the operations of a
step around the kernel. Each selects its backend by name and device (`backends.py`).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.kernels import torch_backend
from quatsphere.kernels.backends import TORCH, select_backend
from quatsphere.kernels.inputs import ONE_WAY, AttentionInputs, Mixing, Network, Rule, ShellPair, working_dtype
from quatsphere.kernels.neighbour_ops import edge_dot

Keep = Bool[Tensor, "b t k h"]


def quaternion_attention(
    target_field: Float[Tensor, "b t h 4"],
    source_field: Float[Tensor, "b s h 4"],
    features: Float[Tensor, "b s h q 4"],
    neighbours: Int[Tensor, "t k"],
    beta: Float[Tensor, "h"],
    *,
    routing: Rule = "alignment",
    transport: Rule = "sandwich",
    keep: Keep | None = None,
    keep_scale: float = 1.0,
    target_directions: Float[Tensor, "t 3"] | None = None,
    source_directions: Float[Tensor, "s 3"] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "b t h q 4"]:
    """z_i = Σ_j C_ij m_ij with C and m from one relative quaternion (eq:attn-weight).

    Fields are unit quaternions, real part first. Where `keep` is False an edge is dropped after the softmax; the others
    are multiplied by `keep_scale`, 1/(1 - rate) for inverted dropout. `routing` is alignment, absolute, uniform or
    geometric (which needs unit directions); `transport` is sandwich, identity, one_sided, lift (q_j ⊗ x_j ⊗ q_j*) or
    lower (q_i* ⊗ x_j ⊗ q_i); either may be a function on edges instead (`EdgeFunction`). `backend` is auto, reference,
    factored, numba_cpu or triton_gpu. The kernel casts its inputs to their widest dtype, at least float32; triton_gpu
    reads narrow features as they are. Plain torch computes gradients of gradients and everything inside `torch.func`
    and forward-mode differentiation.
    """
    kernel = select_backend(backend, str(features.device), routing, transport)
    dtype = working_dtype(target_field, source_field, features, beta)
    with torch.autocast(features.device.type, enabled=False):
        target_field, source_field = target_field.to(dtype), source_field.to(dtype)
        one_way = transport if isinstance(transport, str) and transport in ONE_WAY else None
        if one_way is not None:
            features = torch_backend.LIFT[one_way](source_field, features.to(dtype))
        inputs = AttentionInputs(
            target_field,
            source_field,
            features.to(dtype) if kernel.widens else features,
            neighbours,
            beta.to(dtype),
            routing,
            transport if one_way is None else "identity",
            keep,
            None if target_directions is None else target_directions.to(dtype),
            None if source_directions is None else source_directions.to(dtype),
            keep_scale,
        )
        aggregated = kernel.attention(inputs)
        return aggregated if one_way is None else torch_backend.LOWER[one_way](target_field, aggregated)


def routing_weights(inputs: AttentionInputs) -> tuple[Float[Tensor, "b t k h"], Float[Tensor, "b t k h"]]:
    """(scores, weights) of the kernel, before dropout: for traces."""
    return torch_backend.edge_scores(inputs), torch_backend.edge_weights(inputs)


def dot_product_weights(
    queries: Float[Tensor, "b t h c"], keys: Float[Tensor, "b s h c"], neighbours: Int[Tensor, "t k"]
) -> Float[Tensor, "b t k h"]:
    """softmax_j(⟨query_i, key_j⟩ / √C) over the k neighbours."""
    return torch.softmax(edge_dot(queries, keys, neighbours) / math.sqrt(queries.shape[-1]), dim=2)


def dot_product_attention(
    queries: Float[Tensor, "b t h c"],
    keys: Float[Tensor, "b s h c"],
    values: Float[Tensor, "b s h c"],
    neighbours: Int[Tensor, "t k"],
    *,
    keep: Keep | None = None,
    keep_scale: float = 1.0,
    backend: str = "auto",
) -> Float[Tensor, "b t h c"]:
    """Scaled dot-product attention over the same graph: the kernel of the matched baseline."""
    kernel = select_backend(backend, "cpu") if values.is_cpu else TORCH
    dtype = working_dtype(queries, keys, values)
    with torch.autocast(values.device.type, enabled=False):
        return kernel.dot_attention(queries.to(dtype), keys.to(dtype), values.to(dtype), neighbours, keep, keep_scale)


def feed_forward(
    x: Float[Tensor, "b v h c"],
    up: Float[Tensor, "h wide q 4"],
    down: Float[Tensor, "h q wide 4"],
    *,
    keep: Bool[Tensor, "b v h c"] | None = None,
    keep_scale: float = 1.0,
    backend: str = "auto",
) -> Float[Tensor, "b v h c"]:
    """down_h gelu(up_h x_h) per head with matrices of quaternions (eq:hamilton), c = 4 q and the exact GELU on every
    component; then dropout by the mask `keep`, whose survivors are multiplied by `keep_scale`."""
    return select_backend(backend, x.device.type).feed_forward(x, up, down, keep, keep_scale)


def tangent(hidden: Float[Tensor, "b v d"], network: Network) -> Float[Tensor, "b v h 3"]:
    """The rest of the perturbation network: gelu(inner + hidden_h) weight_h + bias_h per head."""
    return torch_backend.tangent(hidden, *network)


def perturb(
    hidden: Float[Tensor, "b s d"],
    network: Network,
    bounds: Float[Tensor, " shells"],
    source: Float[Tensor, "s h 4"],
    target: Float[Tensor, "t h 4"] | None = None,
    mixing: Mixing | None = None,
    *,
    backend: str = "auto",
) -> tuple[Float[Tensor, "b s h 4"], Float[Tensor, "b t h 4"]]:
    """q_eff = normalize(q_base ⊗ exp(ε tanh(tangent))) (eqs perturb-omega, perturb) of the sources and of the targets.

    Rows of hidden for the targets are mixed from those of the sources (`interp` commutes with the network's first
    product) or, between shells of equal size, equal to them. Without targets both results are the sources' field. In
    the precision of the base.
    """
    if target is not None and mixing is None:
        if len(target) != hidden.shape[1]:
            raise ConfigError(f"{hidden.shape[1]} rows for {len(target)} targets: say how they are mixed")
        mixing = Mixing(torch.arange(len(target), device=hidden.device)[:, None], hidden.new_ones(len(target), 1))
    kernel = select_backend(backend, hidden.device.type)
    source_field, target_field = kernel.perturb(hidden, network, ShellPair(bounds, source, target), mixing)
    return source_field, source_field if target is None else target_field


def perturb_by(tangent: Float[Tensor, "b v h 3"], base: Float[Tensor, "v h 4"]) -> Float[Tensor, "b v h 4"]:
    """normalize(q_base ⊗ exp(ω))."""
    return torch_backend.perturb_by(tangent, base)


def resample_vertices(
    x: Float[Tensor, "b s d"],
    indices: Int[Tensor, "t terms"],
    weights: Float[Tensor, "t terms"],
    *,
    backend: str = "auto",
) -> Float[Tensor, "b t d"]:
    """`interp` of eq:residual: Σ_m w_im x_n(i,m) along the vertex axis; the weights are constants."""
    return select_backend(backend, x.device.type).resample(x, Mixing(indices, weights))


def add_resampled(
    update: Float[Tensor, "b t d"],
    gate: Float[Tensor, ""],
    x: Float[Tensor, "b s d"],
    indices: Int[Tensor, "t terms"],
    weights: Float[Tensor, "t terms"],
    *,
    backend: str = "auto",
) -> Float[Tensor, "b t d"]:
    """The gated residual of eq:residual: update + gate * interp(x)."""
    return select_backend(backend, x.device.type).add_resampled(update, gate, x, Mixing(indices, weights))
