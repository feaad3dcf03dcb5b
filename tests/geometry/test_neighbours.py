"""Graphs: the paper's counts, exact order with ties, both metrics, reversal, resampling."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.geometry import neighbours as nb
from quatsphere.geometry import plane, sphere


def brute_force(targets: Tensor, sources: Tensor, k: int) -> list[list[int]]:
    """Sort (distance, index) pairs in plain Python floats."""
    rows = []
    for t in targets.double().tolist():
        keyed = [
            (sum((a - b) ** 2 for a, b in zip(t, s, strict=True)), j) for j, s in enumerate(sources.double().tolist())
        ]
        rows.append([j for _, j in sorted(keyed)[:k]])
    return rows


def test_budget_and_edge_ratio() -> None:
    counts = sphere.shell_sizes(128, 5)
    budget = [nb.knn_budget(count) for count in counts]
    assert budget == [14, 14, 16, 16, 16]
    assert sum(v * k for v, k in zip(counts, budget, strict=True)) == 19_840
    assert nb.edge_ratio(counts, budget) == pytest.approx(19_840 / 368_640)
    assert nb.knn_budget(1) == nb.knn_budget(2) == 2


LAYOUTS = [
    (sphere.fibonacci_sphere(48), sphere.fibonacci_sphere(32, 0.7), 10),
    (plane.flat_lattice(96), plane.flat_lattice(64), 12),
    (plane.flat_lattice(64), plane.flat_lattice(64), 9),
    (torch.zeros(5, 3), torch.zeros(7, 3), 4),
    (torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1], [1, 0]]), 5),
]


@pytest.mark.parametrize(("targets", "sources", "k"), LAYOUTS)
def test_order_is_distance_then_index(targets: Tensor, sources: Tensor, k: int) -> None:
    assert nb.nearest_neighbours(targets, sources, k).tolist() == brute_force(targets, sources, k)


@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(1, 25), st.booleans())
def test_order_on_random_layouts(seed: int, targets: int, sources: int, grid: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(targets + sources, 3, generator=generator)
    points = points.round() if grid else points  # a grid has many ties and duplicates
    k = 1 + seed % sources
    found = nb.nearest_neighbours(points[:targets], points[targets:], k)
    assert found.tolist() == brute_force(points[:targets], points[targets:], k)


SEARCHES = {"tree": nb._tree, "tiles": nb._tiles}
LARGE = {
    "sphere": (sphere.fibonacci_sphere(700, 0.4), sphere.fibonacci_sphere(600, 0.55), 16),
    "plane": (plane.flat_lattice(640), plane.flat_lattice(512), 16),
    "plane, itself": (plane.flat_lattice(512), plane.flat_lattice(512), 9),
    "duplicates": (plane.flat_lattice(64).repeat(8, 1), plane.flat_lattice(64).repeat(8, 1), 5),
    "one place": (torch.zeros(3, 3), torch.zeros(400, 3), 7),
    "k is all": (sphere.fibonacci_sphere(40), sphere.fibonacci_sphere(30), 30),
}


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("layout", LARGE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_search_finds_what_sorting_all_distances_finds(
    search: str, layout: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ties at the border of the candidates and tiles of any size included."""
    monkeypatch.setattr(nb, "DISTANCES_PER_TILE", 5000)
    targets, sources, k = LARGE[layout]
    targets, sources = targets.to(dtype), sources.to(dtype)
    square = ((targets[:, None] - sources[None]) ** 2).unbind(-1)
    dense = sum(square[1:], square[0]).sort(dim=1, stable=True).indices[:, :k]
    assert torch.equal(nb._nearest(targets, sources, k, SEARCHES[search](sources)), dense)


