"""Three linear neighbour operations that are each other's derivatives; on CPUs without a tensor with both an edge and a
channel axis.

Shapes: targets (B, T, H, C), sources (B, S, H, C), edge weights (B, T, k, H), neighbours (T, k) int64.

    edge_dot(a, b)[i, s]   = ⟨a_i, b_n(i,s)⟩              one number per edge
    gather_sum(w, b)[i]    = Σ_s w_is b_n(i,s)            sum over the sources of target i
    scatter_sum(w, a)[j]   = Σ_(i,s): n(i,s)=j w_is a_i   sum over the targets of source j

The derivative of each consists of the other two, so they suffice for gradients of any order. Each iterates over the k
slots with `index_select`; accelerators process as many slots at a time as `ROWS` allows. The sum over the targets of a
source iterates over the reversed graph in a fixed order. There are no scatters or atomic additions, so results are
bit-identical for any number of threads. The operations are custom operators of torch, which torch.compile does not
trace. Forward mode and `torch.func` do not support custom operators: there one row per edge is computed instead.

A graph is reversed by a sort. `ReversedTable` keeps the result for as long as the graph does not change, so that an
accelerator sorts when a graph is built and not in every backward pass.
"""

import weakref
from typing import Any

import torch
from torch import Tensor

from quatsphere.geometry.neighbours import reverse_edges, reverse_neighbours
from quatsphere.torch_operators import operator, transformed


class ReversedTable:
    """The edges of a graph grouped by source, in memory that stays in place when the graph changes.

    Valid for the memory and version of `neighbours` at the last `update`; `find` returns no other.
    """

    _by_memory: dict[int, "weakref.ref[ReversedTable]"] = {}

    def __init__(self, neighbours: Tensor, sources: int) -> None:
        self.neighbours, self.sources = neighbours, sources
        self.offsets, self.edges = reverse_edges(neighbours, sources)
        self._mark()

    def update(self) -> None:
        """Reverse the graph again, after `neighbours` was changed in place."""
        offsets, edges = reverse_edges(self.neighbours, self.sources)
        self.offsets.copy_(offsets)
        self.edges.copy_(edges)
        self._mark()

    def _mark(self) -> None:
        self._version = self.neighbours._version
        self._padded: tuple[Tensor, Tensor] | None = None
        self._by_memory[self.neighbours.data_ptr()] = weakref.ref(self)

    def padded(self) -> tuple[Tensor, Tensor]:
        """`reverse_neighbours` of the graph: the host waits for it once per graph."""
        if self._padded is None:
            self._padded = reverse_neighbours(self.neighbours, self.sources)
        return self._padded

    @classmethod
    def find(cls, neighbours: Tensor, sources: int) -> "ReversedTable | None":
        """The reverse of a graph if it was made before and the graph has not changed since."""
        known = cls._by_memory.get(neighbours.data_ptr(), lambda: None)()
        if known is None or neighbours.is_inference():
            return None
        same = known.neighbours.shape == neighbours.shape and known.neighbours.stride() == neighbours.stride()
        same &= known.neighbours.device == neighbours.device and known.sources == sources
        return known if same and known._version == neighbours._version else None


def reversed_edges(neighbours: Tensor, sources: int) -> tuple[Tensor, Tensor]:
    """`reverse_edges` of a graph, sorted only if no `ReversedTable` holds the result."""
    known = ReversedTable.find(neighbours, sources)
    return reverse_edges(neighbours, sources) if known is None else (known.offsets, known.edges)


def edge_dot(target: Tensor, source: Tensor, neighbours: Tensor) -> Tensor:
    """⟨a_i, b_n(i,s)⟩ per edge and head: (B, T, H, C), (B, S, H, C), (T, k) -> (B, T, k, H)."""
    if transformed():
        return (target.unsqueeze(2) * _rows(source, neighbours)).sum(-1)
    return _edge_dot(target, source, neighbours)


def gather_sum(weights: Tensor, source: Tensor, neighbours: Tensor) -> Tensor:
    """Σ_s w_is b_n(i,s): (B, T, k, H), (B, S, H, C), (T, k) -> (B, T, H, C)."""
    if transformed():
        return (weights.unsqueeze(-1) * _rows(source, neighbours)).sum(2)
    return _gather_sum(weights, source, neighbours)


def scatter_sum(weights: Tensor, target: Tensor, neighbours: Tensor, sources: int | torch.SymInt) -> Tensor:
    """Σ over the targets i of each source of w_is a_i: (B, T, k, H), (B, T, H, C), (T, k) -> (B, sources, H, C)."""
    if transformed():
        edges = (weights.unsqueeze(-1) * target.unsqueeze(2)).flatten(1, 2)
        zeros = torch.zeros_like(target[:, :1]).expand(-1, sources, -1, -1)
        return zeros.index_add(1, neighbours.reshape(-1), edges)
    return _scatter_sum(weights, target, neighbours, sources)


ROWS = 2**26
"""Numbers in the rows that an accelerator gathers at a time."""


