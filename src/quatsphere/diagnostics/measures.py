"""Measures of a trained model: routing weights, quaternion fields, vertices, graphs, holonomy, receptive field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from quatsphere.nn.trace import head_overlap

# Summaries

SIGNIFICANT_DIGITS = 6
"""Digits of every number in the output of `to_json_values`."""
QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}


def summarize(values: Tensor) -> dict[str, float]:
    """Return mean, 5 %, 50 % and 95 % quantile and maximum of a tensor."""
    ordered = values.double().flatten().sort().values
    last = len(ordered) - 1
    quantiles = {name: float(ordered[round(fraction * last)]) for name, fraction in QUANTILES.items()}
    return {"mean": float(ordered.mean()), **quantiles, "max": float(ordered[-1])}


def weighted_mean(rows: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the weighted mean of tensors of equal shape (batches of different size)."""
    total = torch.stack([row.double() * weight for row, weight in zip(rows, weights, strict=True)])
    return total.sum(0) / sum(weights)


def beta_band(records: Sequence[Mapping[str, Any]]) -> dict[str, list[list[float | None]]]:
    """Return the smallest and the largest logged β of the heads, by epoch and step."""
    epochs = [[[b for b in heads if b is not None] for heads in record.get("beta_heads") or []] for record in records]
    return {
        f"beta_{pick.__name__}": [[pick(heads, default=None) for heads in steps] for steps in epochs]
        for pick in (min, max)
    }


def to_json_values(value: Any) -> Any:
    """Convert tensors and tuples to lists, keys to strings, and round floats to six significant digits."""
    if isinstance(value, Tensor):
        return to_json_values(value.tolist())
    if isinstance(value, dict):
        return {str(key): to_json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_values(item) for item in value]
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if isinstance(value, float) else value


# Routing weights

HISTOGRAM_WIDTH, HISTOGRAM_BINS = 0.05, 80


def histogram_edges() -> list[float]:
    """Return the bin edges of weight times k: 0, 0.05, ..., 4; larger values count into the last bin."""
    return [round(HISTOGRAM_WIDTH * i, 6) for i in range(HISTOGRAM_BINS + 1)]


def weight_histogram(weights: Float[Tensor, "b t k h"]) -> Float[Tensor, "bins"]:
    """Return the fraction of the weights in each bin, as multiples of the uniform weight 1/k."""
    multiples = (weights.double() * weights.shape[2]).flatten()
    bins = (multiples / HISTOGRAM_WIDTH + 1e-6).long().clamp(max=HISTOGRAM_BINS - 1)
    return torch.bincount(bins, minlength=HISTOGRAM_BINS).double() / len(multiples)


# Quaternion fields


def orientation_spread(
    target_field: Float[Tensor, "b t h 4"], source_field: Float[Tensor, "b s h 4"], neighbours: Int[Tensor, "t k"]
) -> float:
    """Return the mean rotation angle 2 acos|Re r_ij| in radians between targets and neighbours.

    For Haar-random quaternions it is π/2 + 2/π = 2.207.
    """
    total = 0.0
    for index in neighbours.unbind(1):
        total += float(distance(target_field, source_field.index_select(1, index)).double().mean())
    return total / neighbours.shape[1]


def score_spread(
    target_field: Float[Tensor, "b t h 4"], source_field: Float[Tensor, "b s h 4"], neighbours: Int[Tensor, "t k"]
) -> float:
    """Return the standard deviation of Re r_ij over neighbours, root mean square over targets; 0.5 for Haar.

    The variance within each neighbourhood is unbiased, so the value does not depend on k.
    """
    if neighbours.shape[1] < 2:
        return 0.0
    scores = edge_dot(target_field.contiguous(), source_field.contiguous(), neighbours).double()
    return float(scores.var(dim=2).mean().sqrt())


def tangent_norms(field: Float[Tensor, "b v h 4"], base: Float[Tensor, "v h 4"]) -> Float[Tensor, "b v h"]:
    """Return |ω| of q_eff = q_base ⊗ exp(ω) (eq:perturb), the size of the perturbation."""
    return log(relative(base.double().expand_as(field), field.double())).norm(dim=-1)


def head_similarity(base: Float[Tensor, "v h 4"]) -> float | None:
    """Return the mean ⟨q^h, q^h'⟩² over pairs of heads: 1 if all agree up to sign, 0.25 for Haar, None for one head."""
    heads = base.shape[1]
    return float(head_overlap(base.double()).mean()) / (heads * (heads - 1)) if heads > 1 else None


# Vertices

