"""Tensors that the steps derive from parameters alone, for all steps of a model at once.

β, ε, gates and merged Hamilton weights are small: computed step by step they are a fifth of an accelerator's launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quatsphere.nn.field import LearnedBound, ShellField, bound_logits
from quatsphere.nn.hamilton import HamiltonFFN, HamiltonLinear
from quatsphere.nn.routing import Routing


class StepParameters(NamedTuple):
    """Parameters of one step that derived tensors come from; the gate's logit is None within a shell."""

    routing: Routing
    post: HamiltonLinear
    ffn: HamiltonFFN
    gate: Tensor | None
    fields: Sequence[ShellField]


class Derived(NamedTuple):
    """Bounds (1 or 2), β (H,), up and down projections with `post` merged, and the gate or None, of one step."""

    bounds: Tensor
    beta: Tensor
    weights: tuple[Tensor, Tensor]
    gate: Tensor | None


def derive_together(steps: Sequence[StepParameters]) -> list[Derived]:
    """Derived tensors of every step, equal to those that each step computes by itself."""
    logits = [bound_logits(step.fields) for step in steps]
    every = torch.stack([logit for own in logits for logit in own])
    bounds = LearnedBound.limit(every).split([len(own) for own in logits])
    betas = Routing.positive(torch.stack([step.routing.beta_logit for step in steps])).unbind()
    heads = steps[0].ffn.up.weight.shape[0]
    up, post = (torch.cat(weights) for weights in zip(*((s.ffn.up.weight, s.post.weight) for s in steps), strict=True))
    merged = steps[0].ffn.merge_in_few_launches(up, post).split(heads)
    gates = [step.gate for step in steps if step.gate is not None]
    opened = iter(torch.sigmoid(torch.stack(gates)).unbind() if gates else ())
    return [
        Derived(own, beta, (weight, step.ffn.down.weight), None if step.gate is None else next(opened))
        for step, own, beta, weight in zip(steps, bounds, betas, merged, strict=True)
    ]