def _many_at_once(rows: Tensor) -> bool:
    """True on accelerators, where every operation is a launch."""
    return not rows.is_cpu


def _slots(table: Tensor, rows: Tensor) -> list[slice]:
    """Slots of a table (V, k) that are processed together, for rows (B, V, H, C) of each."""
    B, _, H, C = rows.shape
    size = max(1, ROWS // max(1, B * len(table) * H * C)) if _many_at_once(rows) else 1
    return [slice(start, start + size) for start in range(0, table.shape[1], size)]


def _rows(source: Tensor, neighbours: Tensor) -> Tensor:
    """Rows of the sources of every edge: (B, S, H, C) -> (B, T, k, H, C)."""
    return source.index_select(1, neighbours.reshape(-1)).unflatten(1, neighbours.shape)


@operator("edge_dot")
def _edge_dot(target: Tensor, source: Tensor, neighbours: Tensor) -> Tensor:
    """`edge_dot`, slot by slot."""
    B, T, H, _ = target.shape
    out = target.new_empty(B, T, neighbours.shape[1], H)
    for slots in _slots(neighbours, target):
        rows = _rows(source, neighbours[:, slots])
        torch.sum(rows.mul_(target.unsqueeze(2)), dim=-1, out=out[:, :, slots])
    return out


@operator("gather_sum")
def _gather_sum(weights: Tensor, source: Tensor, neighbours: Tensor) -> Tensor:
    """`gather_sum`, slot by slot."""
    B, T, _, H = weights.shape
    if _many_at_once(source):
        return _weighted_sum(weights, source, neighbours)
    out = source.new_zeros(B, T, H, source.shape[-1])
    for slot, index in enumerate(neighbours.unbind(1)):
        out.addcmul_(weights[:, :, slot].unsqueeze(-1), source.index_select(1, index))
    return out


def _weighted_sum(weights: Tensor, source: Tensor, table: Tensor) -> Tensor:
    """`gather_sum` with many slots at a time."""
    parts = (
        _rows(source, table[:, slots]).mul_(weights[:, :, slots].unsqueeze(-1)).sum(2)
        for slots in _slots(table, source)
    )
    out = next(parts, None)
    if out is None:
        return source.new_zeros(len(source), len(table), *source.shape[2:])
    for part in parts:
        out += part
    return out


@operator("scatter_sum")
def _scatter_sum(weights: Tensor, target: Tensor, neighbours: Tensor, sources: int) -> Tensor:
    """`scatter_sum`, edge by edge of each source."""
    B, _, _, H = weights.shape
    known = ReversedTable.find(neighbours, sources)
    edges, targets = reverse_neighbours(neighbours, sources) if known is None else known.padded()
    flat = weights.reshape(B, -1, H).index_select(1, edges.clamp(min=0).flatten()).unflatten(1, edges.shape)
    flat = flat * (edges >= 0).to(flat.dtype)[..., None]
    if _many_at_once(target):
        return _weighted_sum(flat, target, targets)
    out = target.new_zeros(B, sources, H, target.shape[-1])
    for slot, index in enumerate(targets.unbind(1)):
        out.addcmul_(flat[:, :, slot].unsqueeze(-1), target.index_select(1, index))
    return out


@_edge_dot.register_fake
def _(target: Tensor, source: Tensor, neighbours: Tensor) -> Tensor:
    B, T, H, _ = target.shape
    return target.new_empty(B, T, neighbours.shape[1], H)


@_gather_sum.register_fake
def _(weights: Tensor, source: Tensor, neighbours: Tensor) -> Tensor:
    B, T, _, H = weights.shape
    return source.new_empty(B, T, H, source.shape[-1])


@_scatter_sum.register_fake
def _(weights: Tensor, target: Tensor, neighbours: Tensor, sources: int | torch.SymInt) -> Tensor:
    return target.new_empty(target.shape[0], sources, *target.shape[2:])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])


def _edge_dot_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    target, source, neighbours = ctx.saved_tensors
    need_target, need_source, _ = ctx.needs_input_grad
    return (
        gather_sum(grad, source, neighbours) if need_target else None,
        scatter_sum(grad, target, neighbours, source.shape[1]) if need_source else None,
        None,
    )


def _gather_sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    weights, source, neighbours = ctx.saved_tensors
    need_weights, need_source, _ = ctx.needs_input_grad
    return (
        edge_dot(grad, source, neighbours) if need_weights else None,
        scatter_sum(weights, grad, neighbours, source.shape[1]) if need_source else None,
        None,
    )


def _scatter_sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    weights, target, neighbours = ctx.saved_tensors
    need_weights, need_target, *_ = ctx.needs_input_grad
    return (
        edge_dot(target, grad, neighbours) if need_weights else None,
        gather_sum(weights, grad, neighbours) if need_target else None,
        None,
        None,
    )


_edge_dot.register_autograd(_edge_dot_backward, setup_context=_save)
_gather_sum.register_autograd(_gather_sum_backward, setup_context=_save)
_scatter_sum.register_autograd(_scatter_sum_backward, setup_context=_save)