POLAR_HEIGHT = 0.9
"""|y| beyond which a vertex of the unit sphere counts as polar: a tenth of the area (Archimedes)."""
MAX_POINTS = 4096
"""Largest number of vertices for which all pairs are summed and all map coordinates are stored."""


def nearest_separations(positions: Float[Tensor, "v c"]) -> Float[Tensor, "v"]:
    """Return the angle in radians (on a plane: the distance) from every vertex to its nearest neighbour."""
    points = positions.detach().double()
    if points.shape[1] == 2:
        return (points - points[nearest_neighbours(points, points, 2)[:, 1]]).norm(dim=-1)
    points = directions(points)
    return angular_separation(points, points[nearest_neighbours(points, points, 2)[:, 1]])


def pole_density(positions: Float[Tensor, "v 3"]) -> float:
    """Return the vertex density on the two polar caps |y| > 0.9 as a multiple of the mean density."""
    polar = directions(positions.detach().double())[:, 1].abs() > POLAR_HEIGHT
    return float(polar.double().mean() / (1 - POLAR_HEIGHT))


def energy_per_pair(positions: Float[Tensor, "v 3"]) -> float | None:
    """Return the mean 1/ϑ over pairs, the Riesz energy of eq:coulomb.

    For independent uniform vertices it is Si(π)/2 = 0.926. None above `MAX_POINTS` vertices.
    """
    count = len(positions)
    if count > MAX_POINTS:
        return None
    return float(riesz_energy(positions.detach().double())) / (count * (count - 1) / 2)


def displacement(positions: Float[Tensor, "v 3"], start: Float[Tensor, "v 3"]) -> Float[Tensor, "v"]:
    """Return the angle in radians between the current and the initial position of every vertex."""
    return angular_separation(positions.detach().double(), start.detach().double())


def vertex_coverage(positions: Tensor) -> dict[str, Any]:
    """Return spacing, polar density and energy of one shell; a flat lattice has no poles and no energy."""
    on_sphere = positions.shape[1] == 3
    nearest = nearest_separations(positions)
    return {
        "nearest": {"mean": float(nearest.mean()), "min": float(nearest.min()), "max": float(nearest.max())},
        "spacing": mean_spacing(len(positions)) if on_sphere else 2 / len(positions) ** 0.5,
        "pole_density": pole_density(positions) if on_sphere else None,
        "energy": energy_per_pair(positions) if on_sphere else None,
    }


def shell_coverage(positions: Tensor, start: Tensor | None) -> dict[str, Any]:
    """Return the coverage of one shell after and before training, displacements, and map coordinates.

    Vertices of a flat lattice never move, so their displacement is None, as it is without `start`.
    """
    moved = displacement(positions, start) if positions.shape[1] == 3 and start is not None else None
    return {
        **vertex_coverage(positions),
        "start": None if start is None else vertex_coverage(start),
        "displacement": None if moved is None else {"mean": float(moved.mean()), "max": float(moved.max())},
        "places": _map_coords(positions),
        "start_places": None if moved is None else _map_coords(start),
    }


def _map_coords(positions: Tensor | None) -> list[list[float]] | None:
    """Return (u, v) of every vertex on the equal-area map, four decimals; None above `MAX_POINTS` vertices."""
    if positions is None or len(positions) > MAX_POINTS:
        return None
    with torch.no_grad():
        coords = lambert_uv(positions) if positions.shape[1] == 3 else positions
    return [[round(u, 4), round(v, 4)] for u, v in coords.tolist()]


# Neighbour graphs

MAX_TARGETS = 2048
"""Largest number of targets to compare, evenly spaced."""
MAX_DISTANCES = 2**20
"""Largest number of distances in memory."""

DistanceFunction = Callable[[Tensor, Tensor], Tensor]
GRAPH_METRICS: dict[str, DistanceFunction] = {
    "euclidean": lambda target, source: (target - source).norm(dim=-1),
    "geodesic": angular_separation,
    "cosine": lambda target, source: 1 - (directions(target) * directions(source)).sum(-1),
}
"""name -> distance of targets (T, 1, 3) and sources (1, S, 3), written out from its definition."""


