"""QuaternionConv beside the attention layers of PyTorch Geometric and torch's masked attention, on the same graphs.

Every contender maps 64 features to 4 heads of 16, with its projections; a pass is forward and backward with gradients
of the input and all parameters. A batch is B feature sets on one graph: QuaternionConv takes (B, V, C); the layers of
PyTorch Geometric take B copies of the graph as one block-diagonal graph, which is built beforehand.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quatsphere.bench.timing import Pass
from quatsphere.errors import ConfigError
from quatsphere.geometry.neighbours import knn
from quatsphere.nn.quaternion_conv import QuaternionConv

CHANNELS, HEADS, WIDTH = 64, 4, 16
DENSE_LIMIT = 4096
"""Largest number of nodes for which the dense contender runs."""
WARM_UP_NODES = 8
QUATERNION, GATV2, TRANSFORMER, DENSE = CONTENDERS = (
    "QuaternionConv",
    "GATv2Conv",
    "TransformerConv",
    "SDPA, dense mask",
)


class GraphCase(NamedTuple):
    """One graph and batch size. A skewed graph has degrees from a Pareto distribution with the same mean."""

    nodes: int
    degree: int
    batch: int
    skewed: bool = False

    @property
    def contenders(self) -> list[str]:
        """Contenders that can run this case."""
        return [name for name in CONTENDERS if name != DENSE or self.nodes <= DENSE_LIMIT]


DEFAULT_CASES = [
    *(GraphCase(nodes, 16, 1) for nodes in (256, 1024, 4096, 16384)),
    *(GraphCase(4096, degree, 1) for degree in (4, 64)),
    *(GraphCase(256, 16, batch) for batch in (8, 64)),
    GraphCase(4096, 16, 1, skewed=True),
]


def graph_cases(nodes: list[int], degrees: list[int], batch: int | None) -> list[GraphCase]:
    """Cases of the given sizes, or the default ones if none is given."""
    if not nodes and not degrees and batch is None:
        return DEFAULT_CASES
    cases = [GraphCase(*sizes) for sizes in product(nodes or [4096], degrees or [16], [batch or 1])]
    for case in cases:
        if case.degree >= case.nodes:
            raise ConfigError(f"a graph of {case.nodes} nodes has degrees below {case.nodes}: got {case.degree}")
    return cases


def edge_index(nodes: int, degree: int, skewed: bool) -> Tensor:
    """Edges (2, E), sorted by target: k-NN of random points, or Pareto degrees between degree / 2 and nodes / 2."""
    generator = torch.Generator().manual_seed(0)
    if not skewed:
        sources = knn(torch.randn(nodes, 3, generator=generator), degree).reshape(-1)
        return torch.stack((sources, torch.arange(nodes).repeat_interleave(degree)))
    degrees = (degree / 2 * torch.rand(nodes, generator=generator).rsqrt()).long().clamp(1, nodes // 2)
    targets = torch.arange(nodes).repeat_interleave(degrees)
    slots = torch.arange(len(targets)) - (degrees.cumsum(0) - degrees).repeat_interleave(degrees)
    starts = torch.randint(nodes, (nodes,), generator=generator)
    return torch.stack(((starts[targets] + slots) % nodes, targets))


class MaskedAttention(nn.Module):
    """torch's scaled_dot_product_attention with the graph as a mask (V, V)."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(CHANNELS, 3 * HEADS * WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, V, C) -> (B, V, H * 16)."""
        queries, keys, values = self.projection(x).unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return out.transpose(1, 2).flatten(2)


def graph_pass(variant: str, batch: int, nodes: int, degree: int, skewed: bool = False) -> Pass:
    """Return the forward and backward pass of a layer, after a tiny pass that loads its code."""
    if nodes > WARM_UP_NODES:
        graph_pass(variant, batch, WARM_UP_NODES, 2, skewed)()
    edges = edge_index(nodes, degree, skewed)
    x = torch.randn(batch, nodes, CHANNELS, requires_grad=True)
    graph: Tensor = edges
    layer: nn.Module
    if variant == QUATERNION:
        layer = QuaternionConv(CHANNELS, WIDTH, HEADS)
    elif variant == DENSE:
        layer, graph = MaskedAttention(), torch.zeros(nodes, nodes, dtype=torch.bool)
        graph[edges[1], edges[0]] = True
    else:
        layer = geometric_layer(variant)
        x = x.detach().flatten(0, 1).requires_grad_()
        graph = (edges[:, None] + nodes * torch.arange(batch)[:, None]).flatten(1)
    leaves = [x, *(p for p in layer.parameters() if p.requires_grad)]
    with torch.no_grad():
        upstream = torch.randn_like(layer(x, graph))
    return lambda: torch.autograd.grad(layer(x, graph), leaves, upstream, allow_unused=True)


def geometric_layer(name: str) -> nn.Module:
    """Layer of PyTorch Geometric, without self-loops and skip connections."""
    try:
        from torch_geometric.nn import GATv2Conv, TransformerConv
    except ImportError as error:
        raise ConfigError("bench graphs needs PyTorch Geometric; pip install 'quatsphere[graphs]'") from error
    if name == GATV2:
        layer: nn.Module = GATv2Conv(CHANNELS, WIDTH, HEADS, add_self_loops=False)
    else:
        layer = TransformerConv(CHANNELS, WIDTH, HEADS, root_weight=False)
    return layer
