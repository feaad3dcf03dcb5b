"""Who listens to whom: kNN graphs, their reverse, and resampling between shells. Any `(V, D)` point set will do."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from quatsphere.errors import ConfigError

Metric = Literal["euclidean", "angular"]
Resample = Literal["index", "geometric"]

TILE = 2**22
"""Distances held at once; larger problems go through in tiles of targets."""


def knn_budget(vertices: int) -> int:
    """k_l = max(2, 2 ⌊log2 V_l⌋) (eq:knn-budget); [14, 14, 16, 16, 16] for the paper's shells."""
    return max(2, 2 * (vertices.bit_length() - 1))


def edge_ratio(vertex_counts: list[int], neighbour_counts: list[int]) -> float:
    """kNN edges over dense within-shell edges, Σ V_l k_l / Σ V_l²; 0.0538 for the paper's shells."""
    edges = sum(v * k for v, k in zip(vertex_counts, neighbour_counts, strict=True))
    return edges / sum(v * v for v in vertex_counts)


def nearest_neighbours(
    targets: Float[Tensor, "t d"],
    sources: Float[Tensor, "s d"],
    k: int,
    metric: Metric = "euclidean",
) -> Int[Tensor, "t {k}"]:
    """The k nearest sources of each target `(V_target, k)`, nearest first, ties ordered by index.

    Distances are taken in float64 from coordinate differences, so that every device ranks the same stored
    positions the same way. The angular metric ranks by the chord between directions, which grows with the angle.
    """
    if not 1 <= k <= len(sources):
        raise ConfigError(
            f"k must lie in 1..{len(sources)}, the number of source vertices: got {k}; "
            f"nearest legal value {min(max(1, k), len(sources))}"
        )
    with torch.no_grad():
        targets, sources = _exact(targets), _exact(sources)
        if metric == "angular":
            targets = targets / targets.norm(dim=-1, keepdim=True)
            sources = sources / sources.norm(dim=-1, keepdim=True)
        rows = max(1, TILE // len(sources))
        return torch.cat([_nearest_in_tile(tile, sources, k) for tile in targets.split(rows)])


def _exact(positions: Tensor) -> Tensor:
    # float64 does not exist on MPS; float32 is the best there is.
    return positions.detach().to(torch.float32 if positions.device.type == "mps" else torch.float64)


def _nearest_in_tile(targets: Tensor, sources: Tensor, k: int) -> Tensor:
    square = torch.zeros(len(targets), len(sources), dtype=targets.dtype, device=targets.device)
    for axis in range(targets.shape[1]):
        square += (targets[:, None, axis] - sources[None, :, axis]) ** 2
    return square.sort(dim=1, stable=True).indices[:, :k].contiguous()


def reverse_neighbours(
    neighbours: Int[Tensor, "t k"], sources: int
) -> tuple[Int[Tensor, "s degree"], Int[Tensor, "s degree"]]:
    """Who listens to each source: (edges, targets), both `(V_source, max degree)`, edges numbered i*k + slot.

    Rows are in ascending edge order and padded with edge -1 (target 0), so that a sum over a source's listeners is
    a gather in a fixed order: reproducible on every device, unlike a scatter.
    """
    flat = neighbours.reshape(-1)
    order = flat.sort(stable=True).indices
    degree = torch.bincount(flat, minlength=sources)
    start = degree.cumsum(0) - degree
    slot = torch.arange(int(degree.max()), device=flat.device)
    present = slot[None] < degree[:, None]
    edges = order[(start[:, None] + slot[None]).clamp(max=len(flat) - 1)]
    edges = torch.where(present, edges, -1)
    return edges, torch.where(present, edges // neighbours.shape[1], 0)


def index_resampling(sources: int, targets: int) -> tuple[Int[Tensor, "t 2"], Float[Tensor, "t 2"]]:
    """Linear interpolation along the vertex index (eq:residual's `interp`): (indices, weights), both (V_target, 2).

    The convention of `F.interpolate(mode="linear", align_corners=False)`, to the letter.
    """
    place = ((torch.arange(targets, dtype=torch.float64) + 0.5) * sources / targets - 0.5).clamp(min=0)
    lower = place.floor().long().clamp(max=sources - 1)
    upper = (lower + 1).clamp(max=sources - 1)
    fraction = place - lower
    return torch.stack((lower, upper), dim=1), torch.stack((1 - fraction, fraction), dim=1).float()


def geometric_resampling(
    targets: Float[Tensor, "t d"], sources: Float[Tensor, "s d"]
) -> tuple[Int[Tensor, "t m"], Float[Tensor, "t m"]]:
    """Barycentric interpolation over the three nearest sources by position: (indices, weights), both (V_target, 3).

    Weights solve Σ w s = t, Σ w = 1 in the least-squares sense of least norm (three neighbours of a lattice can lie
    on a line), then negative ones are cut to zero and the rest sums to one: never an extrapolation.
    """
    indices = nearest_neighbours(targets, sources, min(3, len(sources)))
    corners = _exact(sources)[indices]
    ones = torch.ones_like(corners[..., :1])
    system = torch.cat((corners, ones), dim=-1).transpose(1, 2)
    right = torch.cat((_exact(targets), ones[:, 0]), dim=-1)
    weights = (torch.linalg.pinv(system, rtol=1e-6) @ right.unsqueeze(-1)).squeeze(-1).clamp(min=0)
    return indices, (weights / weights.sum(dim=1, keepdim=True)).float()
