"""From tensors to plain numbers: summaries, means over batches, six digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

DIGITS = 6
"""Significant digits that are written."""
QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}


def summary(values: Tensor) -> dict[str, float]:
    """Mean, 5 %, 50 % and 95 % quantile and largest of any number of values."""
    ordered = values.double().flatten().sort().values
    last = len(ordered) - 1
    quantiles = {name: float(ordered[round(share * last)]) for name, share in QUANTILES.items()}
    return {"mean": float(ordered.mean()), **quantiles, "max": float(ordered[-1])}


def weighted_mean(rows: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The mean of equal tensors, each with its weight (batches of different size)."""
    total = torch.stack([row.double() * weight for row, weight in zip(rows, weights, strict=True)])
    return total.sum(0) / sum(weights)


def plain(value: Any) -> Any:
    """The same value made of what JSON knows, numbers with six significant digits."""
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
