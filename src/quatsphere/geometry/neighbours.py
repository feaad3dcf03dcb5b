"""kNN graphs, their reverse, and resampling between shells, for any point sets `(V, D)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from quatsphere.errors import ConfigError

Metric = Literal["euclidean", "angular"]
Resample = Literal["index", "geometric"]

DISTANCES_PER_TILE = 2**22
"""Maximum number of distances in memory; larger problems are split into tiles of targets."""

SOURCES_PER_SORT = 2**12
"""Maximum number of sources whose distances are sorted together on an accelerator."""

MAX_SORTED_PAIRS = 2**14
"""Number of target-source pairs up to which a CPU sorts all distances by numpy: fewer and shorter operations."""

MIN_TREE_PAIRS = 2**18
"""Number of target-source pairs above which a k-d tree finds the candidates, if scipy is installed."""

Search = Callable[[Tensor, int], Tensor]
"""(targets, count) -> `count` nearest sources of each, in any order, ties in any order."""


def knn_budget(vertices: int) -> int:
    """k_l = max(2, 2 ⌊log2 V_l⌋) (eq:knn-budget); [14, 14, 16, 16, 16] for the paper's shells."""
    return max(2, 2 * (vertices.bit_length() - 1))


def edge_ratio(vertex_counts: list[int], neighbour_counts: list[int]) -> float:
    """kNN edges over dense within-shell edges, Σ V_l k_l / Σ V_l²; 0.0538 for the paper's shells."""
    edges = sum(v * k for v, k in zip(vertex_counts, neighbour_counts, strict=True))
    return edges / sum(v * v for v in vertex_counts)


def nearest_neighbours(
    targets: Float[Tensor, "t d"], sources: Float[Tensor, "s d"], k: int, metric: Metric = "euclidean"
) -> Int[Tensor, "t {k}"]:
    """The k nearest sources of each target `(V_target, k)`, nearest first, ties ordered by index.

    Distances are taken in float64 from coordinate differences, so that every device ranks equal positions equally. On
    CPUs they are ranked exactly among candidates from a k-d tree (or, without scipy, from tiles of the distance
    matrix): the time is O(V log V). Accelerators sort tiles of the distances, without a wait for the host. The angular
    metric ranks by the chord between directions, which grows with the angle.
    """
    if not 1 <= k <= len(sources):
        raise ConfigError(
            f"k must lie in 1..{len(sources)}, the number of source vertices: got {k}; "
            f"nearest legal value {min(max(1, k), len(sources))}"
        )
    with torch.no_grad():
        targets, sources = _exact(targets), _exact(sources)
        if metric == "angular":
            targets = targets / targets.norm(dim=-1, keepdim=True)
            sources = sources / sources.norm(dim=-1, keepdim=True)
        if targets.device.type != "cpu":
            return _nearest_by_sorting(targets, sources, k)
        if len(targets) * len(sources) <= MAX_SORTED_PAIRS:
            squares = _squares(targets[:, None].numpy(), sources[None].numpy())
            return torch.from_numpy(squares.argsort(axis=1, kind="stable")[:, :k].copy())
        large = len(targets) * len(sources) > MIN_TREE_PAIRS
        return _nearest(targets, sources, k, (_tree(sources) if large else None) or _tiles(sources))


def nearest_others(points: Float[Tensor, "v d"], k: int, metric: Metric = "euclidean") -> Int[Tensor, "v {k}"]:
    """The k nearest points of each point besides itself, nearest first, ties ordered by index."""
    found = nearest_neighbours(points, points, k + 1, metric)
    own = found == torch.arange(len(points), device=found.device)[:, None]
    slot = torch.arange(k, device=found.device)
    before = torch.where(own.any(1), own.byte().argmax(1), k)  # coinciding points may exclude a point from its own row
    return found.gather(1, slot + (slot >= before[:, None]).long())


