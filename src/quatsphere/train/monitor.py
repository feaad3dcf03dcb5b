"""What is logged of a model's inside at the end of an epoch: sharpness, bounds, routing on validation data, motion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quatsphere.nn.field import LearnedBound
from quatsphere.nn.measures import routing_entropy, routing_peak
from quatsphere.nn.routing import Alignment
from quatsphere.nn.trace import Trace


@torch.no_grad()
def look_inside(model: nn.Module, images: Tensor, batch_size: int = 32) -> dict[str, Any]:
    """Per step: routing entropy, peak, beta (mean and by head); per shell: bound. Empty for models without them.

    A trace of all images at once would need more memory than a training step; means of parts are as good.
    """
    was_training = model.training
    model.eval()
    parts = images.split(batch_size)
    seen = [_measure(model(part, return_trace=True)[1]) for part in parts]
    model.train(was_training)
    shares = [len(part) / len(images) for part in parts]
    means = {name: _mean([part[name] for part in seen], shares) for name in seen[0]}
    return {
        **means,
        "beta_heads": [m.beta.tolist() for m in model.modules() if isinstance(m, Alignment)],
        "bound": [float(m.value) for m in model.modules() if isinstance(m, LearnedBound)],
    }


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
