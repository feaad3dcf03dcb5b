"""One step of QSV: field, kernel, Hamilton block, residual. The same class within a shell and between two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from quatsphere.kernels import (
    TRANSPORTS,
    AttentionInputs,
    DropoutMasks,
    FusedStepInputs,
    ShellPair,
    add_resampled,
    select_backend,
)
from quatsphere.kernels.api import attend
from quatsphere.kernels.caches import ParameterCache
from quatsphere.kernels.torch_backend import edge_scores, edge_weights
from quatsphere.nn.derived import DerivedFromParameters
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
from quatsphere.nn.routing import Routing
from quatsphere.nn.trace import Trace
from quatsphere.nn.transport import HeadMixing, Transport
from quatsphere.randomness import KeyedDropout
from quatsphere.torch_operators import transformed


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
        """Add the tokens."""
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
        """Add the interpolated tokens, scaled by one gate for the whole shell."""
        return add_resampled(update, self.value, tokens, graph.resample_indices, graph.resample_weights)

    @property
    def value(self) -> Tensor:
        """σ(ĝ), 1/2 at the start."""
        return torch.sigmoid(self.logit)


class ShellState(NamedTuple):
    """A shell's vertices and its quaternions."""

    shell: Shell
    field: ShellField


class Derived(NamedTuple):
    """Tensors derived from parameters: bounds (1 or 2), β (H,), up (with `post` merged) and down, gate or None."""

    bounds: Tensor
    beta: Tensor
    weights: tuple[Tensor, Tensor]
    gate: Tensor | None


@dataclass(frozen=True)
class StepInputs:
    """Inputs of one step: tokens (B, S, d) of the source shell, both shells, the graph between them, dropout keys."""

    tokens: Tensor
    source: ShellState
    target: ShellState
    graph: Graph
    keys: Tensor

    derived: Derived | None = None

    @property
    def fields(self) -> list[ShellField]:
        """Fields of the two shells, or of the one."""
        return [self.source.field] if self.target is self.source else [self.source.field, self.target.field]