def metric_agreement(targets: Float[Tensor, "t 3"], sources: Float[Tensor, "s 3"], k: int) -> dict[str, float]:
    """Return, for every pair of metrics, the fraction of targets with the same set of k nearest neighbours."""
    step = -(-len(targets) // MAX_TARGETS)
    targets, sources = targets.detach().double()[::step], sources.detach().double()
    chosen = {name: _neighbour_mask(targets, sources, k, metric) for name, metric in GRAPH_METRICS.items()}
    return {
        f"{one}_{other}": float((chosen[one] == chosen[other]).all(1).double().mean())
        for one, other in combinations(GRAPH_METRICS, 2)
    }


def _neighbour_mask(targets: Tensor, sources: Tensor, k: int, metric: DistanceFunction) -> Bool[Tensor, "t s"]:
    """Return the mask of the k nearest sources of every target."""
    rows = max(1, MAX_DISTANCES // len(sources))
    distances = (metric(tile.unsqueeze(1), sources.unsqueeze(0)) for tile in targets.split(rows))
    nearest = torch.cat([tile.sort(dim=1, stable=True).indices[:, :k] for tile in distances])
    return torch.zeros(len(targets), len(sources), dtype=torch.bool).scatter_(1, nearest, True)


# Holonomy

MAX_TRIANGLES = 1000


def triangles(neighbours: Int[Tensor, "v k"]) -> Int[Tensor, "n 3"]:
    """Return vertices (i, j, k) of a shell with j and k in NN(i) and k in NN(j); at most `MAX_TRIANGLES`."""
    count, k = neighbours.shape
    corner = torch.arange(count, device=neighbours.device)[:, None].expand(count, k - 1)
    second, third = neighbours[:, :-1], neighbours[:, 1:]
    joined = (neighbours[second] == third.unsqueeze(-1)).any(-1)
    distinct = (second != corner) & (third != corner)
    found = torch.stack((corner, second, third), dim=-1)[joined & distinct]
    return found[:: max(1, len(found) // MAX_TRIANGLES)][:MAX_TRIANGLES]


def loop_angle(relatives: Float[Tensor, "*batch n 4"]) -> Float[Tensor, "*batch"]:
    """Return the rotation angle of the product of n relative quaternions along a loop."""
    product = normalize(reduce(multiply, relatives.unbind(-2)))
    identity = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=product.dtype, device=product.device)
    return distance(product, identity)


def triangle_angles(field: Float[Tensor, "b v h 4"], corners: Int[Tensor, "n 3"]) -> Float[Tensor, "b n h"]:
    """Return the holonomy angle of r_ij r_jk r_ki for every image, triangle and head."""
    q = [field.double().index_select(1, corner) for corner in corners.unbind(1)]
    pairs = [relative(q[a], q[b]) for a, b in ((0, 1), (1, 2), (2, 0))]
    return loop_angle(torch.stack(pairs, dim=-2))


def loop_transport_error(
    field: Float[Tensor, "b v h 4"], corners: Int[Tensor, "n 3"], transport: Rule, backend: str, channels: int = 1
) -> float:
    """Return the largest change of a unit feature that the kernel transports from i to k to j and back to i."""
    q = [field.index_select(1, corner) for corner in corners.unbind(1)]
    one_neighbour = torch.arange(len(corners), device=field.device).unsqueeze(1)
    generator = torch.Generator().manual_seed(0)
    sent = F.normalize(torch.randn(*q[0].shape[:3], channels, 4, generator=generator), dim=-1).to(q[0])
    beta = q[0].new_ones(q[0].shape[2])
    feature = sent
    for source, target in ((0, 2), (2, 1), (1, 0)):
        feature = quaternion_attention(
            q[target], q[source], feature, one_neighbour, beta, transport=transport, backend=backend
        )
    return float((feature - sent).abs().max())


# Receptive field

MAX_MAP_SIDE = 64
"""Side of the largest gradient map; larger images are averaged down."""


def pixel_gradients(model: nn.Module, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "y x"]:
    """Return Σ over images and channels of |∂ logit of the predicted class / ∂ pixel|."""
    images = images.detach().clone().requires_grad_(True)
    logits = model(images)
    (gradient,) = torch.autograd.grad(logits.amax(1).sum(), images)
    return gradient.abs().sum((0, 1)).double()


def gradient_map(total: Float[Tensor, "y x"]) -> Float[Tensor, "y2 x2"]:
    """Return the gradients normalised to sum 1, at most 64 x 64."""
    rows, columns = (min(side, MAX_MAP_SIDE) for side in total.shape)
    small = F.adaptive_avg_pool2d(total[None, None], (rows, columns))[0, 0]
    return small / small.sum().clamp(min=torch.finfo(small.dtype).tiny)


def effective_share(gradients: Float[Tensor, "y x"]) -> float:
    """Return the participation ratio (Σ g)² / (N Σ g²): the effective fraction of pixels, 1 if all count equally."""
    square = float(gradients.square().sum())
    return float(gradients.sum()) ** 2 / (gradients.numel() * square) if square > 0 else 0.0
