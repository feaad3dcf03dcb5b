"""Public operations: the coupled quaternion kernel, the dot-product kernel it is compared with, and the operations of a
step around the kernel. Each selects its backend by name and device (`backends.py`).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.kernels import torch_backend
from quatsphere.kernels.backends import select_backend
from quatsphere.kernels.graphs import (
    EdgeList,
    Graph,
    check_rotation,
    edge_list,
    fold_samples,
    per_edge,
    table_edges,
    valid_dim,
)
from quatsphere.kernels.inputs import ONE_WAY, AttentionInputs, Mixing, Network, Rule, ShellPair, working_dtype
from quatsphere.kernels.neighbour_ops import edge_dot
from quatsphere.kernels.ragged import RaggedInputs, weights_of_edges


def quaternion_attention(
    target_field: Float[Tensor, "b t h 4"],
    source_field: Float[Tensor, "b s h 4"],
    features: Float[Tensor, "b s h q 4"],
    neighbours: Graph,
    beta: Float[Tensor, "h"],
    *,
    routing: Rule = "alignment",
    transport: Rule = "sandwich",
    keep: Bool[Tensor, "b ... h"] | None = None,
    keep_scale: float = 1.0,
    target_directions: Float[Tensor, "... t 3"] | None = None,
    source_directions: Float[Tensor, "... s 3"] | None = None,
    valid: Bool[Tensor, "... t k"] | None = None,
    edge_rotation: Float[Tensor, "... 4"] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "b t h q 4"]:
    """z_i = Σ_j C_ij m_ij with C and m from one relative quaternion (eq:attn-weight).

    Fields are unit quaternions, real part first. `neighbours` is (T, k), shared by the batch, or (B, T, k), or CSR
    (row_pointer (T + 1), source (E)). An index -1, or False in `valid`, means no neighbour, before the softmax; a
    target without neighbours gets zero; a source that occurs twice counts twice. `edge_rotation` u has one unit
    quaternion per edge, (T, k, 4), (B, T, k, 4) or (E, 4), or one per edge and head, (..., H, 4):
    r_ij = q_i* ⊗ u_ij ⊗ q_j (geometric scores do not depend on it).

    Where `keep` (B, T, k, H), or (B, E, H) for CSR, is False an edge is dropped after the softmax; the others are
    multiplied by `keep_scale`, 1/(1 - rate) for inverted dropout. `routing` is alignment, absolute, uniform or
    geometric (which needs unit directions); `transport` is sandwich, identity, one_sided, lift (q_j ⊗ x_j ⊗ q_j*) or
    lower (q_i* ⊗ x_j ⊗ q_i); either may be a function on edges instead (`EdgeFunction`; a routing only for k
    neighbours). `backend` is auto, reference, factored, numba_cpu or triton_gpu. The kernel casts its inputs to their
    widest dtype, at least float32; triton_gpu reads narrow features as they are. Plain torch computes gradients of
    gradients and everything inside `torch.func` and forward-mode differentiation.
    """
    same: dict[str, Any] = {"beta": beta, "keep_scale": keep_scale, "backend": backend}
    same |= {"routing": routing, "transport": transport}
    if edge_rotation is not None:
        check_rotation(edge_rotation, neighbours, len(beta))
    if isinstance(neighbours, Tensor) and neighbours.dim() != valid_dim(valid, neighbours):
        neighbours = neighbours.expand(len(features), *neighbours.shape)
        edge_rotation = None if edge_rotation is None else edge_rotation.expand(len(features), *edge_rotation.shape)
    if isinstance(neighbours, Tensor) and neighbours.dim() == 3:
        folded, given = fold_samples(
            (target_field, source_field, features),
            neighbours,
            {"valid": valid, "keep": keep, "edge_rotation": edge_rotation},
            (target_directions, source_directions),
        )
        return quaternion_attention(*folded, **given | same).unflatten(1, target_field.shape[:2]).squeeze(0)
    edges = edge_list(neighbours, valid, target_field.shape[1], source_field.shape[1])
    if edge_rotation is not None and edges is None and isinstance(neighbours, Tensor):
        edges = table_edges(neighbours)
    return attend(
        target_field,
        source_field,
        features,
        neighbours,
        keep=keep,
        target_directions=target_directions,
        source_directions=source_directions,
        edges=edges,
        edge_rotation=edge_rotation,
        **same,
    )


def attend(
    target_field: Tensor,
    source_field: Tensor,
    features: Tensor,
    neighbours: Graph,
    beta: Tensor,
    *,
    routing: Rule,
    transport: Rule,
    keep: Tensor | None = None,
    keep_scale: float = 1.0,
    target_directions: Tensor | None = None,
    source_directions: Tensor | None = None,
    edges: EdgeList | None = None,
    edge_rotation: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Compute `quaternion_attention` of a graph whose indices are known to be in range, such as a model's own.

    `edges` is the sorted edge list of an irregular graph, None for neighbours (T, k).
    """
    kernel = select_backend(backend, str(features.device), routing, transport)
    dtype = working_dtype(target_field, source_field, features, beta)
    with torch.autocast(features.device.type, enabled=False):
        target_field, source_field = target_field.to(dtype), source_field.to(dtype)
        one_way = transport if isinstance(transport, str) and transport in ONE_WAY and edge_rotation is None else None
        if one_way is not None:
            features = torch_backend.LIFT[one_way](source_field, features.to(dtype))
        rest = (
            beta.to(dtype),
            routing,
            transport if one_way is None else "identity",
            keep if edges is None or keep is None else edges.select(keep.flatten(1, -2), 1),
            None if target_directions is None else target_directions.to(dtype),
            None if source_directions is None else source_directions.to(dtype),
            keep_scale,
        )
        features = features.to(dtype) if kernel.widens else features
        if edges is None:
            assert isinstance(neighbours, Tensor)
            aggregated = kernel.attention(AttentionInputs(target_field, source_field, features, neighbours, *rest))
        else:
            u = None if edge_rotation is None else edges.select(per_edge(edge_rotation, neighbours).to(dtype), 0)
            aggregated = kernel.ragged_attention(
                RaggedInputs(target_field, source_field, features, edges, *rest, edge_rotation=u)
            )
        return aggregated if one_way is None else torch_backend.LOWER[one_way](target_field, aggregated)