def knn(points: Float[Tensor, "*b v d"], k: int, batch: Int[Tensor, "v"] | None = None) -> Int[Tensor, "*b v {k}"]:
    """The k nearest other points of each point, nearest first, ties ordered by index: exact, on any device.

    Points (V, D) are one cloud or, with `batch` (V,), several: points with equal numbers form a cloud, and no edge
    leaves it. Points (B, V, D) give one table per cloud. Where a cloud has fewer than k other points the row
    ends with -1, which the attention kernel reads as no neighbour.
    """
    if k < 1 or points.dim() not in (2, 3) or 0 in points.shape:
        raise ConfigError(
            f"knn needs points (V, D) or (B, V, D), not empty, and k >= 1: got {tuple(points.shape)}, {k}"
        )
    if points.dim() == 3:
        if batch is not None:
            raise ConfigError("batch belongs to points (V, D): points (B, V, D) are separate clouds already")
        return torch.stack([knn(cloud, k) for cloud in points])
    if not bool(points.isfinite().all()):
        raise ConfigError("knn needs finite points")
    if batch is None:
        near = min(k, len(points) - 1)
        found = points.new_full((len(points), k), -1, dtype=torch.int64)
        if near:
            found[:, :near] = nearest_others(points, near)
        return found
    if batch.shape != points.shape[:1]:
        raise ConfigError(f"batch must have shape ({len(points)},): got {tuple(batch.shape)}")
    found = points.new_full((len(points), k), -1, dtype=torch.int64)
    for cloud in batch.unique():
        members = (batch == cloud).nonzero().squeeze(1)
        local = knn(points[members], k)
        found[members] = torch.where(local < 0, local, members[local])
    return found


def _exact(positions: Tensor) -> Tensor:
    # float64 does not exist on MPS; float32 is the best there is.
    return positions.detach().to(torch.float32 if positions.device.type == "mps" else torch.float64)


def _squares(targets: Any, sources: Any) -> Any:
    """Squared distances of (t, 1, d) from (1 or t, s, d), axis after axis: every path rounds alike."""
    square = (targets[..., 0] - sources[..., 0]) ** 2
    for axis in range(1, targets.shape[-1]):
        square += (targets[..., axis] - sources[..., axis]) ** 2
    return square


def _squares_at_once(targets: Tensor, sources: Tensor) -> Tensor:
    """`_squares` of (t, d) from (s, d) in fewer operations, rounded alike, with all differences in memory."""
    first, *rest = (targets[:, None] - sources[None]).square_().unbind(-1)
    return sum(rest, first)


