"""Nested spheres: Fibonacci lattices, shell sizes and radii, Lambert image coordinates, angles without acos.

The polar axis is y, as in the paper's projection. Shells count from 0 (outer) in code, from 1 in the paper.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from quatsphere.errors import NumericsError
from quatsphere.geometry.quaternion import normalize

POLE_RADIUS = 1e-3
"""Distance from the polar axis below which the gradient of the longitude stops growing."""


def shell_sizes(base_vertices: int, shells: int) -> list[int]:
    """V_l = round(V_1 (1 + (l-1)/2)), halves up; [128, 192, 256, 320, 384] for the paper's V_1 = 128, L = 5."""
    return [math.floor(base_vertices * (1 + 0.5 * shell) + 0.5) for shell in range(shells)]


def shell_radii(shells: int, outer: float = 1.0, inner: float = 0.4) -> list[float]:
    """Radii that fall linearly from `outer` to `inner`."""
    steps = max(1, shells - 1)
    return [outer + (inner - outer) * shell / steps for shell in range(shells)]


def fibonacci_sphere(count: int, radius: float = 1.0, dtype: torch.dtype = torch.float32) -> Float[Tensor, "{count} 3"]:
    """Fibonacci lattice `(V, 3)`: heights y_i = 1 - (2i+1)/V, longitudes i times the golden angle."""
    index = torch.arange(count, dtype=torch.float64)
    y = 1 - (2 * index + 1) / count
    horizontal = (1 - y * y).sqrt()
    longitude = index * math.pi * (3 - math.sqrt(5))
    return (radius * torch.stack((horizontal * longitude.cos(), y, horizontal * longitude.sin()), dim=-1)).to(dtype)


def directions(positions: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
    """Unit vectors p / ‖p‖."""
    return positions / positions.norm(dim=-1, keepdim=True)


def lambert_uv(positions: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 2"]:
    """Image coordinates (u, v) = (arctan2(z, x)/π, y) of p/‖p‖: equal-area, onto [-1, 1]².

    ∂u/∂p grows like 1/(π ρ) with the distance ρ from the polar axis. The value is exact everywhere; in the
    gradient ρ is clamped from below at POLE_RADIUS, so it stays below 1/(π POLE_RADIUS) and is exact elsewhere:
    u is written as its constant value plus a term that is zero but carries (x dz - z dx)/(π ρ²).
    """
    x, y, z = directions(positions).unbind(-1)
    fixed_x, fixed_z = x.detach(), z.detach()
    square = (fixed_x**2 + fixed_z**2).clamp(min=POLE_RADIUS**2)
    zero_with_gradient = (fixed_x * z - fixed_z * x) / square
    u = (torch.atan2(fixed_z, fixed_x) + zero_with_gradient) / math.pi
    return torch.stack((u, y), dim=-1)


def angular_separation(a: Float[Tensor, "*#batch 3"], b: Float[Tensor, "*#batch 3"]) -> Float[Tensor, "*out"]:
    """Angle ϑ in [0, π] between directions of any length: atan2(‖a × b‖, a·b), exact near 0 and π."""
    a, b = torch.broadcast_tensors(a, b)
    return torch.atan2(torch.linalg.cross(a, b).norm(dim=-1), (a * b).sum(-1))


def parallel_transport(start: Float[Tensor, "*#batch 3"], end: Float[Tensor, "*#batch 3"]) -> Float[Tensor, "*out 4"]:
    """Unit quaternion of the least rotation that takes one direction to another, (1 + a·b, a × b) normalised.

    It is the Levi-Civita transport of the sphere along the great circle: it takes tangent vectors at `start` to tangent
    vectors at `end`. As rotations of edges, u_ij = parallel_transport(p_j, p_i). Antipodal directions, which infinitely
    many great circles join, raise NumericsError.
    """
    a, b = torch.broadcast_tensors(directions(start), directions(end))
    real = 1 + (a * b).sum(-1, keepdim=True)
    if bool((real < 8 * torch.finfo(real.dtype).eps).any()):
        raise NumericsError("antipodal points have no unique parallel transport; move one of them")
    return normalize(torch.cat((real, torch.linalg.cross(a, b)), dim=-1), check=False)


def triangle_area(
    a: Float[Tensor, "*batch 3"], b: Float[Tensor, "*batch 3"], c: Float[Tensor, "*batch 3"]
) -> Float[Tensor, "*batch"]:
    """Area of a triangle on the unit sphere, positive if a, b, c run anticlockwise seen from outside.

    tan(area / 2) = a·(b × c) / (1 + a·b + b·c + c·a) (Van Oosterom and Strackee, 1983).
    """
    a, b, c = directions(a), directions(b), directions(c)
    volume = (a * torch.linalg.cross(b, c)).sum(-1)
    return 2 * torch.atan2(volume, 1 + (a * b).sum(-1) + (b * c).sum(-1) + (c * a).sum(-1))


def mean_spacing(count: int) -> float:
    """Side of a square with the area of the unit sphere per vertex, √(4π/V) radians."""
    return math.sqrt(4 * math.pi / count)


def riesz_energy(points: Float[Tensor, "v 3"]) -> Float[Tensor, ""]:
    """Σ_{i<j} 1/ϑ_ij, the energy whose force is eq:coulomb: low when vertices are spread evenly."""
    i, j = torch.triu_indices(len(points), len(points), offset=1)
    return (1 / angular_separation(points[i], points[j])).sum()
