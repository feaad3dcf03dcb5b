"""Layouts: exact radii, graphs rebuilt exactly when positions change, any point set."""

from __future__ import annotations

import pytest
import torch

from quatsphere.errors import ConfigError
from quatsphere.geometry import neighbours as nb
from quatsphere.geometry import sphere
from quatsphere.nn.layout import Layout, Shell, plane_shells, sphere_shells


def test_graphs_of_the_paper() -> None:
    layout = Layout(sphere_shells(128, 5, (1.0, 0.4), True))
    assert layout.vertex_counts == [128, 192, 256, 320, 384]
    assert layout.neighbour_counts == [14, 14, 16, 16, 16]
    assert layout.within.neighbours.shape == (128, 14)
    assert [tuple(g.neighbours.shape) for g in layout.cross] == [(192, 14), (256, 16), (320, 16), (384, 16)]
    assert layout.last.neighbours.shape == (384, 16)
    assert torch.equal(layout.within.neighbours[:, 0], torch.arange(128))  # a vertex is its own nearest


@pytest.mark.parametrize("shells", [sphere_shells(16, 2, (1.0, 0.4), True), plane_shells(16, 2, 4)])
def test_self_excluded_takes_the_k_nearest_others(shells: list[Shell]) -> None:
    """Within a shell only; k stays, and so does the graph between shells."""
    plain, others = Layout(shells, [5, 5]), Layout(shells, [5, 5], self_neighbour=False)
    for graph, shell in ((others.within, shells[0]), (others.last, shells[1])):
        distances = torch.cdist(shell.positions.detach().double(), shell.positions.detach().double())
        distances.fill_diagonal_(torch.inf)
        nearest = distances.sort(dim=1).values[:, :5]
        assert torch.allclose(distances.gather(1, graph.neighbours), nearest)
        assert (graph.neighbours != torch.arange(shell.count)[:, None]).all()
    assert torch.equal(others.cross[0].neighbours, plain.cross[0].neighbours)


def test_self_excluded_among_vertices_that_coincide() -> None:
    points = torch.ones(6, 3)
    found = nb.nearest_others(points, 2)
    assert (found != torch.arange(6)[:, None]).all()
    assert found.tolist() == [[1, 2], [0, 2], [0, 1], [0, 1], [0, 1], [0, 1]]
    with pytest.raises(ConfigError, match="shell 1 needs k=4 neighbours but a source shell has only 3 other vertices"):
        Layout(sphere_shells(4, 1, (1.0, 0.4), False), self_neighbour=False)


def test_constrain_restores_radii_exactly_and_follows_positions() -> None:
    layout = Layout(sphere_shells(16, 3, (1.0, 0.4), True))
    graphs = [layout.within.neighbours, layout.cross[0].neighbours, layout.cross[1].neighbours]
    with torch.no_grad():
        layout.shells[1].positions.add_(0.4 * torch.randn(24, 3, generator=torch.Generator().manual_seed(0)))
    layout.constrain()
    assert layout.shells[1].positions.norm(dim=-1).sub(0.7).abs().max() < 1e-6
    assert layout.within.neighbours is graphs[0]  # its shell has not moved
    assert not torch.equal(layout.cross[0].neighbours, graphs[1])
    assert not torch.equal(layout.cross[1].neighbours, graphs[2])


def test_refresh_without_movement_keeps_the_graph() -> None:
    layout = Layout(sphere_shells(16, 2, (1.0, 0.4), True))
    before = layout.cross[0].neighbours
    layout.refresh()
    assert layout.cross[0].neighbours is before


def test_loading_positions_rebuilds_the_graph() -> None:
    first, second = (Layout(sphere_shells(16, 2, (1.0, 0.4), True)) for _ in range(2))
    with torch.no_grad():
        first.shells[0].positions.copy_(sphere.directions(torch.randn(16, 3)))
    first.refresh()
    second.load_state_dict(first.state_dict())
    second.refresh()
    assert torch.equal(first.cross[0].neighbours, second.cross[0].neighbours)


def test_within_a_shell_resampling_is_the_identity() -> None:
    layout = Layout(sphere_shells(16, 2, (1.0, 0.4), False))
    x = torch.randn(2, 16, 5)
    assert layout.within.resample(x) is x
    assert layout.cross[0].resample(x).shape == (2, 24, 5)


@pytest.mark.parametrize("resample", ["index", "geometric"])
def test_interpolation_weights_follow_the_precision(resample: nb.Resample) -> None:
    """Converted without a forward pass, as before torch.compile: exact in float64, in float32 as they were."""
    layout = Layout(sphere_shells(16, 2, (1.0, 0.4), True), resample=resample)
    graph, before = layout.cross[0], layout.cross[0].resample_weights
    assert before.dtype == torch.float32
    source, target = (shell.positions.detach().double() for shell in layout.shells)
    exact = nb.index_resampling(16, 24, torch.float64)[1]
    if resample == "geometric":
        exact = nb.geometric_resampling(sphere.directions(target), sphere.directions(source))[1]
    layout.double()
    assert torch.equal(graph.resample_weights, exact)
    layout.float()
    assert torch.equal(graph.resample_weights, before)
    layout.bfloat16()
    assert graph.resample_weights.dtype == torch.bfloat16
    assert "cross.0.resample_weights" not in layout.state_dict()


def test_plane_is_frozen_and_samples_at_its_positions() -> None:
    layout = Layout(plane_shells(32, 3, 8))
    assert not list(layout.parameters())
    assert layout.image_coords().abs().max() < 1


def test_index_resampling_stays_within_a_row_of_the_plane() -> None:
    """The reason for a fixed number of rows."""
    layout = Layout(plane_shells(128, 5, 16))
    for shell, graph in enumerate(layout.cross):
        rows = layout.shells[shell].positions[:, 1][graph.resample_indices]
        own = layout.shells[shell + 1].positions[:, 1]
        used = graph.resample_weights > 1e-6
        inside = (rows - own[:, None]).abs() < 1e-6
        assert (inside | ~used).float().mean() > 0.9  # only the ends of rows touch the next one


def test_any_point_set_is_a_layout() -> None:
    cloud = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    layout = Layout([Shell(cloud, True), Shell(cloud[:25] * 0.5, True)], [6, 5], "geometric")
    with torch.no_grad():
        layout.shells[0].positions.mul_(1.5)
    layout.constrain()
    assert torch.allclose(layout.shells[0].positions.norm(dim=-1), cloud.norm(dim=-1), rtol=1e-6)
    assert torch.equal(
        layout.cross[0].neighbours, nb.nearest_neighbours(cloud[:25] * 0.5, layout.shells[0].positions, 5)
    )


def test_impossible_neighbours_name_the_shell() -> None:
    with pytest.raises(ConfigError, match="shell 2 needs k=6 neighbours but a source shell has only 5"):
        Layout(sphere_shells(5, 2, (1.0, 0.4), False))
