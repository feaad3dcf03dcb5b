"""The matched baseline's step: pre-norm dot-product attention over the same graph, then a feed-forward block."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from quatsphere.kernels import dot_product_attention, dot_product_weights
from quatsphere.nn.layout import Graph
from quatsphere.nn.trace import Trace
from quatsphere.randomness import KeyedDropout

VALUES = {"projected": lambda dim: nn.Linear(dim, dim), "identity": lambda dim: nn.Identity()}
"""The value path: W_V, or no projection."""


class NeighbourAttention(nn.Module):
    """W_Q, W_K, W_V, W_O on a kNN graph; queries from the targets, keys and values from the sources.

    With routing `uniform` every weight is 1/k; W_Q and W_K remain parameters without a gradient.
    """

    def __init__(self, dim: int, heads: int, value: str = "projected", routing: str = "softmax") -> None:
        super().__init__()
        self.heads, self.routing = heads, routing
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = VALUES[value](dim)
        self.output = nn.Linear(dim, dim)

    def extra_repr(self) -> str:
        """Heads and routing."""
        return f"heads={self.heads}, routing={self.routing}"

    def forward(
        self,
        target: Float[Tensor, "b t d"],
        source: Float[Tensor, "b s d"],
        graph: Graph,
        keep: Tensor | None,
        keep_scale: float,
        trace: Trace,
    ) -> Float[Tensor, "b t d"]:
        """Σ_j softmax_j(⟨W_Q x_i, W_K x_j⟩/√C) W_V x_j, heads side by side, then W_O."""
        queries, keys, values = (
            x.unflatten(2, (self.heads, -1)) for x in (*self.queries_and_keys(target, source), self.value(source))
        )
        aggregated = dot_product_attention(queries, keys, values, graph.neighbours, keep=keep, keep_scale=keep_scale)
        trace.step(
            lambda: {
                "neighbours": graph.neighbours,
                "weights": dot_product_weights(queries, keys, graph.neighbours),
                "aggregated": aggregated,
            }
        )
        return self.output(aggregated.flatten(2).to(target.dtype))

    def queries_and_keys(self, target: Float[Tensor, "b t d"], source: Float[Tensor, "b s d"]) -> tuple[Tensor, Tensor]:
        """Return queries and keys; zeros for uniform routing, whose softmax is exactly 1/k."""
        if self.routing == "uniform":
            return torch.zeros_like(target), torch.zeros_like(source)
        return self.query(target), self.key(source)


class AttentionStep(nn.Module):
    """x_i = interp(x); x_i += attention(norm x_i, norm x_j); x_i += FFN(norm x_i); the residual is not gated."""

    def __init__(
        self, dim: int, heads: int, value: str, dropouts: tuple[KeyedDropout, ...], routing: str = "softmax"
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = NeighbourAttention(dim, heads, value, routing)
        self.ffn_norm = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.attention_dropout, self.output_dropout, self.ffn_dropout = dropouts

    def forward(
        self, tokens: Float[Tensor, "b s d"], graph: Graph, keys: Int[Tensor, "b"], trace: Trace
    ) -> Float[Tensor, "b t d"]:
        """Tokens of the source shell -> tokens of the target shell."""
        target = graph.resample(tokens)
        edges = (*graph.neighbours.shape, self.attention.heads)
        keep = self.attention_dropout.mask(keys, edges)
        norm = self.attention_norm
        update = self.attention(norm(target), norm(tokens), graph, keep, self.attention_dropout.scale, trace)
        hidden = target + self.output_dropout(update, keys)
        hidden = hidden + self.ffn_dropout(self.ffn(self.ffn_norm(hidden)), keys)
        trace.step(lambda: {"update": update, "hidden": hidden})
        return hidden
