"""How evenly the vertices of a shell cover it, and how far they moved."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from quatsphere.geometry.neighbours import nearest_neighbours
from quatsphere.geometry.sphere import angular_separation, directions, lambert_uv, mean_spacing, riesz_energy

CAP = 0.9
"""|y| beyond which a vertex of the unit sphere counts as polar: a tenth of the area (Archimedes)."""
MOST = 4096
"""Vertices up to which all pairs are summed and all places written down."""


def nearest_angles(positions: Float[Tensor, "v 3"]) -> Float[Tensor, "v"]:
    """Angle in radians from every vertex to its nearest other."""
    points = directions(positions.detach().double())
    return angular_separation(points, points[nearest_neighbours(points, points, 2)[:, 1]])


def nearest_distances(positions: Float[Tensor, "v 2"]) -> Float[Tensor, "v"]:
    """Distance from every vertex of a flat lattice to its nearest other."""
    points = positions.detach().double()
    return (points - points[nearest_neighbours(points, points, 2)[:, 1]]).norm(dim=-1)


def pole_density(positions: Float[Tensor, "v 3"]) -> float:
    """Density of vertices on the two polar caps |y| > 0.9 as a multiple of the mean density; 1 where even."""
    return float((directions(positions.detach().double())[:, 1].abs() > CAP).double().mean() / (1 - CAP))


def energy_per_pair(positions: Float[Tensor, "v 3"]) -> float | None:
    """Mean 1/ϑ over pairs, the Riesz energy of eq:coulomb; Si(π)/2 = 0.926 for independent uniform vertices."""
    count = len(positions)
    if count > MOST:
        return None
    return float(riesz_energy(positions.detach().double())) / (count * (count - 1) / 2)


def displacement(positions: Float[Tensor, "v 3"], start: Float[Tensor, "v 3"]) -> Float[Tensor, "v"]:
    """Angle in radians by which every vertex moved."""
    return angular_separation(positions.detach().double(), start.detach().double())


def sphere_coverage(positions: Float[Tensor, "v 3"]) -> dict[str, Any]:
    """Every measure of one shell as it is, without its history."""
    nearest = nearest_angles(positions)
    return {
        "nearest": {"mean": float(nearest.mean()), "min": float(nearest.min()), "max": float(nearest.max())},
        "spacing": mean_spacing(len(positions)),
        "pole_density": pole_density(positions),
        "energy": energy_per_pair(positions),
    }


def plane_coverage(positions: Float[Tensor, "v 2"]) -> dict[str, Any]:
    """A flat lattice has no poles; its vertices never move."""
    nearest = nearest_distances(positions)
    return {
        "nearest": {"mean": float(nearest.mean()), "min": float(nearest.min()), "max": float(nearest.max())},
        "spacing": 2 / len(positions) ** 0.5,
        "pole_density": None,
        "energy": None,
    }


def shell_coverage(positions: Tensor, start: Tensor | None) -> dict[str, Any]:
    """Coverage of one shell now and at the start, how far vertices moved, and their places on a map."""
    on_sphere = positions.shape[1] == 3
    measure = sphere_coverage if on_sphere else plane_coverage
    moved = displacement(positions, start) if on_sphere and start is not None else None
    return {
        **measure(positions),
        "start": None if start is None else measure(start),
        "displacement": None if moved is None else {"mean": float(moved.mean()), "max": float(moved.max())},
        "places": _places(positions),
        "start_places": None if moved is None else _places(start),
    }


def _places(positions: Tensor | None) -> list[list[float]] | None:
    """(u, v) of every vertex on the equal-area map, four decimals; none where there are too many to draw."""
    if positions is None or len(positions) > MOST:
        return None
    with torch.no_grad():
        coords = lambert_uv(positions) if positions.shape[1] == 3 else positions
    return [[round(u, 4), round(v, 4)] for u, v in coords.tolist()]
