"""How the weights C_ij are spread over a target's neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from quatsphere.geometry.neighbours import nearest_neighbours
from quatsphere.geometry.quaternion import distance, log, multiply, normalize, relative
from quatsphere.geometry.sphere import angular_separation, directions, lambert_uv, mean_spacing, riesz_energy
from quatsphere.kernels import Rule, quaternion_attention
from quatsphere.kernels.neighbour_ops import edge_dot
from quatsphere.nn.measures import head_overlap

DIGITS = 6
"""Significant digits that are written."""
QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}


def summary(values: Tensor) -> dict[str, float]:
    """Mean, 5 %, 50 % and 95 % quantile and largest of any number of values."""
    ordered = values.double().flatten().sort().values
    last = len(ordered) - 1
    quantiles = {name: float(ordered[round(share * last)]) for name, share in QUANTILES.items()}
    return {"mean": float(ordered.mean()), **quantiles, "max": float(ordered[-1])}


def weighted_mean(rows: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The mean of equal tensors, each with its weight (batches of different size)."""
    total = torch.stack([row.double() * weight for row, weight in zip(rows, weights, strict=True)])
    return total.sum(0) / sum(weights)


def plain(value: Any) -> Any:
    """The same value made of what JSON knows, numbers with six significant digits."""
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


CAP = 0.9
"""|y| beyond which a vertex of the unit sphere counts as polar: a tenth of the area (Archimedes)."""
MAX_POINTS = 4096
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
    if count > MAX_POINTS:
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
    if positions is None or len(positions) > MAX_POINTS:
        return None
    with torch.no_grad():
        coords = lambert_uv(positions) if positions.shape[1] == 3 else positions
    return [[round(u, 4), round(v, 4)] for u, v in coords.tolist()]


def orientation_spread(
    target_field: Float[Tensor, "b t h 4"], source_field: Float[Tensor, "b s h 4"], neighbours: Int[Tensor, "t k"]
) -> float:
    """Mean rotation angle 2 acos|Re r_ij| in radians between a target and its neighbours; Haar: π/2 + 2/π = 2.207."""
    total = 0.0
    for index in neighbours.unbind(1):
        total += float(distance(target_field, source_field.index_select(1, index)).double().mean())
    return total / neighbours.shape[1]


def score_spread(
    target_field: Float[Tensor, "b t h 4"], source_field: Float[Tensor, "b s h 4"], neighbours: Int[Tensor, "t k"]
) -> float:
    """Standard deviation of Re r_ij over a target's neighbours, root mean square over all targets; Haar: 0.5.

    The variance of each neighbourhood is the unbiased one, so that the value does not depend on k.
    """
    if neighbours.shape[1] < 2:
        return 0.0
    scores = edge_dot(target_field.contiguous(), source_field.contiguous(), neighbours).double()
    return float(scores.var(dim=2).mean().sqrt())


def tangent_norms(field: Float[Tensor, "b v h 4"], base: Float[Tensor, "v h 4"]) -> Float[Tensor, "b v h"]:
    """|ω| of q_eff = q_base ⊗ exp(ω) (eq:perturb): how far the input turned each quaternion, as a tangent."""
    return log(relative(base.double().expand_as(field), field.double())).norm(dim=-1)


def head_similarity(base: Float[Tensor, "v h 4"]) -> float | None:
    """Mean ⟨q^h, q^h'⟩² over pairs of heads: 1 where all heads agree up to sign, 0.25 for Haar; none for one head."""
    heads = base.shape[1]
    return float(head_overlap(base.double()).mean()) / (heads * (heads - 1)) if heads > 1 else None


TARGETS = 2048
"""Targets that are looked at, evenly spread, where a shell has more."""
TILE = 2**20
"""Distances held at once."""

METRICS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "euclidean": lambda target, source: (target - source).norm(dim=-1),
    "geodesic": angular_separation,
    "cosine": lambda target, source: 1 - (directions(target) * directions(source)).sum(-1),
}
"""name -> distance of targets (T, 1, 3) and sources (1, S, 3), each from its definition and nothing else."""


