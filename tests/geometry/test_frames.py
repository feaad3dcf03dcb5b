"""Local frames turn with the cloud; transports compose to 1 (flat) or to the enclosed area (the sphere)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quatsphere.errors import ConfigError
from quatsphere.geometry import frames, sphere
from quatsphere.geometry import quaternion as Q
from quatsphere.geometry.neighbours import knn

CLOUD = torch.randn(1, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Z = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)


@given(st.integers(0, 2**31), st.integers(3, 12), st.booleans())
@settings(max_examples=60, deadline=None)
def test_frames_turn_with_the_cloud_and_edge_rotations_do_not_change(seed: int, k: int, seen: bool) -> None:
    """Up to the sign of the quaternion, which no product in the layer's transport depends on. In random clouds many
    pairs of points have the same neighbours, hence the same plane, and exactly opposite normals."""
    generator = torch.Generator().manual_seed(seed)
    cloud = torch.randn(4, 30, 3, generator=generator, dtype=torch.float64)
    graph, turn = knn(cloud, k), Q.random_unit(dtype=torch.float64, generator=generator)
    viewpoint = 9 * torch.randn(4, 3, generator=generator, dtype=torch.float64) if seen else None
    before = frames.local_frames(cloud, graph, viewpoint)
    turned = None if viewpoint is None else Q.rotate(turn, viewpoint) + 3
    after = frames.local_frames(Q.rotate(turn, cloud) + 3, graph, turned)
    close = {"rtol": 0.0, "atol": 1e-6}
    assert torch.allclose(Q.to_rotation_matrix(after), Q.to_rotation_matrix(Q.multiply(turn, before)), **close)
    for flat in (True, False):
        u, v = (frames.frame_transport(g, graph, flat=flat) for g in (before, after))
        assert torch.allclose(Q.to_rotation_matrix(u), Q.to_rotation_matrix(v), **close)
    offsets = frames.gather_points(cloud, graph) - cloud.unsqueeze(-2)
    local = frames.to_local(before, offsets)
    assert torch.allclose(frames.to_local(after, Q.rotate(turn, offsets)), local, **close)


def test_opposite_normals_are_joined_by_a_half_turn_that_turns_with_the_cloud() -> None:
    """Both ways the same half turn; the rotation of every edge maps the source's normal to the target's."""
    graph = torch.tensor([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])  # every point has the same plane
    points = torch.tensor([[1.0, 0, 0.1], [-1, 0.2, 0.1], [0, 1, 0.1], [0, -1, -0.3]], dtype=torch.float64)
    field = frames.local_frames(points, graph)
    normals = Q.rotate(field, Z.expand(4, 3))
    products = (normals[:, None] * normals[graph]).sum(-1)
    assert products.min() == pytest.approx(-1)
    moved = frames.frame_transport(field, graph)
    assert torch.allclose(Q.rotate(moved, Z.expand(4, 3, 3)), Z.expand(4, 3, 3))  # normal to normal, in local axes
    there, back = moved[0, 2], moved[3, 0]  # 3 -> 0 and 0 -> 3
    assert products[0, 2] == pytest.approx(-1)
    assert torch.allclose(Q.to_rotation_matrix(Q.multiply(there, back)), torch.eye(3, dtype=torch.float64))


def test_normals_of_a_sphere_point_outwards_or_to_the_viewpoint() -> None:
    points = sphere.fibonacci_sphere(400, dtype=torch.float64)
    graph = knn(points, 8)
    normals = Q.rotate(frames.local_frames(points, graph), Z.expand(400, 3))
    assert ((normals * points).sum(-1) > 0.98).all()
    normals = Q.rotate(frames.local_frames(points, graph, torch.zeros(3, dtype=torch.float64)), Z.expand(400, 3))
    assert ((normals * points).sum(-1) < -0.98).all()


def test_holonomy_of_a_spherical_triangle_is_its_area() -> None:
    """1 for the flat transport, a rotation about the normal by the enclosed area for parallel transport."""
    corners = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0.2, 0.3, 1]], dtype=torch.float64)
    corners = corners / corners.norm(dim=-1, keepdim=True)
    field = Q.multiply(frames.shortest_rotation(Z, corners), Q.exp(torch.tensor([[0.0, 0, 0.3]], dtype=torch.float64)))
    loop = torch.tensor([[2], [0], [1]])  # from corner i - 1 to corner i
    angles = []
    for flat in (True, False):
        u = frames.frame_transport(field, loop, flat=flat)[:, 0]
        around = Q.multiply(u[0], Q.multiply(u[2], u[1]))  # 0 -> 1 -> 2 -> 0
        angles.append(2 * Q.log(around).norm())
    assert float(angles[0]) == pytest.approx(0, abs=1e-9)
    assert float(angles[1]) == pytest.approx(float(sphere.triangle_area(*corners)))


@pytest.mark.parametrize("tilt", [0.0, 1e-9, 1e-7, 1e-5, 1e-3, 0.1])
def test_almost_opposite_vectors_are_rotated_onto_each_other(tilt: float) -> None:
    down = Q.rotate(Q.exp(torch.tensor([tilt / 2, 0, 0], dtype=torch.float64)), -Z)
    for axis in (None, torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)):
        turn = frames.shortest_rotation(Z, down, axis)
        assert torch.allclose(Q.rotate(turn, Z), down, rtol=0, atol=1e-8)


def test_missing_neighbours_are_an_error() -> None:
    with pytest.raises(ConfigError, match="needs k neighbours of every point"):
        frames.local_frames(CLOUD[0], knn(CLOUD[0], 4))
