"""What is logged of a model's inside at the end of an epoch: sharpness, bounds, routing on validation data, motion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quatsphere.geometry.quaternion import distance
from quatsphere.nn.field import LearnedBound
from quatsphere.nn.trace import Trace


def routing_entropy(weights: Tensor) -> float:
    """Mean entropy of the weights (B, T, k, H) over the k neighbours as a share of its maximum log k."""
    k = weights.shape[2]
    return float(torch.special.entr(weights.double()).sum(2).mean() / math.log(k)) if k > 1 else 1.0


def routing_peak(weights: Tensor) -> float:
    """Mean largest weight as a multiple of the uniform value 1/k."""
    return float(weights.double().amax(2).mean() * weights.shape[2])


@torch.no_grad()
def look_inside(model: nn.Module, images: Tensor, batch_size: int = 32) -> dict[str, Any]:
    """Per step: routing entropy, peak, mean beta; per shell: bound. Empty lists for models without them.

    A trace of all images at once would need more memory than a training step; means of parts are as good.
    """
    was_training = model.training
    model.eval()
    parts = images.split(batch_size)
    seen = [_measure(model(part, return_trace=True)[1]) for part in parts]
    model.train(was_training)
    shares = [len(part) / len(images) for part in parts]
    means = {name: _mean([part[name] for part in seen], shares) for name in seen[0]}
    return {**means, "bound": [float(m.value) for m in model.modules() if isinstance(m, LearnedBound)]}


def _measure(trace: Trace) -> dict[str, list[float]]:
    weights = trace.get("weights", [])
    return {
        "routing_entropy": [routing_entropy(w) for w in weights],
        "routing_peak": [routing_peak(w) for w in weights],
        "beta": [float(beta.mean()) for beta in trace.get("beta", [])],
    }


def _mean(rows: Sequence[Sequence[float]], shares: Sequence[float]) -> list[float]:
    """The mean of rows, each with its share."""
    return [sum(s * value for s, value in zip(shares, column, strict=True)) for column in zip(*rows, strict=True)]


def field_motion(fields: Sequence[Tensor], previous: Sequence[Tensor] | None) -> list[float]:
    """Mean rotation angle in radians that each shell's base quaternions moved since `previous`."""
    if previous is None:
        return []
    return [float(distance(q.detach(), old).mean()) for q, old in zip(fields, previous, strict=True)]