def metric_agreement(targets: Float[Tensor, "t 3"], sources: Float[Tensor, "s 3"], k: int) -> dict[str, float]:
    """Share of targets for which two metrics choose the same k neighbours, as sets, for every pair of metrics."""
    step = -(-len(targets) // TARGETS)
    targets, sources = targets.detach().double()[::step], sources.detach().double()
    chosen = {name: _members(targets, sources, k, metric) for name, metric in METRICS.items()}
    return {
        f"{one}_{other}": float((chosen[one] == chosen[other]).all(1).double().mean())
        for one, other in combinations(METRICS, 2)
    }


def _members(targets: Tensor, sources: Tensor, k: int, metric: Callable[[Tensor, Tensor], Tensor]) -> Bool[Tensor, ...]:
    """(T, S): whether a source is among the k nearest of a target."""
    rows = max(1, TILE // len(sources))
    nearest = torch.cat([_nearest(tile, sources, k, metric) for tile in targets.split(rows)])
    return torch.zeros(len(targets), len(sources), dtype=torch.bool).scatter_(1, nearest, True)


def _nearest(targets: Tensor, sources: Tensor, k: int, metric: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return metric(targets.unsqueeze(1), sources.unsqueeze(0)).sort(dim=1, stable=True).indices[:, :k]


MAX_TRIANGLES = 1000
"""Triangles that are walked."""


def triangles(neighbours: Int[Tensor, "v k"]) -> Int[Tensor, "n 3"]:
    """Vertices (i, j, k) of a shell, each an edge away from the next: j and k in NN(i), k in NN(j)."""
    count, k = neighbours.shape
    corner = torch.arange(count, device=neighbours.device)[:, None].expand(count, k - 1)
    second, third = neighbours[:, :-1], neighbours[:, 1:]
    joined = (neighbours[second] == third.unsqueeze(-1)).any(-1)
    distinct = (second != corner) & (third != corner)
    found = torch.stack((corner, second, third), dim=-1)[joined & distinct]
    return found[:: max(1, len(found) // MAX_TRIANGLES)][:MAX_TRIANGLES]


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


def carried_error(
    field: Float[Tensor, "b v h 4"], corners: Int[Tensor, "n 3"], transport: Rule, backend: str, channels: int = 1
) -> float:
    """Largest change of a unit feature that the kernel carries from i to k to j and home, one neighbour at a time."""
    q = [field.index_select(1, corner) for corner in corners.unbind(1)]
    alone = torch.arange(len(corners), device=field.device).unsqueeze(1)
    generator = torch.Generator().manual_seed(0)
    sent = torch.nn.functional.normalize(torch.randn(*q[0].shape[:3], channels, 4, generator=generator), dim=-1).to(
        q[0]
    )
    beta = q[0].new_ones(q[0].shape[2])
    home = sent
    for source, target in ((0, 2), (2, 1), (1, 0)):
        home = quaternion_attention(q[target], q[source], home, alone, beta, transport=transport, backend=backend)
    return float((home - sent).abs().max())


LARGEST = 64
"""Side of the largest map that is kept; larger images are averaged down."""


def pixel_gradients(model: nn.Module, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "y x"]:
    """Σ over images of |∂ logit of the predicted class / ∂ pixel|, channels summed."""
    images = images.detach().clone().requires_grad_(True)
    logits = model(images)
    (gradient,) = torch.autograd.grad(logits.amax(1).sum(), images)
    return gradient.abs().sum((0, 1)).double()


def as_map(total: Float[Tensor, "y x"]) -> Float[Tensor, "y2 x2"]:
    """The gradients as shares that sum to one, at most 64 x 64."""
    rows, columns = (min(side, LARGEST) for side in total.shape)
    small = F.adaptive_avg_pool2d(total[None, None], (rows, columns))[0, 0]
    return small / small.sum().clamp(min=torch.finfo(small.dtype).tiny)


def effective_share(shares: Float[Tensor, "y x"]) -> float:
    """(Σ g)² / (N Σ g²): the share of pixels that would matter if those that do mattered equally; 1 where all do."""
    square = float(shares.square().sum())
    return float(shares.sum()) ** 2 / (shares.numel() * square) if square > 0 else 0.0


HISTOGRAM_WIDTH, HISTOGRAM_BINS = 0.05, 80


def histogram_edges() -> list[float]:
    """Edges of the bins of weight times k: 0, 0.05, ..., 4; what lies above counts into the last bin."""
    return [round(HISTOGRAM_WIDTH * i, 6) for i in range(HISTOGRAM_BINS + 1)]


def weight_histogram(weights: Float[Tensor, "b t k h"]) -> Float[Tensor, "bins"]:
    """Share of the weights (B, T, k, H), as multiples of the uniform 1/k, in each bin; uniform is all at 1."""
    multiples = (weights.double() * weights.shape[2]).flatten()
    bins = (multiples / HISTOGRAM_WIDTH + 1e-6).long().clamp(max=HISTOGRAM_BINS - 1)
    return torch.bincount(bins, minlength=HISTOGRAM_BINS).double() / len(multiples)
