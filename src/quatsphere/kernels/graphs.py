"""Graphs as the attention kernel accepts them, and the sorted edge list that irregular ones are converted to.

A graph is a table of neighbours (T, k), shared by the batch, or (B, T, k), one per sample, or CSR (row_pointer,
source): the sources of target i are source[row_pointer[i] : row_pointer[i + 1]]. Every index is checked here.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.kernels.caches import GraphCache
from quatsphere.kernels.inputs import check_shape
from quatsphere.torch_operators import transformed

Graph: TypeAlias = Tensor | tuple[Tensor, Tensor]
"""Neighbours (T, k) or (B, T, k), or CSR (row_pointer, source)."""

UNIT_TOLERANCE = 1e-3
"""Largest deviation from 1 of the length of an edge rotation."""


class EdgeList(NamedTuple):
    """Edges sorted by target: those of target i are rows[i]:rows[i + 1]. `slots` gives the position of each edge in the
    caller's order, None if that is the same."""

    rows: Tensor
    source: Tensor
    target: Tensor
    slots: Tensor | None = None

    def select(self, values: Tensor, axis: int) -> Tensor:
        """Values per edge, from the caller's order along `axis` to the sorted one."""
        return values if self.slots is None else values.index_select(axis, self.slots)


def to_csr(edge_index: Tensor, targets: int, sources: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Convert edges (2, E), row 0 the sources and row 1 the targets, to CSR: (row_pointer, source, order).

    Edge e of the result is edge_index[:, order[e]]; edges are sorted by target, then by source. `sources` is the number
    of source nodes, that of the targets unless given. A repeated edge raises ConfigError.
    """
    sources = targets if sources is None else sources
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ConfigError(f"edge_index must have shape (2, E): got {tuple(edge_index.shape)}")
    _check_integers("edge_index", edge_index)
    source, target = edge_index
    _check_range("row 0 of edge_index, the sources,", source, sources)
    _check_range("row 1 of edge_index, the targets,", target, targets)
    key, order = (target * sources + source).sort(stable=True)
    if bool((key[1:] == key[:-1]).any()):
        first = order[1:][key[1:] == key[:-1]][0]
        raise ConfigError(
            f"edge_index repeats {int(source[first])} -> {int(target[first])}; "
            "merge repeated edges, for example with torch.unique(edge_index, dim=1)"
        )
    rows = torch.searchsorted(target.index_select(0, order), torch.arange(targets + 1, device=key.device))
    return rows, source.index_select(0, order), order


def edge_list(graph: Graph, valid: Tensor | None, targets: int, sources: int) -> EdgeList | None:
    """Check a graph of all samples, (T, k) or CSR, and return its edges, or None if every target has k neighbours."""
    if not isinstance(graph, Tensor):
        if valid is not None:
            raise ConfigError("valid belongs to neighbours (T, k) or (B, T, k); leave the edges out of CSR instead")
        rows, source = _csr_pair(graph)
        key, find = (targets, sources), lambda: _check_csr(rows, source, targets, sources)
        return EdgeList(rows, source, _targets.get((source, rows), key, find))
    check_table(graph, valid, targets)
    gaps = _check_range("neighbours", graph, sources, gaps=True)
    if valid is None and not gaps and graph.shape[1] > 0:
        return None
    present = graph >= 0 if valid is None else valid & (graph >= 0)
    slots = present.reshape(-1).nonzero().squeeze(1)
    source, target = graph.reshape(-1)[slots], slots // max(1, graph.shape[1])
    return EdgeList(_row_pointer(present.sum(1)), source, target, slots)


def table_edges(neighbours: Tensor) -> EdgeList:
    """Edges of neighbours (T, k) without gaps."""
    T, k = neighbours.shape
    rows = torch.arange(T + 1, device=neighbours.device)
    return EdgeList(rows * k, neighbours.reshape(-1), rows[:-1].repeat_interleave(k))


def check_table(neighbours: Tensor, valid: Tensor | None, targets: int) -> None:
    """Raise ConfigError unless this is a table (..., T, k) of int64, with a mask of its shape."""
    shape = tuple(neighbours.shape)
    if shape[0] == 2 and len(shape) == 2 and targets != 2:
        raise ConfigError(
            f"neighbours must have shape ({targets}, k): got {shape}, which looks like edge_index (2, E); "
            "convert it with quatsphere.to_csr, or use QuaternionConv"
        )
    if len(shape) not in (2, 3) or shape[-2] != targets:
        raise ConfigError(f"neighbours must have shape ({targets}, k) or (B, {targets}, k): got {shape}")
    _check_integers("neighbours", neighbours)
    if valid is not None:
        check_shape("valid", valid, shape)
        if valid.dtype != torch.bool:
            raise ConfigError(f"valid must be bool: got {valid.dtype}; use valid != 0")


def valid_dim(valid: Tensor | None, neighbours: Tensor) -> int:
    """Number of axes of the graph: a mask (B, T, k) makes shared neighbours (T, k) a graph per sample."""
    return 3 if valid is not None and valid.dim() == 3 else neighbours.dim()


def fold_samples(
    tensors: tuple[Tensor, Tensor, Tensor],
    neighbours: Tensor,
    edges: dict[str, Tensor | None],
    directions: tuple[Tensor | None, Tensor | None],
) -> tuple[list[Any], dict[str, Any]]:
    """Fold a graph per sample (B, T, k) into one graph of B T targets and B S sources, a batch of one.

    Returns the fields, features and neighbours, and the keyword arguments per edge and vertex.
    """
    B, T, S = len(tensors[0]), tensors[0].shape[1], tensors[1].shape[1]
    check_table(neighbours, edges["valid"], T)
    if len(neighbours) != B:
        raise ConfigError(f"neighbours must have shape ({B}, {T}, k): got {tuple(neighbours.shape)}")
    _check_range("neighbours", neighbours, S, gaps=True)
    shift = S * torch.arange(B, device=neighbours.device)[:, None, None]
    graph = torch.where(neighbours < 0, neighbours, neighbours + shift).flatten(0, 1)
    given: dict[str, Any] = {name: None if x is None else x.flatten(0, 1) for name, x in edges.items()}
    if given["keep"] is not None:
        given["keep"] = given["keep"][None]
    for name, x, count in zip(("target_directions", "source_directions"), directions, (T, S), strict=True):
        given[name] = None if x is None else x.expand(B, count, 3).reshape(-1, 3)
    return [*(x.flatten(0, 1)[None] for x in tensors), graph], given


def check_rotation(rotation: Tensor, graph: Any, heads: int) -> None:
    """Raise ConfigError unless these are unit quaternions, one per edge or one per edge and head, of a graph."""
    edges = tuple(graph.shape) if isinstance(graph, Tensor) else tuple(_csr_pair(graph)[1].shape)
    shapes = (*edges, 4), (*edges, heads, 4)
    if tuple(rotation.shape) not in shapes:
        raise ConfigError(f"edge_rotation must have shape {shapes[0]} or {shapes[1]}: got {tuple(rotation.shape)}")
    if not rotation.is_floating_point():
        raise ConfigError(f"edge_rotation must be floating-point: got {rotation.dtype}; call .float()")
    if rotation.numel() == 0 or torch.compiler.is_compiling() or transformed():
        return
    error = (rotation.detach().norm(dim=-1) - 1).abs()
    if not bool((error <= UNIT_TOLERANCE).all()):  # also for NaN
        worst = float(rotation.detach().norm(dim=-1).flatten()[error.flatten().nan_to_num(torch.inf).argmax()])
        raise ConfigError(f"edge_rotation must be unit quaternions: got length {worst:.4g}; divide by the norm")


def per_edge(rotation: Tensor, graph: Graph) -> Tensor:
    """Rotations in the shape of a graph, with or without a head axis -> (E, 1, 4) or (E, H, 4)."""
    axes = graph.dim() if isinstance(graph, Tensor) else 1
    return (rotation.unsqueeze(-2) if rotation.dim() == axes + 1 else rotation).flatten(0, axes - 1)


def _check_csr(rows: Tensor, source: Tensor, targets: int, sources: int) -> Tensor:
    """Raise an error unless the graph has these numbers of targets and sources; return the target of each edge."""
    check_shape("row_pointer", rows, (targets + 1,))
    if source.dim() != 1:
        raise ConfigError(f"source of CSR must have shape (E,): got {tuple(source.shape)}")
    _check_integers("row_pointer", rows)
    _check_integers("source of CSR", source)
    counts = rows[1:] - rows[:-1]
    if int(rows[0]) != 0 or int(rows[-1]) != len(source) or bool((counts < 0).any()):
        raise ConfigError(
            f"row_pointer must grow from 0 to the {len(source)} edges: got {int(rows[0])}..{int(rows[-1])}"
        )
    _check_range("source of CSR", source, sources)
    return torch.arange(targets, device=rows.device).repeat_interleave(counts)


def _csr_pair(graph: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(graph, tuple) or len(graph) != 2 or not all(isinstance(part, Tensor) for part in graph):
        raise ConfigError("a graph is neighbours (T, k), (B, T, k), or CSR as a pair (row_pointer, source)")
    return graph


def _row_pointer(counts: Tensor) -> Tensor:
    return torch.cat((counts.new_zeros(1), counts.cumsum(0)))


def _check_integers(what: str, tensor: Tensor) -> None:
    if tensor.dtype != torch.int64:
        raise ConfigError(f"{what} must be int64: got {tensor.dtype}; call .long()")


_targets, _ranges = GraphCache(), GraphCache()


def _check_range(what: str, indices: Tensor, count: int, gaps: bool = False) -> bool:
    """Raise IndexError for an index outside 0..count - 1, or -1 with `gaps`; return whether there is a -1."""
    if indices.numel() == 0 or torch.compiler.is_compiling() or transformed():
        return False
    least, greatest = _ranges.get((indices,), None, lambda: tuple(map(int, torch.aminmax(indices))))
    if least < (-1 if gaps else 0) or greatest >= count:
        meaning = ", the source vertices" if gaps else ""
        raise IndexError(f"{what} must lie in 0..{count - 1}{meaning}: got {least}..{greatest}")
    return least < 0
