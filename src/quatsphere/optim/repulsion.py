"""Tangential Coulomb repulsion on a sphere (eq:coulomb): spreads the vertices of a shell at fixed radii."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from quatsphere.geometry.neighbours import nearest_neighbours
from quatsphere.geometry.sphere import angular_separation, directions

SOFTENING = 1e-4
"""ε_r of eq:coulomb (the paper: "a small constant")."""


def repulsion_force(points: Float[Tensor, "v 3"], k: int) -> Float[Tensor, "v 3"]:
    """F_i = Σ_j t_ij / (ϑ_ij² + ε_r) over the k nearest others, tangential at the unit vector i.

    t_ij points away from j. Where i and j coincide or are antipodal, t_ij is undefined and set to zero, which also
    excludes the vertex itself.
    """
    neighbours = nearest_neighbours(points, points, min(k + 1, len(points)), "angular")
    own, other = points.unsqueeze(1), points[neighbours]
    away = (own * other).sum(-1, keepdim=True) * own - other
    length = away.norm(dim=-1, keepdim=True)
    unit = torch.where(length > 1e-9, away / length.clamp(min=1e-9), torch.zeros_like(away))
    angle = angular_separation(own, other).unsqueeze(-1)
    return (unit / (angle * angle + SOFTENING)).sum(dim=1)


@torch.no_grad()
def repel_(positions: Tensor, k: int, median_step: float) -> None:
    """Move every vertex along its force, scaled so that the median angular displacement is `median_step`.

    In place, along great circles, at constant distance from the centre. Near equilibrium the median force almost
    vanishes and the scale would move vertices beside a lattice fault across the sphere (by 177 degrees at V = 256), so
    no vertex moves further than half the mean spacing.
    """
    radius = positions.norm(dim=-1, keepdim=True)
    points = directions(positions.double())
    force = repulsion_force(points, k)
    size = force.norm(dim=-1, keepdim=True)
    median = size.median()
    if median_step <= 0 or not median > 0:
        return
    angle = (size * (median_step / median)).clamp(max=0.5 * math.sqrt(4 * math.pi / len(points)))
    moved = torch.cos(angle) * points + torch.sin(angle) * force / size.clamp(min=1e-300)
    positions.copy_(radius * directions(moved).to(positions.dtype))
