"""Logits of image batches and their measures against labels: accuracy, confusion, likelihood, calibration; routing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from quatsphere.nn.field import LearnedBound
from quatsphere.nn.routing import Routing
from quatsphere.nn.trace import Trace, routing_entropy, routing_peak


@torch.no_grad()
def batch_logits(model: nn.Module, batches: Iterable[Tensor], classes: int) -> Float[Tensor, "n classes"]:
    """Logits of normalised image batches, on the CPU, in evaluation mode (the previous mode is restored)."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    logits = [torch.empty(0, classes)]
    try:
        for images in batches:
            logits.append(model(images.to(device)).float().cpu())
    finally:
        model.train(was_training)
    return torch.cat(logits)


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Measures of one split, from logits and labels."""

    logits: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    @property
    def predictions(self) -> Int[Tensor, "n"]:
        """Class index of the largest logit."""
        return self.logits.argmax(1)

    @property
    def accuracy(self) -> float:
        """Fraction of images whose largest logit is their label."""
        return float((self.predictions == self.labels).double().mean())

    @property
    def confusion(self) -> Int[Tensor, "classes classes"]:
        """Counts by label (row) and prediction (column)."""
        count = len(self.classes)
        return torch.bincount(self.labels * count + self.predictions, minlength=count * count).view(count, count)

    @property
    def per_class(self) -> dict[str, float | None]:
        """Accuracy within each class; None for a class without images."""
        rows = self.confusion.double()
        totals = rows.sum(1)
        return {name: float(rows[i, i] / totals[i]) if totals[i] > 0 else None for i, name in enumerate(self.classes)}

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood."""
        return float(F.cross_entropy(self.logits.double(), self.labels))

    @property
    def ece(self) -> float:
        """Expected calibration error over 15 equal bins of confidence (Guo et al. 2017)."""
        confidence, predicted = self.logits.double().softmax(1).max(1)
        right = (predicted == self.labels).double()
        bins = (confidence * 15).long().clamp(max=14)
        gaps = [
            float((right[bins == b].mean() - confidence[bins == b].mean()).abs() * (bins == b).double().mean())
            for b in range(15)
            if (bins == b).any()
        ]
        return sum(gaps)

    def __repr__(self) -> str:
        numbers = f"accuracy {self.accuracy:.4f}, nll {self.nll:.4f}, ece {self.ece:.4f}"
        return f"Evaluation({numbers}, n = {len(self.labels):,})"

    def report(self) -> dict[str, Any]:
        """All measures as plain numbers."""
        return {
            "images": len(self.labels),
            "accuracy": self.accuracy,
            "nll": self.nll,
            "ece": self.ece,
            "per_class": self.per_class,
            "confusion": self.confusion.tolist(),
        }


@torch.no_grad()
def measure_routing(model: nn.Module, images: Tensor, batch_size: int = 32) -> dict[str, list[Any]]:
    """Routing entropy, peak and beta per step, beta per head, bound per shell; empty lists for models without them.

    Images are traced in small batches: one trace of all would need more memory than a training step.
    """
    was_training = model.training
    model.eval()
    batches = images.split(batch_size)
    measured = [_trace_measures(model(batch, return_trace=True)[1]) for batch in batches]
    model.train(was_training)
    shares = [len(batch) / len(images) for batch in batches]
    means = {name: _weighted_mean([row[name] for row in measured], shares) for name in measured[0]}
    return {
        **means,
        "beta_heads": [m.beta.tolist() for m in model.modules() if isinstance(m, Routing)],
        "bound": [float(m.value) for m in model.modules() if isinstance(m, LearnedBound)],
    }


def _trace_measures(trace: Trace) -> dict[str, list[float]]:
    weights = trace.get("weights", [])
    return {
        "routing_entropy": [routing_entropy(w) for w in weights],
        "routing_peak": [routing_peak(w) for w in weights],
        "beta": [float(beta.mean()) for beta in trace.get("beta", [])],
    }


def _weighted_mean(rows: Sequence[Sequence[float]], shares: Sequence[float]) -> list[float]:
    return [sum(s * value for s, value in zip(shares, column, strict=True)) for column in zip(*rows, strict=True)]