@pytest.mark.parametrize("layout", LARGE)
@pytest.mark.parametrize("tile", [(5000, 100), (300, 64), (2**22, 2**12)])
def test_sorted_tiles_of_an_accelerator_find_the_same(
    layout: str, tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running k nearest over tiles of sources, ties across the borders of tiles included."""
    targets, sources, k = LARGE[layout]
    expected = nb.nearest_neighbours(targets, sources, k)
    for name, value in zip(("DISTANCES_PER_TILE", "SOURCES_PER_SORT"), tile, strict=True):
        monkeypatch.setattr(nb, name, value)
    assert torch.equal(nb._nearest_by_sorting(targets.double(), sources.double(), k), expected)


def test_sorted_tiles_have_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """No array has more than DISTANCES_PER_TILE distances (and k per target), whatever the number of vertices."""
    monkeypatch.setattr(nb, "DISTANCES_PER_TILE", 2**19)
    sizes: list[int] = []
    squares = nb._squares_at_once

    def recorded(targets: Tensor, sources: Tensor) -> Tensor:
        found = squares(targets, sources)
        sizes.append(found.numel())
        return found

    monkeypatch.setattr(nb, "_squares_at_once", recorded)
    shell = sphere.fibonacci_sphere(21_000)
    rows = torch.arange(0, 21_000, 60)
    found = nb._nearest_by_sorting(shell[rows].double(), shell.double(), 16)
    assert max(sizes) <= 2**19
    assert torch.equal(found, nb.nearest_neighbours(shell, shell, 16)[rows])


def test_nearest_others_never_name_the_point_itself() -> None:
    """Also where so many points coincide that a point is not among its own k + 1 nearest."""
    points = torch.cat((torch.zeros(9, 3), sphere.fibonacci_sphere(20)))
    found = nb.nearest_others(points, 4)
    nearest = nb.nearest_neighbours(points, points, 5)
    for point in range(len(points)):
        others = [j for j in nearest[point].tolist() if j != point]
        assert found[point].tolist() == others[:4]


def test_graphs_without_scipy_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    targets, sources = plane.flat_lattice(640), plane.flat_lattice(512)
    with_tree = nb.nearest_neighbours(targets, sources, 16)
    monkeypatch.setitem(sys.modules, "scipy.spatial", None)
    assert nb._tree(sources.double()) is None
    assert torch.equal(nb.nearest_neighbours(targets, sources, 16), with_tree)


@pytest.mark.parametrize("count", [8, 400, 600])
def test_nan_positions_do_not_stop_the_search(count: int) -> None:
    """Callers check that positions are finite; here the shape is right and indices are valid."""
    positions = sphere.fibonacci_sphere(count)
    positions[3] = torch.nan
    for pair in ((positions, sphere.fibonacci_sphere(count)), (sphere.fibonacci_sphere(count), positions)):
        graph = nb.nearest_neighbours(*pair, 4)
        assert graph.shape == (count, 4)
        assert ((graph >= 0) & (graph < count)).all()


def test_large_shells_have_their_graph_in_seconds() -> None:
    """30,000 vertices: all distances would take 7 GB. Sampled rows are compared with all their distances."""
    shell = sphere.fibonacci_sphere(30_000)
    graph = nb.nearest_neighbours(shell, shell, 16)
    for row in range(0, 30_000, 1777):
        square = ((shell[row].double() - shell.double()) ** 2).unbind(-1)
        assert torch.equal(graph[row], sum(square[1:], square[0]).sort(stable=True).indices[:16])


def test_euclidean_and_angular_neighbours_agree() -> None:
    """Between fixed radii r1² + r2² - 2 r1 r2 cos ϑ grows with ϑ; as sets, since float32 radii break exact ties."""
    counts, radii = sphere.shell_sizes(128, 5), sphere.shell_radii(5)
    shells = [sphere.fibonacci_sphere(v, r) for v, r in zip(counts, radii, strict=True)]
    jitter = torch.Generator().manual_seed(0)
    shells += [sphere.directions(s + 0.05 * torch.randn(s.shape, generator=jitter)) * 0.5 for s in shells]
    for source, target in [(0, 0), (0, 1), (1, 2), (2, 3), (3, 4), (4, 4), (5, 6), (8, 9)]:
        k = nb.knn_budget(len(shells[target]))
        euclidean = nb.nearest_neighbours(shells[target], shells[source], k)
        angular = nb.nearest_neighbours(shells[target], shells[source], k, "angular")
        assert torch.equal(euclidean.sort(dim=1).values, angular.sort(dim=1).values)


def test_too_many_neighbours_is_an_error_with_the_nearest_value() -> None:
    with pytest.raises(ConfigError, match=r"k must lie in 1\.\.32.*got 33; nearest legal value 32"):
        nb.nearest_neighbours(sphere.fibonacci_sphere(48), sphere.fibonacci_sphere(32), 33)


def test_reverse_neighbours_lists_every_edge_once() -> None:
    graph = nb.nearest_neighbours(sphere.fibonacci_sphere(48), sphere.fibonacci_sphere(32), 5)
    edges, listeners = nb.reverse_neighbours(graph, 32)
    seen = edges[edges >= 0]
    assert sorted(seen.tolist()) == list(range(48 * 5))
    for source in range(32):
        own = edges[source][edges[source] >= 0]
        assert (graph.reshape(-1)[own] == source).all()
        assert torch.equal(own, own.sort().values)
        assert torch.equal(own // 5, listeners[source][: len(own)])


def test_reversed_edges_are_those_of_reverse_neighbours() -> None:
    graph = nb.nearest_neighbours(sphere.fibonacci_sphere(48), sphere.fibonacci_sphere(40), 5)
    offsets, edges = nb.reverse_edges(graph, 40)
    padded, _ = nb.reverse_neighbours(graph, 40)
    assert (offsets[0], offsets[-1]) == (0, 48 * 5)
    for source in range(40):
        assert torch.equal(edges[offsets[source] : offsets[source + 1]], padded[source][padded[source] >= 0])


@pytest.mark.parametrize(("sources", "targets"), [(128, 192), (320, 384), (7, 3), (1, 4), (5, 5)])
def test_index_resampling_is_torch_interpolate(sources: int, targets: int) -> None:
    x = torch.randn(2, 3, sources, dtype=torch.float64)
    indices, weights = nb.index_resampling(sources, targets, torch.float64)
    ours = (x[:, :, indices] * weights).sum(-1)
    assert torch.allclose(ours, F.interpolate(x, size=targets, mode="linear", align_corners=False), rtol=0, atol=1e-12)


def test_index_resampling_scrambles_longitude_on_the_sphere() -> None:
    """The confound described in docs/paper_map.md: the source an index points to is about 65 degrees away."""
    source, target = sphere.fibonacci_sphere(320), sphere.fibonacci_sphere(384)
    indices, _ = nb.index_resampling(320, 384)
    away = sphere.angular_separation(source[indices[:, 0]], target).mean().rad2deg()
    assert 60 < away < 70
    indices, weights = nb.geometric_resampling(target, source)
    place = (source[indices] * weights[..., None]).sum(1)
    assert sphere.angular_separation(place, target).mean().rad2deg() < 1.0


@pytest.mark.parametrize("layout", ["sphere", "plane"])
def test_geometric_resampling_weights(layout: str) -> None:
    if layout == "sphere":
        source, target = sphere.fibonacci_sphere(128), sphere.fibonacci_sphere(192)
    else:
        source, target = plane.flat_lattice(128), plane.flat_lattice(192)
    _, weights = nb.geometric_resampling(target, source)
    assert (weights >= 0).all()
    assert torch.allclose(weights.sum(1), torch.ones(192))


def test_geometric_resampling_reproduces_linear_functions_inside_triangles() -> None:
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    inside = torch.tensor([[0.2, 0.3], [0.1, 0.8], [1 / 3, 1 / 3]])
    indices, weights = nb.geometric_resampling(inside, corners)
    assert torch.allclose((corners[indices] * weights[..., None]).sum(1), inside, atol=1e-6)
