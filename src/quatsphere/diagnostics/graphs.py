"""Do the metrics agree? "The two select identical neighbors here" (section on connectivity), measured."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from quatsphere.geometry.sphere import angular_separation, directions

TARGETS = 2048
"""Targets that are looked at, evenly spread, where a shell has more."""
TILE = 2**20
"""Distances held at once."""

METRICS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "euclidean": lambda target, source: (target - source).norm(dim=-1),
    "geodesic": angular_separation,
    "cosine": lambda target, source: 1 - (directions(target) * directions(source)).sum(-1),
}
"""name -> distance of targets (T, 1, 3) and sources (1, S, 3), each from its definition and nothing else."""


def metric_agreement(targets: Float[Tensor, "t 3"], sources: Float[Tensor, "s 3"], k: int) -> dict[str, float]:
    """Share of targets for which two metrics choose the same k neighbours, as sets, for every pair of metrics."""
    step = -(-len(targets) // TARGETS)
    targets, sources = targets.detach().double()[::step], sources.detach().double()
    chosen = {name: _members(targets, sources, k, metric) for name, metric in METRICS.items()}
    return {
        f"{one}_{other}": float((chosen[one] == chosen[other]).all(1).double().mean())
        for one, other in combinations(METRICS, 2)
    }


def _members(targets: Tensor, sources: Tensor, k: int, metric: Callable[[Tensor, Tensor], Tensor]) -> Bool[Tensor, ...]:
    """(T, S): whether a source is among the k nearest of a target."""
    rows = max(1, TILE // len(sources))
    nearest = torch.cat([_nearest(tile, sources, k, metric) for tile in targets.split(rows)])
    return torch.zeros(len(targets), len(sources), dtype=torch.bool).scatter_(1, nearest, True)


def _nearest(targets: Tensor, sources: Tensor, k: int, metric: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return metric(targets.unsqueeze(1), sources.unsqueeze(0)).sort(dim=1, stable=True).indices[:, :k]