def attention_weights(
    target_field: Float[Tensor, "b t h 4"],
    source_field: Float[Tensor, "b s h 4"],
    neighbours: Graph,
    beta: Float[Tensor, "h"],
    *,
    routing: str = "alignment",
    edge_rotation: Float[Tensor, "... 4"] | None = None,
) -> Tensor:
    """Weights of the kernel before dropout: (B, T, k, H), zero where no neighbour is, or (B, E, H) for CSR."""
    B, T, H, _ = target_field.shape
    if edge_rotation is not None:
        check_rotation(edge_rotation, neighbours, H)
    if isinstance(neighbours, Tensor) and neighbours.dim() == 3:
        fields = (target_field, source_field, source_field.unsqueeze(3))
        folded, given = fold_samples(
            fields, neighbours, {"valid": None, "keep": None, "edge_rotation": edge_rotation}, (None, None)
        )
        rotation = given["edge_rotation"]
        weights = attention_weights(folded[0], folded[1], folded[3], beta, routing=routing, edge_rotation=rotation)
        return weights.view(*neighbours.shape, H)
    edges = edge_list(neighbours, None, T, source_field.shape[1])
    if edges is None:
        assert isinstance(neighbours, Tensor)
        edges = table_edges(neighbours)
    u = None if edge_rotation is None else edges.select(per_edge(edge_rotation, neighbours), 0)
    features = source_field.unsqueeze(3)
    inputs = RaggedInputs(
        target_field, source_field, features, edges, beta, routing, "identity", None, None, None, edge_rotation=u
    )
    weights = weights_of_edges(inputs)
    if not isinstance(neighbours, Tensor):
        return weights
    if edges.slots is not None:
        weights = weights.new_zeros(B, neighbours.numel(), H).index_copy(1, edges.slots, weights)
    return weights.view(B, *neighbours.shape, H)


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
    keep: Bool[Tensor, "b t k h"] | None = None,
    keep_scale: float = 1.0,
    backend: str = "auto",
) -> Float[Tensor, "b t h c"]:
    """Scaled dot-product attention over the same graph: the kernel of the matched baseline."""
    kernel = select_backend(backend, str(values.device))
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
            raise ConfigError(f"{hidden.shape[1]} rows for {len(target)} targets: pass mixing")
        mixing = Mixing(torch.arange(len(target), device=hidden.device)[:, None], hidden.new_ones(len(target), 1))
    kernel = select_backend(backend, hidden.device.type)
    source_field, target_field = kernel.perturb(hidden, network, ShellPair(bounds, source, target), mixing)
    return source_field, source_field if target is None else target_field


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
