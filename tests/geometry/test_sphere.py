"""Spheres: closed forms, equal area, poles, angles."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from quatsphere.errors import NumericsError
from quatsphere.geometry import quaternion, sphere
from quatsphere.geometry.sphere import POLE_RADIUS


def test_shell_sizes_and_radii() -> None:
    assert sphere.shell_sizes(128, 5) == [128, 192, 256, 320, 384]
    assert sphere.shell_sizes(5, 3) == [5, 8, 10]  # halves round up
    assert sphere.shell_radii(5) == pytest.approx([1.0, 0.85, 0.7, 0.55, 0.4])
    assert sphere.shell_radii(1) == [1.0]


@pytest.mark.parametrize("count", [16, 128, 384, 5000])
def test_fibonacci_moments(count: int) -> None:
    """Mean 0 and second moment I/3, as for the uniform measure, up to the lattice's discreteness."""
    points = sphere.fibonacci_sphere(count, dtype=torch.float64)
    assert torch.allclose(points.norm(dim=-1), torch.ones(count, dtype=torch.float64))
    assert points.mean(0).norm() < 1 / count
    assert (points.T @ points / count - torch.eye(3) / 3).abs().max() < 1 / count


def test_fibonacci_spacing() -> None:
    """Nearest neighbours of a Fibonacci lattice of 384 points are at least 0.85 mean spacings apart."""
    points = sphere.fibonacci_sphere(384, dtype=torch.float64)
    angles = sphere.angular_separation(points[:, None], points[None])
    angles.fill_diagonal_(10)
    assert angles.min() > 0.85 * sphere.mean_spacing(384)
    assert abs(angles.min(dim=1).values.mean() / sphere.mean_spacing(384) - 0.95) < 0.05


def test_lambert_covers_the_square_uniformly() -> None:
    uv = sphere.lambert_uv(sphere.fibonacci_sphere(20_000, dtype=torch.float64))
    assert uv.abs().max() <= 1
    counts = torch.histogramdd(uv, bins=[8, 8], range=[-1, 1, -1, 1]).hist
    assert (counts / (20_000 / 64) - 1).abs().max() < 0.03


def test_lambert_is_the_papers_formula() -> None:
    points = sphere.fibonacci_sphere(64, radius=0.7, dtype=torch.float64)
    uv = sphere.lambert_uv(points)
    assert torch.allclose(uv[:, 0], torch.atan2(points[:, 2], points[:, 0]) / math.pi)
    assert torch.allclose(uv[:, 1], points[:, 1] / 0.7)


def test_lambert_gradient_away_from_the_poles() -> None:
    points = sphere.fibonacci_sphere(200, dtype=torch.float64).requires_grad_()

    def exact(p: torch.Tensor) -> torch.Tensor:
        unit = p / p.norm(dim=-1, keepdim=True)
        return torch.stack((torch.atan2(unit[:, 2], unit[:, 0]) / math.pi, unit[:, 1]), dim=-1)

    ours, theirs = (torch.autograd.grad(f(points).pow(2).sum(), points)[0] for f in (sphere.lambert_uv, exact))
    assert torch.allclose(ours, theirs)


@pytest.mark.parametrize("distance", [0.0, 1e-20, 1e-6, POLE_RADIUS / 2, POLE_RADIUS])
def test_lambert_gradient_is_bounded_at_the_poles(distance: float) -> None:
    point = torch.tensor([[distance, 1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    uv = sphere.lambert_uv(point)
    assert torch.isfinite(uv).all()
    (gradient,) = torch.autograd.grad(uv[:, 0].sum(), point)
    assert torch.isfinite(gradient).all()
    assert gradient.norm() <= 1.001 / (math.pi * POLE_RADIUS)


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-4, 1.0, math.pi / 2, math.pi - 1e-9, math.pi])
def test_angular_separation_is_exact_at_both_ends(angle: float) -> None:
    a = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    b = 0.4 * torch.tensor([math.cos(angle), math.sin(angle), 0.0], dtype=torch.float64)
    assert abs(float(sphere.angular_separation(a, b)) - angle) <= 2e-16


def test_angular_separation_gradient() -> None:
    a = sphere.fibonacci_sphere(20, dtype=torch.float64).requires_grad_()
    b = sphere.fibonacci_sphere(24, dtype=torch.float64)[:20].flip(0).clone().requires_grad_()
    assert gradcheck(sphere.angular_separation, (a, b))


@settings(max_examples=30)
@given(st.integers(0, 10**6))
def test_parallel_transport_takes_tangents_to_tangents(seed: int) -> None:
    """Start to end, the great circle's direction to itself, its normal to itself; back again is the inverse."""
    a, b = sphere.directions(torch.randn(2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    u, normal = sphere.parallel_transport(a, b), sphere.directions(torch.linalg.cross(a, b))
    assert torch.allclose(quaternion.rotate(u, a), b, atol=1e-9)
    assert torch.allclose(quaternion.rotate(u, normal), normal, atol=1e-9)
    along = torch.linalg.cross(normal.expand(2, 3), torch.stack((a, b)))
    assert torch.allclose(quaternion.rotate(u, along[0]), along[1], atol=1e-9)
    assert torch.allclose(sphere.parallel_transport(b, a), quaternion.conjugate(u), atol=1e-9)


def test_parallel_transport_between_antipodes_is_one_line() -> None:
    a = torch.tensor([0.0, 0.6, 0.8])
    with pytest.raises(NumericsError, match="antipodal points have no unique parallel transport"):
        sphere.parallel_transport(a, -a)


def test_area_of_an_octant() -> None:
    """An eighth of 4π; negative the other way round; areas of a fan add up."""
    x, y, z = torch.eye(3, dtype=torch.float64)
    assert torch.allclose(sphere.triangle_area(x, y, z), torch.tensor(math.pi / 2, dtype=torch.float64))
    assert torch.allclose(sphere.triangle_area(y, x, z), torch.tensor(-math.pi / 2, dtype=torch.float64))
    middle = sphere.directions(x + y + z)
    parts = [sphere.triangle_area(a, b, middle) for a, b in ((x, y), (y, z), (z, x))]
    assert torch.allclose(sum(parts), sphere.triangle_area(x, y, z))
