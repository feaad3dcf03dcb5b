"""Coverage of solids and lattices, agreement of metrics, holonomy."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from quatsphere.diagnostics import measures
from quatsphere.diagnostics.measures import (
    loop_angle,
    loop_transport_error,
    metric_agreement,
    triangle_angles,
    triangles,
)
from quatsphere.geometry.neighbours import nearest_neighbours
from quatsphere.geometry.plane import flat_lattice
from quatsphere.geometry.quaternion import exp, random_unit
from quatsphere.geometry.sphere import fibonacci_sphere


def octahedron(radius: float = 1.0) -> Tensor:
    return radius * torch.cat((torch.eye(3), -torch.eye(3)))


def icosahedron() -> Tensor:
    golden = (1 + math.sqrt(5)) / 2
    pairs = [(a, golden * b) for a in (1, -1) for b in (1, -1)]
    return torch.tensor([(0.0, a, b) for a, b in pairs] + [(a, b, 0) for a, b in pairs] + [(b, 0, a) for a, b in pairs])


@pytest.mark.parametrize(("solid", "angle"), [(octahedron(0.4), math.pi / 2), (icosahedron(), math.atan(2))])
def test_nearest_angles_of_solids(solid: Tensor, angle: float) -> None:
    assert torch.allclose(measures.nearest_separations(solid), torch.full((len(solid),), angle, dtype=torch.float64))


def test_fibonacci_spacing() -> None:
    """The closest pair of a Fibonacci lattice is 3.09/√V apart; evenly packed vertices would be 3.81/√V."""
    for count in (400, 1000):
        least = float(measures.nearest_separations(fibonacci_sphere(count, dtype=torch.float64)).min())
        assert least * math.sqrt(count) == pytest.approx(3.09, abs=0.02)


def test_energy_of_an_octahedron() -> None:
    """12 pairs at π/2, three at π."""
    assert measures.energy_per_pair(octahedron()) == pytest.approx((12 * 2 / math.pi + 3 / math.pi) / 15)


def test_energy_of_independent_vertices() -> None:
    """The mean of 1/ϑ over the sphere is Si(π)/2 = 0.926; a lattice has less because it has no close pairs."""
    points = torch.nn.functional.normalize(torch.randn(2000, 3, generator=torch.Generator().manual_seed(0)), dim=-1)
    uniform = measures.energy_per_pair(points)
    lattice = measures.energy_per_pair(fibonacci_sphere(2000))
    assert uniform == pytest.approx(0.926, abs=0.01)
    assert lattice is not None
    assert lattice < 0.926
    assert measures.energy_per_pair(torch.zeros(measures.MAX_POINTS + 1, 3)) is None


@pytest.mark.parametrize("count", [20, 100, 1000])
def test_fibonacci_lattice_is_even_at_the_poles(count: int) -> None:
    """Heights are evenly spaced, and area is proportional to height."""
    assert measures.pole_density(fibonacci_sphere(count)) == pytest.approx(1)


def test_pole_density_of_solids() -> None:
    assert measures.pole_density(octahedron()) == pytest.approx(2 / 6 / 0.1)
    assert measures.pole_density(torch.eye(3)[[0, 2]]) == 0


def test_displacement_is_an_angle() -> None:
    start = torch.tensor([[1.0, 0, 0], [0, 0.5, 0]])
    moved = torch.tensor([[math.cos(0.2), math.sin(0.2), 0], [0, 0.5, 0]])
    shell = measures.shell_coverage(moved, start)
    assert shell["displacement"] == pytest.approx({"mean": 0.1, "max": 0.2}, abs=1e-6)
    assert shell["start"]["nearest"]["mean"] == pytest.approx(math.pi / 2)
    assert shell["places"][1] == [0, 1]
    assert measures.shell_coverage(moved, None)["displacement"] is None


def test_a_flat_lattice() -> None:
    shell = measures.shell_coverage(flat_lattice(64, 8), flat_lattice(64, 8))
    assert shell["nearest"] == pytest.approx({"mean": 0.25, "min": 0.25, "max": 0.25})
    assert (shell["spacing"], shell["pole_density"], shell["energy"], shell["displacement"]) == (0.25, None, None, None)


def test_metrics_agree_between_spheres() -> None:
    """Both metrics induce the same ranking on exact radii."""
    outer, inner = fibonacci_sphere(96, 1.0, torch.float64), fibonacci_sphere(128, 0.7, torch.float64)
    assert set(metric_agreement(inner, outer, 12).values()) == {1.0}


def test_metrics_disagree_off_the_sphere() -> None:
    """On different radii the nearest by distance is not the nearest by angle."""
    sources = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.05, 0.0]])
    found = metric_agreement(torch.tensor([[0.2, 0.0, 0.0]]), sources, 1)
    assert found == {"euclidean_geodesic": 0.0, "euclidean_cosine": 0.0, "geodesic_cosine": 1.0}


def test_angle_of_loops() -> None:
    """Three rotations about one axis add up: 2 (0.1 + 0.2 + 0.3); a rotation and its inverse cancel."""
    turns = exp(torch.tensor([[0.1, 0, 0], [0.2, 0, 0], [0.3, 0, 0]], dtype=torch.float64))
    assert loop_angle(turns).item() == pytest.approx(1.2)
    assert loop_angle(exp(torch.tensor([[0.1, 0, 0], [-0.1, 0, 0]], dtype=torch.float64))).item() < 1e-12
    quarter = exp(torch.pi / 4 * torch.eye(3, dtype=torch.float64)[:2])  # 90 degrees about x, then about y
    assert loop_angle(quarter).item() == pytest.approx(2 * math.pi / 3)


def test_triangles_have_no_holonomy() -> None:
    positions = fibonacci_sphere(40)
    neighbours = nearest_neighbours(positions, positions, 10)
    corners = triangles(neighbours)
    assert len(corners) > 40
    for i, j, k in corners.tolist():
        assert len({i, j, k}) == 3
        assert {j, k} <= set(neighbours[i].tolist())
        assert k in neighbours[j]
    field = random_unit(2, 40, 3)
    assert float(triangle_angles(field, corners).max()) < 1e-6
    assert loop_transport_error(field, corners, "sandwich", "factored") < 1e-5
    assert loop_transport_error(field, corners, "one_sided", "factored") < 1e-5


def test_a_graph_without_triangles() -> None:
    assert not len(triangles(torch.arange(6)[:, None]))
