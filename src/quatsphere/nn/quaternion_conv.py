"""Quaternion attention as a graph layer that is called like those of PyTorch Geometric."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quatsphere.errors import ConfigError
from quatsphere.kernels import TRANSPORTS, Graph, attention_weights, perturb, quaternion_attention, to_csr
from quatsphere.kernels.backends import FUSED_DTYPES, CpuBackend, select_backend
from quatsphere.kernels.caches import GraphCache
from quatsphere.kernels.cpu.graph_layer import graph_layer
from quatsphere.kernels.graphs import edge_list
from quatsphere.kernels.inputs import check_shape
from quatsphere.nn.extensions import build_routing, build_transport
from quatsphere.nn.field import LearnedBound, Perturbation
from quatsphere.nn.shell_step import to_flat, to_quaternions
from quatsphere.nn.transport import Transport


class QuaternionConv(nn.Module):
    """z_i = Σ_j C_ij r_ij ⊗ W x_j ⊗ r_ij* over any graph, with quaternions computed from the features of the nodes.

    q_i = base ⊗ exp(ε tanh(φ(x_i))): a network φ, bounded by a learned ε, around a base that is 1 unless `forward` is
    given one. No parameter belongs to a node, so a trained layer applies to new graphs. `in_channels` is a pair for
    bipartite graphs, (sources, targets). `out_channels` is per head and a multiple of 4; the output has heads *
    out_channels features or, without `concat`, the mean of the heads. `dropout` acts on the weights; `residual` adds a
    linear map of the target's features. No self-loops are added.
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        *,
        concat: bool = True,
        routing: str = "alignment",
        transport: str = "sandwich",
        dropout: float = 0.0,
        bias: bool = True,
        residual: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if heads < 1 or out_channels < 1 or out_channels % 4:
            raise ConfigError(
                f"out_channels must be a positive multiple of 4 and heads at least 1: got {out_channels}, {heads}"
            )
        if not 0 <= dropout < 1:
            raise ConfigError(f"dropout must lie in [0, 1): got {dropout}")
        if routing == "geometric":
            raise ConfigError("routing 'geometric' needs positions; use quaternion_attention with directions")
        pair = in_channels if isinstance(in_channels, tuple) else (in_channels, in_channels)
        self.in_channels, self.out_channels, self.heads, self.concat = in_channels, out_channels, heads, concat
        self.dropout, self.backend, width = dropout, backend, heads * out_channels
        output = width if concat else out_channels
        self.value = nn.Linear(pair[0], width, bias=False)
        self.skip = nn.Linear(pair[1], output, bias=False) if residual else None
        self.bias = nn.Parameter(torch.zeros(output)) if bias else None
        self.routing = build_routing(routing, heads, out_channels // 4)
        self.transport = build_transport(transport, heads, out_channels // 4)
        self.perturbation = Perturbation(width, heads, zero_init=False, backend=backend)
        self.perturbation.inner = nn.Linear(pair[0], width)
        # targets with features of their own have their own first layer; the rest of the network is shared
        self.target_rows = nn.Linear(pair[1], width, bias=False) if isinstance(in_channels, tuple) else None
        self.bound = LearnedBound()

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        graph: Graph,
        *,
        edge_rotation: Tensor | None = None,
        base: Tensor | tuple[Tensor, Tensor] | None = None,
        return_attention_weights: bool = False,
    ) -> Any:
        """Features (V, C) or (B, V, C), or a pair (sources, targets) of them -> features of the targets.

        `graph` is edge_index (2, E) with sources in row 0 (any tensor with two rows is read so), neighbours (T, k) or
        (B, T, k) with -1 for none, or CSR (row_pointer, source). `edge_rotation` has one unit quaternion per edge, in
        the order of the graph. `base` (V, 4), or a pair, are unit quaternions such as local frames. With
        `return_attention_weights` the result is (output, (graph, weights)): weights before dropout, in the order of the
        graph, (..., H).
        """
        source, target, batched = self._check(x)
        table, order = sort_edges(graph, target.shape[1], source.shape[1])
        if edge_rotation is not None and order is not None:
            edge_rotation = _in_given_order(edge_rotation, table, order)
        keep = self._keep(table, source) if self.training and self.dropout else None
        fields, pair = None, isinstance(x, tuple)
        if not (pair or isinstance(base, tuple)) and edge_rotation is None and self._fuses(source, table):
            out = self._fused(source, table, base, keep)
        else:
            fields = self._fields(source, target if pair else None, base)
            out = quaternion_attention(
                *fields,
                self.transport.prepare(to_quaternions(self.value(source), self.heads)),
                table,
                self.routing.beta,
                routing=self.routing.rule,
                transport=self.transport.rule,
                keep=keep,
                keep_scale=1 / (1 - self.dropout),
                edge_rotation=edge_rotation,
                backend=self.backend,
            )
        out = (to_flat(out) if self.concat else out.mean(2).flatten(-2)).to(source.dtype)
        out = out if self.skip is None else out + self.skip(target)
        out = out if self.bias is None else out + self.bias
        out = out if batched else out[0]
        if not return_attention_weights:
            return out
        fields = fields or self._fields(source, target if pair else None, base)
        rules: dict[str, Any] = {"routing": self.routing.rule, "edge_rotation": edge_rotation}
        weights = attention_weights(*fields, table, self.routing.beta, **rules)
        if order is not None:
            weights = weights.flatten(1, -2)
            weights = torch.empty_like(weights).index_copy(1, order, weights)
        return out, (graph, weights if batched else weights[0])

    def extra_repr(self) -> str:
        """Channels and heads."""
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"

    def _check(self, x: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, bool]:
        """Sources and targets (B, V, C), and whether the caller's have a batch axis."""
        source, target = x if isinstance(x, tuple) else (x, x)
        widths = self.in_channels if isinstance(self.in_channels, tuple) else (self.in_channels, self.in_channels)
        if source.dim() != target.dim() or source.dim() not in (2, 3) or source.shape[:-2] != target.shape[:-2]:
            raise ConfigError(f"x must be (V, C) or (B, V, C): got {tuple(source.shape)} and {tuple(target.shape)}")
        if (source.shape[-1], target.shape[-1]) != widths:
            raise ConfigError(f"x must have {widths} features: got {source.shape[-1]} and {target.shape[-1]}")
        expected = self.value.weight.dtype
        for given in {source.dtype, target.dtype}:
            if given != expected and not (given.is_floating_point and torch.is_autocast_enabled(source.device.type)):
                raise ConfigError(f"x must be {expected} as the layer is: got {given}; call .to({expected})")
        if source.dim() == 3:
            return source, target, True
        return source[None], target[None], False

    def _fields(self, source: Tensor, target: Tensor | None, base: Any) -> tuple[Tensor, Tensor]:
        """Unit quaternions (B, V, H, 4) of the targets, which are the sources if None, and of the sources."""
        bases, first = base if isinstance(base, tuple) else (base, base), self.perturbation.inner
        source_field = target_field = self._field(source, first, bases[0])
        if target is not None:
            target_field = self._field(target, self.target_rows or first, bases[1])
        elif bases[1] is not bases[0]:
            target_field = self._field(source, first, bases[1])
        return target_field, source_field

    def _field(self, x: Tensor, first: nn.Linear, base: Tensor | None) -> Tensor:
        """Unit quaternions (B, V, H, 4) of nodes with features x (B, V, C)."""
        rows, start = F.linear(x, first.weight), self._base(x, base)
        bound = self.bound.value[None]
        return perturb(rows, self.perturbation.network, bound, start.to(rows.dtype), backend=self.backend)[0]

    def _base(self, x: Tensor, base: Tensor | None) -> Tensor:
        """Quaternions (V, H, 4) that are perturbed: 1 unless they are given."""
        if base is not None:
            check_shape("base", base, (x.shape[1], 4))
            return base[:, None].to(x.dtype).expand(-1, self.heads, -1)
        start = x.new_zeros(x.shape[1], self.heads, 4)
        start[..., 0] = 1
        return start

    def _fuses(self, x: Tensor, graph: Graph) -> bool:
        """Return whether one fused function computes the layer: on CPUs, no gaps in the graph, built-in rules."""
        rules = self.routing.rule, self.transport.rule
        weight = self.value.weight
        same = x.dtype == weight.dtype and x.dtype in FUSED_DTYPES and not torch.is_autocast_enabled("cpu")
        if not x.is_cpu or not same or torch.compiler.is_compiling() or rules[1] not in TRANSPORTS:
            return False
        if type(self.transport).prepare is not Transport.prepare or self.out_channels % 2:
            return False
        if isinstance(graph, Tensor) and graph.dim() != 2:
            return False
        regular = edge_list(graph, None, x.shape[1], x.shape[1]) is None
        chosen = select_backend(self.backend, "cpu", *rules)
        return isinstance(chosen, CpuBackend) and (regular or not isinstance(graph, Tensor))

    def _fused(self, x: Tensor, graph: Graph, base: Any, keep: Tensor | None) -> Tensor:
        """The layer before its bias."""
        projections = self.perturbation.inner.weight, self.value.weight
        rules = str(self.routing.rule), str(self.transport.rule)
        bound, start = self.bound.value[None], self._base(x, base)
        scale, beta = 1 / (1 - self.dropout), self.routing.beta
        return graph_layer(x, projections, self.perturbation.network, bound, start, beta, graph, rules, keep, scale)

    def _keep(self, graph: Graph, source: Tensor) -> Tensor:
        """Dropout mask of the edges."""
        shape = tuple(graph.shape) if isinstance(graph, Tensor) else tuple(graph[1].shape)
        samples = () if isinstance(graph, Tensor) and graph.dim() == 3 else (len(source),)
        return torch.rand(*samples, *shape, self.heads, device=source.device) >= self.dropout


_sorted = GraphCache()


def sort_edges(graph: Graph, targets: int, sources: int) -> tuple[Graph, Tensor | None]:
    """(the graph as the kernel accepts it, the index in `graph` of each of its edges or None if the order is the same).

    edge_index (2, E) becomes a table (T, k) if every target has k edges, otherwise CSR, once for a graph that does not
    change. Other graphs stay as they are.
    """
    if not isinstance(graph, Tensor) or graph.dim() != 2 or graph.shape[0] != 2:
        return graph, None
    return _sorted.get((graph,), (targets, sources), lambda: _sort(graph, targets, sources))


def _sort(edge_index: Tensor, targets: int, sources: int) -> tuple[Graph, Tensor]:
    plain = edge_index.as_tensor() if hasattr(edge_index, "as_tensor") else edge_index  # EdgeIndex, PyTorch Geometric
    rows, source, order = to_csr(plain, targets, sources)
    degree = len(source) // max(1, targets)
    regular = degree > 0 and torch.equal(rows, degree * torch.arange(targets + 1, device=rows.device))
    return (source.view(targets, degree) if regular else (rows, source)), order


def _in_given_order(rotation: Tensor, graph: Graph, order: Tensor) -> Tensor:
    """Rotations of the edges of edge_index in the order and shape of the sorted graph."""
    if len(rotation) != len(order):
        raise ConfigError(f"edge_rotation must have {len(order)} rows, one per edge: got {tuple(rotation.shape)}")
    rotation = rotation.index_select(0, order)
    return rotation.unflatten(0, tuple(graph.shape)) if isinstance(graph, Tensor) else rotation
