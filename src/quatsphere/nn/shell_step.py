"""One step of QSV: kernel, Hamilton block, residual. The same class within a shell and between two."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from quatsphere.kernels import (
    TRANSPORTS,
    Ends,
    Kept,
    Problem,
    add_resampled,
    quaternion_attention,
    routing_weights,
    runs_whole,
    whole_step,
)
from quatsphere.nn.dropout import KeyedDropout
from quatsphere.nn.field import (
    LearnedBound,
    NoPerturbation,
    Perturbation,
    PerturbationOfShells,
    ShellField,
    bound_logits,
    bounds_of,
)
from quatsphere.nn.hamilton import HamiltonFFN, HamiltonLinear
from quatsphere.nn.layout import Graph, Shell
from quatsphere.nn.remembered import Remembered
from quatsphere.nn.routing import Alignment
from quatsphere.nn.trace import Trace
from quatsphere.nn.transport import HeadMixing, Sandwich


def to_quaternions(tokens: Float[Tensor, "b v d"], heads: int) -> Float[Tensor, "b v h q 4"]:
    """Flat tokens as quaternion features, d = H * Q * 4."""
    return tokens.unflatten(2, (heads, -1, 4))


def to_flat(features: Float[Tensor, "b v h q 4"]) -> Float[Tensor, "b v d"]:
    """Quaternion features as flat tokens."""
    return features.flatten(2)


class Residual(nn.Module):
    """h = update + x, between shells of equal size."""

    value = None

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
        """The gate is one number for the whole shell."""
        return add_resampled(update, self.value, tokens, graph.resample_indices, graph.resample_weights)

    @property
    def value(self) -> Tensor:
        """σ(ĝ), 1/2 at the start."""
        return torch.sigmoid(self.logit)


class Place(NamedTuple):
    """One end of a step's graph: the shell's vertices and its quaternions."""

    shell: Shell
    field: ShellField


class ShellStep(nn.Module):
    """h = Hamilton_post(kernel(x)) + residual (eqs attn-weight, residual); each step owns all its parts."""

    fused = True
    """Whether the step may run in one operator; where False it runs part by part, within reach of patches and hooks."""

    def __init__(
        self,
        perturbation: Perturbation | PerturbationOfShells | NoPerturbation,
        routing: Alignment,
        transport: Sandwich,
        post: tuple[HamiltonLinear, HamiltonFFN],
        gate: Residual | GatedResidual,
        dropouts: tuple[KeyedDropout, KeyedDropout],
        backend: str = "auto",
        head_mixing: HeadMixing | None = None,
    ) -> None:
        super().__init__()
        self.perturbation, self.routing, self.transport = perturbation, routing, transport
        self.head_mixing = head_mixing or nn.Identity()
        self.post, self.ffn = post
        self.gate = gate
        self.attention_dropout, self.output_dropout = dropouts
        self.backend = backend
        self.derived: Remembered[tuple[Tensor, Tensor, tuple[Tensor, Tensor], Tensor | None]] = Remembered()

    def forward(
        self,
        tokens: Float[Tensor, "b s d"],
        source: Place,
        target: Place,
        graph: Graph,
        keys: Int[Tensor, "b"],
        trace: Trace,
    ) -> Float[Tensor, "b t d"]:
        """Tokens of the source shell -> tokens of the target shell: in one operator, or part by part."""
        edges = (*graph.neighbours.shape, source.field.base.shape[1])
        keep = self.attention_dropout.mask(keys, edges)
        kept = self.output_dropout.mask(keys, (graph.neighbours.shape[0], tokens.shape[2]))
        dropped = Kept(keep, kept, self.attention_dropout.scale, self.output_dropout.scale)
        if self.fused and not trace.looks and self.runs_whole(tokens, source, target, graph):
            return self.whole(tokens, source, target, graph, dropped)
        return self.parts(tokens, source, target, graph, dropped, trace)

    def runs_whole(self, tokens: Tensor, source: Place, target: Place, graph: Graph) -> bool:
        """Whether the operator of whole steps does what the parts would do."""
        if not runs_whole(tokens, source.field.base, self.backend) or (graph.mixing is None) != (source is target):
            return False
        if self.transport.rule not in TRANSPORTS or not isinstance(self.head_mixing, nn.Identity) or self.ffn.skip:
            return False
        methods = [self.parts, self.features, self.attend, self.perturbation.fields, self.transport.prepare]
        methods += [self.routing.directions, self.ffn.forward, self.gate.forward]
        methods += [source.field.bound.perturb, target.field.bound.perturb]
        return all(getattr(method, "__func__", method) in REPLACED for method in methods) and not self.hooked()

    def hooked(self) -> bool:
        """Whether a part has hooks that its call would run."""
        return any(
            part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
            for part in (self.ffn, self.gate)
        )

    def whole(
        self, tokens: Float[Tensor, "b s d"], source: Place, target: Place, graph: Graph, dropped: Kept
    ) -> Float[Tensor, "b t d"]:
        """The step in one operator."""
        assert isinstance(self.perturbation, Perturbation)
        fields = [source.field] if target is source else [source.field, target.field]
        layers = (self.post.weight, self.ffn.up.weight, self.ffn.down.weight)
        bounds, beta, post, gate = self.derived(
            [self.routing.beta_logit, *layers, *self.gate.parameters(), *bound_logits(fields)],
            lambda: (bounds_of(fields), self.routing.beta, self.ffn.weights(self.post), self.gate.value),
        )
        return whole_step(
            tokens,
            self.perturbation.inner.weight,
            self.perturbation.network,
            Ends(bounds, source.field.base, None if target is source else target.field.base),
            graph.neighbours,
            beta,
            post,
            residual=(gate, graph.mixing),
            kept=dropped,
            rules=(self.routing.rule, self.transport.rule),
        )

    def parts(
        self,
        tokens: Float[Tensor, "b s d"],
        source: Place,
        target: Place,
        graph: Graph,
        dropped: Kept,
        trace: Trace,
    ) -> Float[Tensor, "b t d"]:
        """Field, kernel, Hamilton block and residual one after the other, each in sight."""
        source_field, target_field = self.perturbation.fields(tokens, source.field, target.field, graph.mixing)
        features = self.features(tokens, source_field.shape[2])
        directions = (self.routing.directions(target.shell), self.routing.directions(source.shell))
        aggregated = self.attend(target_field, source_field, features, graph, dropped.edges, directions)
        update = to_flat(self.ffn(aggregated, self.post, dropped.update, self.output_dropout.scale))
        hidden = self.gate(update, tokens, graph)
        trace.step(lambda: self.look(target_field, source_field, features, graph, directions))
        trace.step(lambda: {"aggregated": aggregated, "update": update, "hidden": hidden})
        return hidden

    def features(self, tokens: Float[Tensor, "b s d"], heads: int) -> Float[Tensor, "b s h q 4"]:
        """What the sources send, before the kernel turns it."""
        return self.transport.prepare(to_quaternions(self.head_mixing(tokens), heads))

    def attend(
        self,
        target_field: Tensor,
        source_field: Tensor,
        features: Tensor,
        graph: Graph,
        keep: Tensor | None,
        directions: tuple[Tensor | None, Tensor | None],
    ) -> Float[Tensor, "b t h q 4"]:
        """The coupled kernel on this step's graph, in the dtype of its inputs where those are narrow."""
        aggregated = quaternion_attention(
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
        return aggregated.to(torch.promote_types(target_field.dtype, features.dtype))

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


REPLACED = [
    ShellStep.parts,
    ShellStep.features,
    ShellStep.attend,
    Perturbation.fields,
    Sandwich.prepare,
    Alignment.directions,
]
REPLACED += [HamiltonFFN.forward, Residual.forward, GatedResidual.forward, LearnedBound.perturb]
"""Methods that the operator of whole steps stands for; others in their place (subclasses, patches) it does not run."""
