"""One step of QSV: kernel, Hamilton block, residual. The same class within a shell and between two."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from quatsphere.kernels import Problem, add_resampled, quaternion_attention, routing_weights
from quatsphere.nn.dropout import KeyedDropout
from quatsphere.nn.field import NoPerturbation, Perturbation, ShellField
from quatsphere.nn.hamilton import HamiltonFFN, HamiltonLinear
from quatsphere.nn.layout import Graph, Shell
from quatsphere.nn.routing import Alignment
from quatsphere.nn.trace import Trace
from quatsphere.nn.transport import Sandwich


def to_quaternions(tokens: Float[Tensor, "b v d"], heads: int) -> Float[Tensor, "b v h q 4"]:
    """Flat tokens as quaternion features, d = H * Q * 4."""
    return tokens.unflatten(2, (heads, -1, 4))


def to_flat(features: Float[Tensor, "b v h q 4"]) -> Float[Tensor, "b v d"]:
    """Quaternion features as flat tokens."""
    return features.flatten(2)


class Residual(nn.Module):
    """h = update + x, between shells of equal size."""

    def forward(
        self, update: Float[Tensor, "b v d"], tokens: Float[Tensor, "b v d"], graph: Graph
    ) -> Float[Tensor, "b v d"]:
        """No parameters."""
        return update + tokens


class GatedResidual(nn.Module):
    """h = update + σ(ĝ) interp(x), where shell sizes differ (eq:residual)."""

    roles = {"logit": "gates"}

    def __init__(self) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.zeros(()))

    def forward(
        self, update: Float[Tensor, "b t d"], tokens: Float[Tensor, "b s d"], graph: Graph
    ) -> Float[Tensor, "b t d"]:
        """σ(0) = 1/2 at the start."""
        return add_resampled(update, torch.sigmoid(self.logit), tokens, graph.resample_indices, graph.resample_weights)


class Place(NamedTuple):
    """One end of a step's graph: the shell's vertices and its quaternions."""

    shell: Shell
    field: ShellField


class ShellStep(nn.Module):
    """h = Hamilton_post(kernel(x)) + residual (eqs attn-weight, residual); each step owns all its parts."""

    def __init__(
        self,
        perturbation: Perturbation | NoPerturbation,
        routing: Alignment,
        transport: Sandwich,
        post: tuple[HamiltonLinear, HamiltonFFN],
        gate: Residual | GatedResidual,
        dropouts: tuple[KeyedDropout, KeyedDropout],
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.perturbation, self.routing, self.transport = perturbation, routing, transport
        self.post, self.ffn = post
        self.gate = gate
        self.attention_dropout, self.output_dropout = dropouts
        self.backend = backend

    def forward(
        self,
        tokens: Float[Tensor, "b s d"],
        source: Place,
        target: Place,
        graph: Graph,
        keys: Int[Tensor, "b"],
        trace: Trace,
    ) -> Float[Tensor, "b t d"]:
        """Tokens of the source shell -> tokens of the target shell."""
        source_field, target_field = self.perturbation.fields(tokens, source.field, target.field, graph.mixing)
        features = self.transport.prepare(to_quaternions(tokens, source_field.shape[2]))
        edges = (*graph.neighbours.shape, source_field.shape[2])
        keep = self.attention_dropout.mask(keys, edges)
        directions = (self.routing.directions(target.shell), self.routing.directions(source.shell))
        aggregated = self.attend(target_field, source_field, features, graph, keep, directions)
        kept = self.output_dropout.mask(keys, (graph.neighbours.shape[0], tokens.shape[2]))
        update = to_flat(self.ffn(aggregated, self.post, kept, self.output_dropout.scale))
        hidden = self.gate(update, tokens, graph)
        trace.step(lambda: self.look(target_field, source_field, features, graph, directions))
        trace.step(lambda: {"aggregated": aggregated, "update": update, "hidden": hidden})
        return hidden

    def attend(
        self,
        target_field: Tensor,
        source_field: Tensor,
        features: Tensor,
        graph: Graph,
        keep: Tensor | None,
        directions: tuple[Tensor | None, Tensor | None],
    ) -> Float[Tensor, "b t h q 4"]:
        """The coupled kernel on this step's graph."""
        return quaternion_attention(
            target_field,
            source_field,
            features,
            graph.neighbours,
            self.routing.beta,
            routing=self.routing.rule,
            transport=self.transport.rule,
            keep=keep,
            keep_scale=self.attention_dropout.scale,
            target_directions=directions[0],
            source_directions=directions[1],
            backend=self.backend,
        )

    def look(
        self,
        target_field: Tensor,
        source_field: Tensor,
        features: Tensor,
        graph: Graph,
        directions: tuple[Tensor | None, Tensor | None],
    ) -> dict[str, Tensor]:
        """What a trace wants to see of the kernel: fields, graph, β, scores and weights (before dropout)."""
        beta = self.routing.beta
        problem = Problem(
            target_field,
            source_field,
            features,
            graph.neighbours,
            beta,
            self.routing.rule,
            self.transport.rule,
            None,
            *directions,
        )
        scores, weights = routing_weights(problem)
        return {
            "field": target_field,
            "source_field": source_field,
            "neighbours": graph.neighbours,
            "beta": beta,
            "scores": scores,
            "weights": weights,
        }
