"""Draw holonomy.svg: a vector carried around triangles of the sphere by the attention kernel.

Every step is one application of `quaternion_attention` to a vertex with one neighbour. The learned connection
q_i* q_j is flat: with any quaternions the vector returns as it was. With the parallel transport of the sphere as
rotations of edges it returns turned by the area of the triangle.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from quatsphere import quaternion_attention
from quatsphere.geometry import quaternion, sphere
from quatsphere.report.figures import holonomy, save

TARGET = Path(__file__).with_name("holonomy.svg")
STEPS = 7
FLAT, CURVED = "flat: no edge rotations", "parallel transport of the sphere"


def triangle(size: float) -> Tensor:
    """Corners (3, 3) of a triangle with right angles at two corners on the equator, `size` radians apart."""
    corners = [[1.0, 0.0, 0.0], [math.cos(size), math.sin(size), 0.0], [0.0, 0.0, 1.0]]
    return torch.tensor(corners, dtype=torch.float64)


def around(corners: Tensor) -> Tensor:
    """Points (3 STEPS + 1, 3) along the sides of the triangle and back to its first corner."""
    legs = []
    for start, end in zip(corners, corners.roll(-1, 0), strict=True):
        share = torch.arange(STEPS, dtype=torch.float64)[:, None] / STEPS
        angle = sphere.angular_separation(start, end)
        legs.append((torch.sin((1 - share) * angle) * start + torch.sin(share * angle) * end) / torch.sin(angle))
    return torch.cat((*legs, corners[:1]))


def carry(path: Tensor, vector: Tensor, curved: bool) -> Tensor:
    """The vector at every point of the path, in the frame of the surrounding space."""
    frames = quaternion.random_unit(len(path) - 1, dtype=torch.float64)
    frames = torch.cat((frames, frames[:1]))  # learned quaternions: any; the last vertex is the first
    x = quaternion.rotate(quaternion.conjugate(frames[0]), vector)  # the feature is in the vertex's own frame
    found = [vector]
    for here, (start, end) in enumerate(pairwise(path)):
        u = sphere.parallel_transport(start, end)[None, None] if curved else None
        features = torch.cat((x.new_zeros(1), x)).view(1, 1, 1, 1, 4)
        target, source = frames[here + 1].view(1, 1, 1, 4), frames[here].view(1, 1, 1, 4)
        graph, beta = torch.zeros(1, 1, dtype=torch.int64), x.new_ones(1)
        x = quaternion_attention(target, source, features, graph, beta, edge_rotation=u)[0, 0, 0, 0, 1:]
        found.append(quaternion.rotate(frames[here + 1], x))
    return torch.stack(found)


def main() -> None:
    """Write the picture."""
    torch.manual_seed(0)
    paths, vectors, turns = {}, {}, {}
    for name, curved in ((FLAT, False), (CURVED, True)):
        points = []
        for size in torch.linspace(0.1, 1.5, 8).tolist():
            corners = triangle(size)
            found = carry(around(corners), corners.new_tensor([0.0, 0.0, 1.0]), curved)
            angle = sphere.angular_separation(found[0], found[-1])
            points.append([float(sphere.triangle_area(*corners)), float(angle)])
        path = around(triangle(1.2))
        paths[name] = path.numpy()
        vectors[name] = carry(path, path.new_tensor([0.0, 0.0, 1.0]), curved).numpy()
        turns[name] = torch.tensor(points).numpy()
    save(holonomy(paths, vectors, turns), TARGET)


if __name__ == "__main__":
    main()
