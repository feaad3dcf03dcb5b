"""Local frames of point clouds, and the transport between them, as unit quaternions for the edges of a graph."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.geometry.quaternion import conjugate, multiply, normalize, relative, rotate


def local_frames(
    points: Float[Tensor, "*b v 3"], neighbours: Int[Tensor, "*b v k"], viewpoint: Float[Tensor, "*b 3"] | None = None
) -> Float[Tensor, "*b v 4"]:
    """Unit quaternions g_i whose rotation maps the z axis to the normal at point i; they turn with the cloud.

    The normal is the direction in which the point and its neighbours vary least. It points to the side of `viewpoint`
    or, without one, away from the centroid. The x axis points away from the centroid along the surface. The result is
    always a frame, but it need not turn with the cloud where these directions are not determined: if the two smallest
    variances are equal, the viewpoint or centroid is in the tangent plane, the centroid is on the normal, or distances
    of neighbours are equal.
    """
    if neighbours.numel() == 0 or int(neighbours.min()) < 0:
        raise ConfigError("local_frames needs k neighbours of every point, without -1; use a smaller k")
    outward = points - points.mean(-2, keepdim=True)
    members = torch.cat((points.unsqueeze(-2), gather_points(points, neighbours)), dim=-2)
    centred = members - members.mean(-2, keepdim=True)
    normal = torch.linalg.eigh(centred.transpose(-1, -2) @ centred).eigenvectors[..., 0]
    side = outward if viewpoint is None else viewpoint.unsqueeze(-2) - points
    normal = torch.where((normal * side).sum(-1, keepdim=True) < 0, -normal, normal)
    radial = outward - (outward * normal).sum(-1, keepdim=True) * normal
    length = radial.norm(dim=-1, keepdim=True)
    x = torch.where(length > 1e-6 * outward.norm(dim=-1, keepdim=True), radial, _across(normal))
    x = x / x.norm(dim=-1, keepdim=True)
    first, _, last = _axes(normal)
    tilt = shortest_rotation(last, normal)
    east = rotate(tilt, first.expand_as(normal))
    north = torch.linalg.cross(normal, east)
    half = torch.atan2((x * north).sum(-1), (x * east).sum(-1)) / 2
    spin = torch.stack((half.cos(), *(half.sin() * part for part in normal.unbind(-1))), dim=-1)
    return multiply(spin, tilt)


def frame_transport(
    frames: Float[Tensor, "*b v 4"], neighbours: Int[Tensor, "*b v k"], *, flat: bool = False
) -> Float[Tensor, "*b v k 4"]:
    """Edge rotations u_ij = g_i* ⊗ t_ij ⊗ g_j, where t_ij is the shortest rotation of the normal at j to that at i.

    The discrete Levi-Civita connection of the surface: around a loop the rotations compose to the curvature inside it.
    With `flat`, t_ij = 1: a change of frames alone, whose rotations compose to 1. Two points with the same neighbours
    have the same plane, and may have opposite normals: then t_ij is the half turn about the axis between their x axes,
    which turns with the cloud.
    """
    there = gather_points(frames, neighbours)
    if not flat:
        x, _, normals = (rotate(frames, axis.expand(*frames.shape[:-1], 3)) for axis in _axes(frames))
        between = x.unsqueeze(-2) + gather_points(x, neighbours)
        axis = torch.where(between.norm(dim=-1, keepdim=True) > 1e-3, between, x.unsqueeze(-2))
        turn = shortest_rotation(gather_points(normals, neighbours), normals.unsqueeze(-2), axis)
        there = multiply(turn, there)
    return relative(frames.unsqueeze(-2), there)


def to_local(frames: Float[Tensor, "*b v 4"], vectors: Float[Tensor, "*b v k 3"]) -> Float[Tensor, "*b v k 3"]:
    """Components of vectors at each point in its local frame."""
    return rotate(conjugate(frames).unsqueeze(-2), vectors)


def shortest_rotation(
    a: Float[Tensor, "*#b 3"], b: Float[Tensor, "*#b 3"], axis: Float[Tensor, "*#b 3"] | None = None
) -> Float[Tensor, "*out 4"]:
    """Unit quaternion of the shortest rotation of unit vector a to b.

    For opposite vectors it is the half turn about `axis`, made perpendicular to a, or about any perpendicular axis.
    """
    a, b = torch.broadcast_tensors(a, b)
    dot = (a * b).sum(-1, keepdim=True)
    opposite = 1 + dot < 64 * torch.finfo(dot.dtype).eps  # 1 + dot is rounding error
    axis = _across(a) if axis is None else axis - (axis * a).sum(-1, keepdim=True) * a
    half_turn = torch.cat((torch.zeros_like(dot), axis / axis.norm(dim=-1, keepdim=True).clamp_min(1e-12)), dim=-1)
    start = torch.where(opposite, -a, a)  # the half turn first; the rest is a small rotation
    q = torch.cat((1 + (start * b).sum(-1, keepdim=True), torch.linalg.cross(start, b)), dim=-1)
    return normalize(torch.where(opposite, multiply(q, half_turn), q))


def _across(vector: Tensor) -> Tensor:
    """A vector perpendicular to a unit vector: the coordinate axis farthest from it, without its part along it."""
    axis = torch.zeros_like(vector).scatter(-1, vector.abs().argmin(-1, keepdim=True), 1.0)
    return axis - (axis * vector).sum(-1, keepdim=True) * vector


def _axes(like: Tensor) -> tuple[Tensor, ...]:
    """Unit vectors along x, y and z."""
    return torch.eye(3, dtype=like.dtype, device=like.device).unbind()


def gather_points(values: Float[Tensor, "*b v c"], neighbours: Int[Tensor, "*b v k"]) -> Float[Tensor, "*b v k c"]:
    """Rows of the neighbours of every point."""
    *batch, points, k = neighbours.shape
    index = neighbours.reshape(*batch, points * k, 1).expand(*batch, points * k, values.shape[-1])
    return values.gather(-2, index).unflatten(-2, (points, k))