def _nearest(targets: Tensor, sources: Tensor, k: int, search: Search) -> Tensor:
    """Rank candidates exactly; where the last candidate is no farther than the k-th, repeat with twice as many.

    Every other source is at least as far as the last candidate, so unless that one ties with the k-th (or differs by a
    rounding error of the search) the k nearest are exact.
    """
    found = torch.empty(len(targets), k, dtype=torch.int64, device=targets.device)
    open_rows, count = torch.arange(len(targets), device=targets.device), k + k // 2 + 1
    while len(open_rows):
        count = min(count, len(sources))
        left = []
        for rows in open_rows.split(max(1, DISTANCES_PER_TILE // count)):
            nearest, certain = _rank(targets[rows], sources, search(targets[rows], count).sort(dim=1).values, k)
            found[rows] = nearest
            left.append(rows[:0] if count == len(sources) else rows[~certain])
        open_rows, count = torch.cat(left), 2 * count
    return found


def _rank(targets: Tensor, sources: Tensor, candidates: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(the k nearest of candidates given in ascending index order, whether these are certainly the k nearest)."""
    square, order = _squares(targets[:, None], sources[candidates]).sort(dim=1, stable=True)
    certain = square[:, k - 1] < square[:, -1] * (1 - 1e-6)
    return candidates.gather(1, order[:, :k]), certain


def _nearest_by_sorting(targets: Tensor, sources: Tensor, k: int) -> Tensor:
    """Sort the distances of tiles of sources, each together with the k nearest of the tiles before it.

    A stable sort keeps the order of the index among ties. The operations depend on the sizes alone, so the host never
    waits for the device, and no more than DISTANCES_PER_TILE distances, each with its D differences, are in memory.
    """
    found = []
    for rows in targets.split(max(1, DISTANCES_PER_TILE // min(len(sources), SOURCES_PER_SORT))):
        square, near = (x[:, :k] for x in _squares_at_once(rows, sources[:SOURCES_PER_SORT]).sort(dim=1, stable=True))
        for start in range(SOURCES_PER_SORT, len(sources), SOURCES_PER_SORT):
            tile = sources[start : start + SOURCES_PER_SORT]
            index = torch.arange(start, start + len(tile), device=rows.device).expand(len(rows), -1)
            square = torch.cat((square, _squares_at_once(rows, tile)), dim=1)
            square, order = (x[:, :k] for x in square.sort(dim=1, stable=True))
            near = torch.cat((near, index), dim=1).gather(1, order)
        found.append(near)
    return torch.cat(found) if len(found) > 1 else found[0]


def _tree(sources: Tensor) -> Search | None:
    """Search by a k-d tree, if scipy is installed and the sources are finite and on a CPU."""
    if sources.device.type != "cpu" or not sources.isfinite().all():
        return None
    try:
        from scipy.spatial import cKDTree
    except ImportError:
        return None
    tree = cKDTree(sources.numpy())

    def search(targets: Tensor, count: int) -> Tensor:
        _, indices = tree.query(targets.nan_to_num().numpy(), count, workers=torch.get_num_threads())
        return torch.from_numpy(indices).reshape(len(targets), count)

    return search


def _tiles(sources: Tensor) -> Search:
    """Search by all distances, one tile of targets at a time."""

    def search(targets: Tensor, count: int) -> Tensor:
        tiles = targets.split(max(1, DISTANCES_PER_TILE // len(sources)))
        squares = (_squares(tile[:, None], sources[None]) for tile in tiles)
        return torch.cat([square.topk(count, largest=False, sorted=False).indices for square in squares])

    return search


def reverse_edges(
    neighbours: Int[Tensor, "t k"], sources: int
) -> tuple[Int[Tensor, "{sources}+1"], Int[Tensor, "edges"]]:
    """Edges grouped by source: (offsets, edges); those that leave source j are edges[offsets[j] : offsets[j + 1]].

    Edges are numbered i*k + slot and ascend within a source. Shapes do not depend on the graph.
    """
    ends, edges = neighbours.reshape(-1).sort(stable=True)
    return torch.searchsorted(ends, torch.arange(sources + 1, device=ends.device)), edges


def reverse_neighbours(
    neighbours: Int[Tensor, "t k"], sources: int
) -> tuple[Int[Tensor, "s degree"], Int[Tensor, "s degree"]]:
    """Edges that leave each source: (edges, targets), both `(V_source, max degree)`, edges numbered i*k + slot.

    Rows are in ascending edge order and padded with edge -1 (target 0), so that a sum over a source's edges is
    a gather in a fixed order: reproducible on every device, unlike a scatter.
    """
    offsets, order = reverse_edges(neighbours, sources)
    degree = offsets.diff()
    slot = torch.arange(int(degree.max()), device=order.device)
    present = slot[None] < degree[:, None]
    edges = order[(offsets[:-1, None] + slot[None]).clamp(max=len(order) - 1)]
    edges = torch.where(present, edges, -1)
    return edges, torch.where(present, edges // neighbours.shape[1], 0)


def index_resampling(
    sources: int, targets: int, dtype: torch.dtype = torch.float32
) -> tuple[Int[Tensor, "t 2"], Float[Tensor, "t 2"]]:
    """Linear interpolation along the vertex index (eq:residual's `interp`): (indices, weights), both (V_target, 2).

    Equal to `F.interpolate(mode="linear", align_corners=False)`.
    """
    position = ((torch.arange(targets, dtype=torch.float64) + 0.5) * sources / targets - 0.5).clamp(min=0)
    lower = position.floor().long().clamp(max=sources - 1)
    upper = (lower + 1).clamp(max=sources - 1)
    fraction = position - lower
    return torch.stack((lower, upper), dim=1), torch.stack((1 - fraction, fraction), dim=1).to(dtype)


def geometric_resampling(
    targets: Float[Tensor, "t d"], sources: Float[Tensor, "s d"]
) -> tuple[Int[Tensor, "t m"], Float[Tensor, "t m"]]:
    """Barycentric interpolation over the three nearest sources by position: (indices, weights), both (V_target, 3).

    Weights solve Σ w s = t, Σ w = 1 in the least-squares sense of least norm (three neighbours of a lattice can lie
    on a line), then negative ones are set to zero and the rest normalised: never an extrapolation.
    """
    indices = nearest_neighbours(targets, sources, min(3, len(sources)))
    corners = _exact(sources)[indices]
    ones = torch.ones_like(corners[..., :1])
    system = torch.cat((corners, ones), dim=-1).transpose(1, 2)
    right = torch.cat((_exact(targets), ones[:, 0]), dim=-1)
    weights = (torch.linalg.pinv(system, rtol=1e-6) @ right.unsqueeze(-1)).squeeze(-1).clamp(min=0)
    return indices, (weights / weights.sum(dim=1, keepdim=True)).to(sources.dtype)
