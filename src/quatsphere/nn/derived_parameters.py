"""Tensors that the steps derive from parameters alone, for all steps of a model at once.

β, ε, gates and merged Hamilton weights are small: computed step by step they are a fifth of an accelerator's launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from quatsphere.nn.field import LearnedBound, ShellField, bound_logits
from quatsphere.nn.routing import Routing

if TYPE_CHECKING:
    from quatsphere.nn.shell_step import ShellStep


class Derived(NamedTuple):
    """Bounds (1 or 2), β (H,), up and down projections with `post` merged, and the gate or None, of one step."""

    bounds: Tensor
    beta: Tensor
    weights: tuple[Tensor, Tensor]
    gate: Tensor | None


def derive_together(steps: Sequence[tuple[ShellStep, Sequence[ShellField]]]) -> list[Derived]:
    """Derived tensors of steps, each given with the fields of its shells, equal to those that each step computes."""
    modules, fields = [step for step, _ in steps], [own for _, own in steps]
    logits = [bound_logits(own) for own in fields]
    every = torch.stack([logit for own in logits for logit in own])
    bounds = LearnedBound.limit(every).split([len(own) for own in logits])
    betas = Routing.positive(torch.stack([step.routing.beta_logit for step in modules])).unbind()
    up, post = torch.cat([step.ffn.up.weight for step in modules]), torch.cat([step.post.weight for step in modules])
    merged = modules[0].ffn.merge(up, post).contiguous().split(len(modules[0].post.weight))
    gates = [getattr(step.gate, "logit", None) for step in modules]
    known = [logit for logit in gates if logit is not None]
    opened = iter(torch.sigmoid(torch.stack(known)).unbind() if known else ())
    return [
        Derived(own, beta, (weight, step.ffn.down.weight), None if gate is None else next(opened))
        for step, own, beta, weight, gate in zip(modules, bounds, betas, merged, gates, strict=True)
    ]
