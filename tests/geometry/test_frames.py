"""Local frames turn with the cloud; transports compose to 1 (flat) or to the enclosed area (the sphere)."""

from __future__ import annotations

import pytest
import torch

from quatsphere.errors import ConfigError
from quatsphere.geometry import frames, sphere
from quatsphere.geometry import quaternion as Q
from quatsphere.geometry.neighbours import knn

CLOUD = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
GRAPH = knn(CLOUD, 6)
Z = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)


def test_frames_turn_with_the_cloud_and_edge_rotations_do_not_change() -> None:
    """Up to the sign of the quaternion, which no product in the layer's transport depends on."""
    turn = Q.random_unit(dtype=torch.float64)
    viewpoint = torch.tensor([[0.0, 5.0, 1.0], [9.0, 0.0, 0.0]], dtype=torch.float64)
    for seen in (None, viewpoint):
        before = frames.local_frames(CLOUD, GRAPH, seen)
        turned = None if seen is None else Q.rotate(turn, seen) + 3
        after = frames.local_frames(Q.rotate(turn, CLOUD) + 3, GRAPH, turned)
        assert torch.allclose(Q.to_rotation_matrix(after), Q.to_rotation_matrix(Q.multiply(turn, before)))
        for flat in (True, False):
            u, v = (frames.frame_transport(g, GRAPH, flat=flat) for g in (before, after))
            assert torch.allclose(Q.to_rotation_matrix(u), Q.to_rotation_matrix(v))
        offsets = frames.gather_points(CLOUD, GRAPH) - CLOUD.unsqueeze(-2)
        local = frames.to_local(before, offsets)
        assert torch.allclose(frames.to_local(after, Q.rotate(turn, offsets)), local)


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


def test_opposite_vectors_and_missing_neighbours() -> None:
    down = frames.shortest_rotation(Z, -Z)
    assert torch.allclose(Q.rotate(down, Z), -Z)
    with pytest.raises(ConfigError, match="needs k neighbours of every point"):
        frames.local_frames(CLOUD[0, :3], knn(CLOUD[0, :3], 4))
