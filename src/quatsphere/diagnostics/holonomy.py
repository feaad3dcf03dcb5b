"""Flatness: what is carried round a closed loop of the graph comes back unturned, r_ij r_jk r_ki = 1.

r_ij = q_i* q_j makes it so (docs: the connection is flat); this measures it on a trained model, once on the relative
quaternions and once by letting the model's own kernel carry features round.
"""

from __future__ import annotations

from functools import reduce

import torch
from jaxtyping import Float, Int
from torch import Tensor

from quatsphere.geometry.quaternion import distance, multiply, normalize, relative
from quatsphere.kernels import quaternion_attention

MOST = 1000
"""Triangles that are walked."""


def triangles(neighbours: Int[Tensor, "v k"]) -> Int[Tensor, "n 3"]:
    """Vertices (i, j, k) of a shell, each an edge away from the next: j and k in NN(i), k in NN(j)."""
    count, k = neighbours.shape
    corner = torch.arange(count, device=neighbours.device)[:, None].expand(count, k - 1)
    second, third = neighbours[:, :-1], neighbours[:, 1:]
    joined = (neighbours[second] == third.unsqueeze(-1)).any(-1)
    distinct = (second != corner) & (third != corner)
    found = torch.stack((corner, second, third), dim=-1)[joined & distinct]
    return found[:: max(1, len(found) // MOST)][:MOST]


def loop_angle(relatives: Float[Tensor, "*batch n 4"]) -> Float[Tensor, "*batch"]:
    """Rotation angle of the product of n relative quaternions along a loop."""
    product = normalize(reduce(multiply, relatives.unbind(-2)))
    identity = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=product.dtype, device=product.device)
    return distance(product, identity)


def triangle_angles(field: Float[Tensor, "b v h 4"], corners: Int[Tensor, "n 3"]) -> Float[Tensor, "b n h"]:
    """Holonomy angle of every triangle, image and head, from r_ij r_jk r_ki."""
    q = [field.double().index_select(1, corner) for corner in corners.unbind(1)]
    pairs = [relative(q[a], q[b]) for a, b in ((0, 1), (1, 2), (2, 0))]
    return loop_angle(torch.stack(pairs, dim=-2))


def carried_error(field: Float[Tensor, "b v h 4"], corners: Int[Tensor, "n 3"], transport: str, backend: str) -> float:
    """Largest change of a unit feature that the kernel carries from i to k to j and home, one neighbour at a time."""
    q = [field.index_select(1, corner) for corner in corners.unbind(1)]
    alone = torch.arange(len(corners), device=field.device).unsqueeze(1)
    generator = torch.Generator().manual_seed(0)
    sent = torch.nn.functional.normalize(torch.randn(*q[0].shape[:3], 1, 4, generator=generator), dim=-1).to(q[0])
    beta = q[0].new_ones(q[0].shape[2])
    home = sent
    for source, target in ((0, 2), (2, 1), (1, 0)):
        home = quaternion_attention(q[target], q[source], home, alone, beta, transport=transport, backend=backend)
    return float((home - sent).abs().max())