class ShellStep(nn.Module):
    """h = Hamilton_post(kernel(x)) + residual (eqs attn-weight, residual); steps share no parts."""

    fused = True
    """Set to False to run the step part by part, where patches and hooks of every part take effect."""

    def __init__(
        self,
        perturbation: Perturbation | PerturbationOfShells | NoPerturbation,
        routing: Routing,
        transport: Transport,
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
        self.derived: ParameterCache[Derived] = ParameterCache()

    def forward(
        self,
        tokens: Float[Tensor, "b s d"],
        source: ShellState,
        target: ShellState,
        graph: Graph,
        keys: Int[Tensor, "b"],
        trace: Trace,
        derived: Derived | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Tokens of the source shell -> tokens of the target shell, by the first backend that supports the step.

        `derived` holds the tensors derived from parameters, if they were computed for all steps at once.
        """
        inputs = StepInputs(tokens, source, target, graph, keys, derived)
        backend = next(backend for backend in STEP_BACKENDS if backend.supports(self, inputs, trace) is None)
        return backend.step(self, inputs, trace)

    def masks(self, inputs: StepInputs, hashed: bool = False) -> DropoutMasks:
        """Dropout masks of the weights and of the update, or what a kernel computes them from."""
        attention, output, keys = self.attention_dropout, self.output_dropout, inputs.keys
        if hashed:
            masks = (attention.hashed_mask(keys), output.hashed_mask(keys))
        else:
            targets, k = inputs.graph.neighbours.shape
            edges = (targets, k, inputs.source.field.base.shape[1])
            masks = (attention.mask(keys, edges), output.mask(keys, (targets, inputs.tokens.shape[2])))
        return DropoutMasks(*masks, attention.scale, output.scale, attention.site, output.site)

    def forward_fused(self, inputs: StepInputs) -> Float[Tensor, "b t d"]:
        """The step in one operator."""
        assert isinstance(self.perturbation, Perturbation)
        assert isinstance(self.routing.rule, str)
        assert isinstance(self.transport.rule, str)
        tokens, graph, fields = inputs.tokens, inputs.graph, inputs.fields
        layers = (self.post.weight, self.ffn.up.weight, self.ffn.down.weight)
        bounds, beta, post, gate = inputs.derived or self.derived.infer(
            [self.routing.beta_logit, *layers, *self.gate.parameters(), *bound_logits(fields)],
            lambda: Derived(bounds_of(fields), self.routing.beta, self.ffn.weights(self.post), self.gate.value),
        )
        backend = select_backend(self.backend, str(tokens.device))
        return backend.step(
            FusedStepInputs(
                tokens,
                self.perturbation.inner.weight,
                self.perturbation.network,
                ShellPair(bounds, fields[0].base, fields[1].base if len(fields) > 1 else None),
                graph.neighbours,
                beta,
                *post,
                gate,
                graph.mixing,
                self.masks(inputs, backend.hashes_masks),
                self.routing.rule,
                self.transport.rule,
            )
        )

    def forward_unfused(self, inputs: StepInputs, trace: Trace) -> Float[Tensor, "b t d"]:
        """Field, kernel, Hamilton block and residual, one after the other."""
        tokens, source, target, graph = inputs.tokens, inputs.source, inputs.target, inputs.graph
        masks = self.masks(inputs)
        source_field, target_field = self.perturbation.fields(tokens, source.field, target.field, graph.mixing)
        features = self.features(tokens, source_field.shape[2])
        directions = (self.routing.directions(target.shell), self.routing.directions(source.shell))
        aggregated = self.attend(target_field, source_field, features, graph, masks.edges, directions)
        update = to_flat(self.ffn(aggregated, self.post, masks.update, self.output_dropout.scale))
        hidden = self.gate(update, tokens, graph)
        trace.step(lambda: self.trace_values(target_field, source_field, features, graph, directions))
        trace.step(lambda: {"aggregated": aggregated, "update": update, "hidden": hidden})
        return hidden

    def features(self, tokens: Float[Tensor, "b s d"], heads: int) -> Float[Tensor, "b s h q 4"]:
        """Features of the sources before the kernel transports them."""
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
        """The coupled kernel on this step's graph, returned in the promoted dtype of fields and features."""
        aggregated = attend(
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

    def trace_values(
        self,
        target_field: Tensor,
        source_field: Tensor,
        features: Tensor,
        graph: Graph,
        directions: tuple[Tensor | None, Tensor | None],
    ) -> dict[str, Tensor]:
        """Values of the kernel for a trace: fields, graph, β, scores and weights (before dropout)."""
        beta, rules = self.routing.beta, (self.routing.rule, self.transport.rule)
        inputs = AttentionInputs(
            target_field, source_field, features, graph.neighbours, beta, *rules, None, *directions
        )
        return {
            "field": target_field,
            "source_field": source_field,
            "neighbours": graph.neighbours,
            "beta": beta,
            "scores": edge_scores(inputs),
            "weights": edge_weights(inputs),
        }


def derive_for_all(
    steps: Sequence[tuple[ShellStep, ShellState, ShellState]], tokens: Tensor
) -> Sequence[Derived | None]:
    """Derived tensors of all steps, for the operator of a whole step; None for steps that derive their own.

    Steps derive their own on CPUs in inference, from a cache, and under autocast, which chooses the precision of every
    product.
    """
    first, source, _ = steps[0]
    fields = [[here.field] if here is there else [here.field, there.field] for _, here, there in steps]
    ours = all(isinstance(field.bound, LearnedBound) for pair in fields for field in pair)
    ours &= all(isinstance(step.ffn, HamiltonFFN) and isinstance(step.post, HamiltonLinear) for step, *_ in steps)
    alone = not torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")
    if (tokens.is_cpu and alone) or transformed() or not ours:
        return [None] * len(steps)
    backend = select_backend(first.backend, tokens.device.type)
    if backend.supports_step(tokens, source.field.base) is not None:
        return [None] * len(steps)
    derive = derive_on_cpu if tokens.is_cpu else derive_together
    return derive([(step, own) for (step, *_), own in zip(steps, fields, strict=True)])


def derive_on_cpu(steps: Sequence[tuple[ShellStep, Sequence[ShellField]]]) -> list[Derived]:
    """Derived tensors of steps on CPUs: with the same bits as those that each step computes."""
    modules, count = [step for step, _ in steps], len(steps)
    found = DerivedFromParameters.apply(
        *(count, modules[0].ffn.left),
        *(torch.stack(bound_logits(own)) for _, own in steps),
        *(step.routing.beta_logit for step in modules),
        *(step.ffn.up.weight for step in modules),
        *(step.post.weight for step in modules),
        *(getattr(step.gate, "logit", None) for step in modules),
    )
    each = [found[start : start + count] for start in range(0, len(found), count)]
    downs = [step.ffn.down.weight for step in modules]
    return [Derived(bounds, beta, (up, down), gate) for bounds, beta, up, gate, down in zip(*each, downs, strict=True)]


def derive_together(steps: Sequence[tuple[ShellStep, Sequence[ShellField]]]) -> list[Derived]:
    """Derived tensors of steps, each given with the fields of its shells, equal to those that each step computes.

    They are small: computed step by step they are a fifth of an accelerator's launches.
    """
    modules, fields = [step for step, _ in steps], [own for _, own in steps]
    logits = [bound_logits(own) for own in fields]
    every = torch.stack([logit for own in logits for logit in own])
    bounds = LearnedBound.limit(every).split([len(own) for own in logits])
    betas = Routing.positive(torch.stack([step.routing.beta_logit for step in modules])).unbind()
    up, post = torch.cat([step.ffn.up.weight for step in modules]), torch.cat([step.post.weight for step in modules])
    merged = modules[0].ffn.merge_in_few_launches(up, post).split(len(modules[0].post.weight))
    gates = [getattr(step.gate, "logit", None) for step in modules]
    known = [logit for logit in gates if logit is not None]
    opened = iter(torch.sigmoid(torch.stack(known)).unbind() if known else ())
    return [
        Derived(own, beta, (weight, step.ffn.down.weight), None if gate is None else next(opened))
        for step, own, beta, weight, gate in zip(modules, bounds, betas, merged, gates, strict=True)
    ]


class StepBackend(Protocol):
    """An implementation of a whole step."""

    def supports(self, module: ShellStep, inputs: StepInputs, trace: Trace) -> str | None:
        """Return why this backend does not run the step, or None if it does."""

    def step(self, module: ShellStep, inputs: StepInputs, trace: Trace) -> Tensor:
        """Run the step: (B, S, d) -> (B, T, d)."""


class FusedStep:
    """One operator for the whole step, where every part is the built-in one and no trace is recorded."""

    def supports(self, module: ShellStep, inputs: StepInputs, trace: Trace) -> str | None:
        """Return which part of the step the operator does not implement."""
        if trace.enabled or not module.fused:
            return "the step is traced or runs part by part"
        parts: Any = module._modules  # `module.x` searches three dictionaries
        routing, transport, ffn, gate = (parts[name] for name in ("routing", "transport", "ffn", "gate"))
        if not isinstance(routing.rule, str) or transport.rule not in TRANSPORTS:
            return "the operator does not have the rule"
        if not isinstance(parts["head_mixing"], nn.Identity) or ffn.skip:
            return "the operator has no head mixing and no skip of the Hamilton block"
        if (inputs.graph.mixing is None) != (inputs.source is inputs.target):
            return "the operator interpolates between all shells and within none"
        bounds = [field.bound.perturb for field in inputs.fields]
        methods = [module.forward_unfused, module.features, module.attend, parts["perturbation"].fields, *bounds]
        methods += [transport.prepare, routing.directions, ffn.forward, gate.forward]
        if not FUSED_METHODS.issuperset(getattr(method, "__func__", method) for method in methods):
            return "a part is patched or replaced by a subclass"
        if any(_has_hooks(part) for part in (ffn, gate)):
            return "a part has hooks"
        backend = select_backend(module.backend, str(inputs.tokens.device))
        return backend.supports_step(inputs.tokens, inputs.source.field.base)

    def step(self, module: ShellStep, inputs: StepInputs, trace: Trace) -> Tensor:
        """Run the operator."""
        return module.forward_fused(inputs)


class TorchStep:
    """The parts of the step one after the other, around the kernel that the device has: supports everything."""

    def supports(self, module: ShellStep, inputs: StepInputs, trace: Trace) -> str | None:
        """Return None."""
        return None

    def step(self, module: ShellStep, inputs: StepInputs, trace: Trace) -> Tensor:
        """Run the parts."""
        return module.forward_unfused(inputs, trace)


STEP_BACKENDS: tuple[StepBackend, ...] = (FusedStep(), TorchStep())
"""The first that supports a step runs it."""


def _has_hooks(part: nn.Module) -> bool:
    hooks = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
    return any(hooks)


FUSED_METHODS = {
    *(ShellStep.forward_unfused, ShellStep.features, ShellStep.attend),
    *(Perturbation.fields, LearnedBound.perturb, Transport.prepare, Routing.directions),
    *(HamiltonFFN.forward, Residual.forward, GatedResidual.forward),
}
"""Methods that the fused operator implements; it does not run a step with others in their place."""
