"""Attention over a sorted edge list in plain torch: targets with any number of neighbours, and rotations of edges.

With the rotation u_ij of an edge, r_ij = q_i* ⊗ u_ij ⊗ q_j, and the kernel still factors:

    r_ij x_j r_ij* = q_i* (u_ij (q_j x_j q_j*) u_ij*) q_i       Re(r_ij) = ⟨q_i, u_ij q_j⟩ = Σ_c u_ij,c ⟨e_c* q_i, q_j⟩

The sum over the neighbours is one weighted sum per entry of u_ij's 4 x 4 matrix, with weights w_ij times that entry. So
there is no tensor with both an edge and a channel axis. Two operations on pairs (i, j) suffice for derivatives of every
order:

    pair_dot(a, b, i, j)[e]   = ⟨a_i(e), b_j(e)⟩
    pair_sum(w, b, j, i)[n]   = Σ_e: i(e)=n w_e b_j(e)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.geometry.quaternion import conjugate, left_matrix, multiply, to_rotation_matrix
from quatsphere.kernels.graphs import EdgeList
from quatsphere.kernels.inputs import Rule, check_inputs, check_shape
from quatsphere.kernels.torch_backend import LIFT, LOWER, geometric_keys
from quatsphere.torch_operators import operator, transformed

BLOCK = 2**20
"""Largest number of elements of an intermediate with one row per edge."""


@dataclass(frozen=True)
class RaggedInputs:
    """One application of the kernel to a sorted edge list; as `AttentionInputs`, but keep is (B, E, H).

    edge_rotation (E, 1, 4), or (E, H, 4) per head, unit quaternions, or None. A routing is a name; a transport may be
    an `EdgeFunction`, which is given every edge as a target with one neighbour and u_ij ⊗ q_j as the source's
    quaternion.
    """

    target_field: Tensor
    source_field: Tensor
    features: Tensor
    graph: EdgeList
    beta: Tensor
    routing: Rule
    transport: Rule
    keep: Tensor | None
    target_directions: Tensor | None
    source_directions: Tensor | None
    keep_scale: float = 1.0
    edge_rotation: Tensor | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.routing, str):
            raise ConfigError("a routing given as a function needs k neighbours per target and no edge rotations")
        check_inputs(self, tuple(self.graph.source.shape))

    def drop(self, weights: Tensor) -> Tensor:
        """Apply the dropout mask to the weights."""
        return weights if self.keep is None else weights * (self.keep.to(weights.dtype) * self.keep_scale)

    def messages(self) -> Tensor:
        """Messages (B, E, H, Q, 4) of a transport given as a function."""
        assert not isinstance(self.transport, str)
        target, source = self.target_field[:, self.graph.target], self.source_field[:, self.graph.source]
        if self.edge_rotation is not None:
            source = multiply(self.edge_rotation, source)
        features = self.features[:, self.graph.source].unsqueeze(2)
        messages = self.transport(target.unsqueeze(2), source.unsqueeze(2), features)
        check_shape("the messages of a transport function", messages, tuple(features.shape))
        return messages.squeeze(2)


def attention_over_edges(inputs: RaggedInputs) -> Tensor:
    """Σ_j C_ij m_ij over the edges of each target -> (B, T, H, Q, 4); zero without edges."""
    return aggregate_edges(inputs, inputs.drop(weights_of_edges(inputs)))


def weights_of_edges(inputs: RaggedInputs) -> Tensor:
    """Weights (B, E, H) before dropout."""
    rows, _, target, _ = inputs.graph
    B, T, H, _ = inputs.target_field.shape
    if inputs.routing == "uniform":
        share = 1 / (rows[1:] - rows[:-1]).to(inputs.features.dtype)
        return share.index_select(0, target)[None, :, None].expand(B, -1, H)
    scores = scores_of_edges(inputs)
    return segment_softmax(inputs.beta * (scores.abs() if inputs.routing == "absolute" else scores), target, T)


def scores_of_edges(inputs: RaggedInputs) -> Tensor:
    """Re(r_ij), or the geometric score, which does not depend on the rotation of the edge: (B, E, H)."""
    _, source, target, _ = inputs.graph
    q, u = inputs.target_field, inputs.edge_rotation
    if inputs.routing == "geometric":
        keys = geometric_keys(q, inputs.target_directions, inputs.source_directions)
        assert inputs.target_directions is not None
        squares = inputs.target_directions.square().sum(-1)
        return pair_dot(*keys, target, source) - squares.index_select(0, target)[None, :, None]
    if u is None:
        return pair_dot(q, inputs.source_field, target, source)
    turned = (multiply(conjugate(unit), q) for unit in torch.eye(4, dtype=q.dtype, device=q.device))
    parts = [pair_dot(side, inputs.source_field, target, source) for side in turned]
    return (torch.stack(parts, dim=-1) * u).sum(-1)


def segment_softmax(logits: Tensor, target: Tensor, targets: int) -> Tensor:
    """Softmax of logits (B, E, H) over the edges of each target."""
    index = target[None, :, None].expand_as(logits)
    empty = logits.new_full((1, 1, 1), -torch.inf).expand(logits.shape[0], targets, logits.shape[2])
    top = empty.scatter_reduce(1, index, logits.detach(), "amax")
    weights = (logits - top.gather(1, index)).exp()
    total = torch.zeros_like(top).scatter_add(1, index, weights)
    return weights / total.gather(1, index)


def aggregate_edges(inputs: RaggedInputs, weights: Tensor) -> Tensor:
    """The kernel with given weights (B, E, H)."""
    _, source, target, _ = inputs.graph
    T, transport, u = inputs.target_field.shape[1], inputs.transport, inputs.edge_rotation
    if not isinstance(transport, str):
        weighted = weights[..., None, None] * inputs.messages()
        return weighted.new_zeros(weighted.shape[0], T, *weighted.shape[2:]).index_add(1, target, weighted)
    lifted = LIFT[transport](inputs.source_field, inputs.features)
    if u is None or transport == "identity":
        summed = pair_sum(weights, lifted.flatten(-2), source, target, T).unflatten(-1, (-1, 4))
    else:
        entries = _matrix_entries(u, transport)
        rows: list[Tensor] = []
        for row in entries:
            sums = [pair_sum(weights * entry, lifted[..., b], source, target, T) for b, entry in row.items()]
            rows.append(torch.stack(sums).sum(0))
        summed = torch.stack(rows, dim=-1)
    return LOWER[transport](inputs.target_field, summed)


def _matrix_entries(u: Tensor, transport: str) -> list[dict[int, Tensor]]:
    """Entries {column: (E, heads)} of each row of the 4 x 4 matrix by which u_ij acts in the shared frame."""
    if transport == "one_sided":
        matrix = left_matrix(u)
        return [{b: matrix[..., a, b] for b in range(4)} for a in range(4)]
    matrix = to_rotation_matrix(u)
    return [{0: (u * u).sum(-1)}, *({b + 1: matrix[..., a, b] for b in range(3)} for a in range(3))]


def pair_dot(a: Tensor, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """⟨a_i(e), b_j(e)⟩: (B, T, H, C), (B, S, H, C), (E,), (E,) -> (B, E, H)."""
    if transformed():
        return (a.index_select(1, i) * b.index_select(1, j)).sum(-1)
    return pair_dot_operator(a, b, i, j)


def pair_sum(weights: Tensor, b: Tensor, j: Tensor, i: Tensor, count: int | torch.SymInt) -> Tensor:
    """Σ over the pairs with i(e) = n of w_e b_j(e): (B, E, H), (B, S, H, C), (E,), (E,) -> (B, count, H, C)."""
    if transformed():
        edges = weights.unsqueeze(-1) * b.index_select(1, j)
        zeros = torch.zeros_like(edges.sum(1, keepdim=True)).expand(-1, count, -1, -1)
        return zeros.index_add(1, i, edges)
    return pair_sum_operator(weights, b, j, i, count)


def _blocks(like: Tensor, edges: int) -> Iterator[slice]:
    """Slices of the edges whose rows (B, ., H, C) have at most BLOCK elements."""
    B, _, H, C = like.shape
    step = max(1, BLOCK // max(1, B * H * C))
    return (slice(start, start + step) for start in range(0, edges, step))


@operator("pair_dot")
def pair_dot_operator(a: Tensor, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """`pair_dot`, block by block."""
    out = a.new_empty(a.shape[0], len(i), a.shape[2])
    for part in _blocks(a, len(i)):
        torch.sum(b.index_select(1, j[part]).mul_(a.index_select(1, i[part])), dim=-1, out=out[:, part])
    return out


@operator("pair_sum")
def pair_sum_operator(weights: Tensor, b: Tensor, j: Tensor, i: Tensor, count: int) -> Tensor:
    """`pair_sum`, block by block; the samples are rows of one table, for which index_add_ is fast."""
    B, _, H, C = b.shape
    out = b.new_zeros(B * count, H * C)
    first = torch.arange(B, device=b.device)[:, None] * count
    for part in _blocks(b, len(i)):
        edges = b.index_select(1, j[part]).mul_(weights[:, part].unsqueeze(-1))
        out.index_add_(0, (first + i[part]).reshape(-1), edges.reshape(-1, H * C))
    return out.view(B, count, H, C)


@pair_dot_operator.register_fake
def _(a: Tensor, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], i.shape[0], a.shape[2])


@pair_sum_operator.register_fake
def _(weights: Tensor, b: Tensor, j: Tensor, i: Tensor, count: int | torch.SymInt) -> Tensor:
    return b.new_empty(b.shape[0], count, *b.shape[2:])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])


def _pair_dot_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    a, b, i, j = ctx.saved_tensors
    need_a, need_b, *_ = ctx.needs_input_grad
    return (
        pair_sum(grad, b, j, i, a.shape[1]) if need_a else None,
        pair_sum(grad, a, i, j, b.shape[1]) if need_b else None,
        None,
        None,
    )


def _pair_sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    weights, b, j, i = ctx.saved_tensors
    need_weights, need_b, *_ = ctx.needs_input_grad
    return (
        pair_dot(grad, b, i, j) if need_weights else None,
        pair_sum(weights, grad, i, j, b.shape[1]) if need_b else None,
        None,
        None,
        None,
    )


pair_dot_operator.register_autograd(_pair_dot_backward, setup_context=_save)
pair_sum_operator.register_autograd(_pair_sum_backward, setup_context=_save)
