"""Traces: intermediate results of a forward pass by name, recorded without hooks; measures of weights and fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from quatsphere.geometry.quaternion import distance


class Trace(dict[str, Any]):
    """name -> tensor, or name -> list with one tensor per step."""

    enabled = True

    def __repr__(self) -> str:
        """Names and shapes in one line; of a list, the number of steps and the shape of the first."""
        lists = {name: value for name, value in self.items() if isinstance(value, list) and value}
        shapes = [f"{name} {len(value)} x {tuple(value[0].shape)}" for name, value in lists.items()]
        shapes += [f"{name} {tuple(value.shape)}" for name, value in self.items() if isinstance(value, Tensor)]
        return f"{type(self).__name__}({', '.join(shapes)})"

    def step(self, values: Callable[[], Mapping[str, Tensor]]) -> None:
        """Append the values of one step; `values` is a function, so that a disabled trace computes nothing."""
        if self.enabled:
            for name, value in values().items():
                self.setdefault(name, []).append(value)

    def note(self, values: Callable[[], Mapping[str, Any]]) -> None:
        """Record values that occur once in a forward pass."""
        if self.enabled:
            self.update(values())


class NoTrace(Trace):
    """A trace that records nothing."""

    enabled = False


def routing_entropy(weights: Float[Tensor, "b t k h"]) -> float:
    """Mean entropy of the weights (B, T, k, H) over the k neighbours, divided by its maximum log k."""
    k = weights.shape[2]
    return float(torch.special.entr(weights.double()).sum(2).mean() / math.log(k)) if k > 1 else 1.0


def routing_peak(weights: Float[Tensor, "b t k h"]) -> float:
    """Mean largest weight as a multiple of the uniform value 1/k."""
    return float(weights.double().amax(2).mean() * weights.shape[2])


def head_overlap(base: Float[Tensor, "v h 4"]) -> Float[Tensor, "v"]:
    """Σ_{h≠h'} ⟨q^h, q^h'⟩² over ordered pairs of heads, for each vertex.

    Over all pairs that is ‖Q Qᵀ‖² = ‖Qᵀ Q‖² for the H x 4 matrix Q of a vertex: 4 x 4 products instead of H x H.
    """
    everyone = (base.transpose(-1, -2) @ base).square().sum((-1, -2))
    return everyone - base.square().sum(-1).square().sum(-1)


def field_motion(fields: Sequence[Tensor], previous: Sequence[Tensor] | None) -> list[float]:
    """Mean rotation angle in radians that each shell's base quaternions moved since `previous`."""
    if previous is None:
        return []
    return [float(distance(q.detach(), old).mean()) for q, old in zip(fields, previous, strict=True)]
