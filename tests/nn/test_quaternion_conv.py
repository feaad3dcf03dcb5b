"""The graph layer: forms of the graph, batches, bipartite graphs, weights in the given order, and PyTorch Geometric."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quatsphere import QuaternionAttention, QuaternionConv, knn, nn, quaternion_attention
from quatsphere.errors import ConfigError
from quatsphere.geometry import quaternion as Q
from quatsphere.geometry.frames import frame_transport, gather_points, local_frames, to_local
from quatsphere.nn.quaternion_conv import sort_edges

POINTS = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
X = torch.randn(2, 9, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
TABLE = knn(POINTS, 3)
EDGES = torch.stack((TABLE.reshape(-1), torch.arange(9).repeat_interleave(3)))
SHUFFLED = EDGES[:, torch.randperm(27, generator=torch.Generator().manual_seed(2))]


def conv(**changes: object) -> QuaternionConv:
    torch.manual_seed(0)
    return QuaternionConv(changes.pop("in_channels", 5), 8, 3, **changes).double()  # type: ignore[arg-type]


def test_forms_of_the_graph_agree() -> None:
    layer = conv(residual=True)
    expected = layer(X, TABLE)
    assert expected.shape == (2, 9, 24)
    csr = torch.arange(0, 28, 3), TABLE.reshape(-1)
    for graph in (EDGES, SHUFFLED, csr, TABLE.expand(2, -1, -1)):
        assert torch.allclose(layer(X, graph), expected)
    assert torch.allclose(layer(X[1], SHUFFLED), expected[1])
    expected.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in layer.parameters())


@pytest.mark.parametrize("graph", [EDGES, SHUFFLED, TABLE], ids=["sorted", "shuffled", "table"])
def test_weights_are_in_the_given_order(graph: Tensor) -> None:
    layer = conv()
    out, (same, weights) = layer(X, graph, return_attention_weights=True)
    assert same is graph
    assert torch.equal(out, layer(X, graph))
    target = graph[1] if graph is not TABLE else EDGES[1]
    sums = torch.zeros(2, 9, 3, dtype=torch.float64).index_add(1, target, weights.reshape(2, 27, 3))
    assert torch.allclose(sums, torch.ones_like(sums))
    _, (_, of_table) = layer(X, TABLE, return_attention_weights=True)
    first = int(((graph[0] == TABLE[4, 1]) & (graph[1] == 4)).nonzero()) if graph is not TABLE else 13
    assert torch.allclose(weights.reshape(2, 27, 3)[:, first], of_table[:, 4, 1])


def test_bipartite_rotations_dropout_and_base() -> None:
    layer = conv(in_channels=(5, 4), dropout=0.5)
    targets = torch.randn(2, 4, 4, dtype=torch.float64)
    edges = torch.tensor([[0, 8, 3], [0, 3, 3]])
    assert layer((X, targets), edges).shape == (2, 4, 24)
    layer.eval()
    out = layer((X, targets), edges)
    assert torch.equal(out[:, 1:3], layer.bias.expand(2, 2, -1))  # no neighbours
    g_source, g_target = Q.random_unit(9, dtype=torch.float64), Q.random_unit(4, dtype=torch.float64)
    u = Q.relative(g_target[edges[1]], g_source[edges[0]])
    based = layer((X, targets), edges, base=(g_source, g_target))
    assert torch.allclose(layer((X, targets), edges, edge_rotation=u), based)
    assert torch.allclose(layer((X, targets), edges.flip(1), edge_rotation=u.flip(0)), based)


@given(st.integers(0, 2**31), st.floats(0.0, 1.0))
@settings(max_examples=12, deadline=None)
def test_forms_of_irregular_graphs_agree(seed: int, density: float) -> None:
    """edge_index in any order, CSR, and a padded table, shared or per sample; other numbers of nodes than before."""
    generator = torch.Generator().manual_seed(seed)
    adjacency = torch.rand(7, 9, generator=generator) < density  # target, source
    target, source = adjacency.nonzero(as_tuple=True)
    order = torch.randperm(len(target), generator=generator)
    edges = torch.stack((source, target))[:, order]
    counts = adjacency.sum(1)
    table = torch.full((7, 9), -1)
    table[torch.arange(9) < counts[:, None]] = source
    csr = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0))), source
    layer = conv(routing="absolute", transport="one_sided")
    x = X, X[:, :7]
    expected = layer(x, edges)
    assert torch.equal(expected[:, counts == 0], layer.bias.expand(2, int((counts == 0).sum()), -1))
    for graph in (csr, table, table.expand(2, -1, -1)):
        assert torch.allclose(layer(x, graph), expected)


def test_regular_edges_become_a_table_and_are_sorted_once() -> None:
    table, order = sort_edges(SHUFFLED, 9, 9)
    assert isinstance(table, Tensor)
    assert table.shape == (9, 3)
    assert sort_edges(SHUFFLED, 9, 9)[0] is table
    assert torch.equal(SHUFFLED[0, order].view(9, 3), table)
    assert isinstance(sort_edges(SHUFFLED[:, 1:], 9, 9)[0], tuple)
    layer, changing = conv(), SHUFFLED.clone()
    layer(X, changing)
    changing[0] = (changing[0] + 1) % 9
    assert torch.equal(layer(X, changing), layer(X, changing.clone()))  # not the graph of before the change


def test_a_batch_is_block_diagonal_copies() -> None:
    layer, irregular = conv(residual=True), SHUFFLED[:, :20]
    copies = torch.cat((irregular, irregular + 9), dim=1)
    assert torch.allclose(layer(X.flatten(0, 1), copies).view(2, 9, -1), layer(X, irregular))


def test_heads_can_be_averaged() -> None:
    layer, mean = conv(bias=False), conv(bias=False, concat=False, residual=True)
    mean.load_state_dict(layer.state_dict(), strict=False)
    expected = layer(X, SHUFFLED).unflatten(-1, (3, 8)).mean(-2) + mean.skip(X)
    assert torch.allclose(mean(X, SHUFFLED), expected)


def edge_by_edge(layer: QuaternionConv, routing: str, transport: str) -> Any:
    """The layer as a MessagePassing of PyTorch Geometric, every quaternion product on every edge."""
    geometric = pytest.importorskip("torch_geometric")

    class EdgeByEdge(geometric.nn.MessagePassing):  # type: ignore[misc,name-defined]
        def message(self, x_j: Tensor, q_i: Tensor, q_j: Tensor, u: Tensor, index: Tensor, size_i: int) -> Tensor:
            r = Q.relative(q_i, Q.multiply(u[:, None], q_j))
            score = {"alignment": r[..., 0], "absolute": r[..., 0].abs(), "uniform": 0 * r[..., 0]}[routing]
            weights = geometric.utils.softmax(layer.routing.beta * score, index, num_nodes=size_i)
            x, r = x_j.unflatten(1, (3, -1, 4)), r[:, :, None]
            moved = {"sandwich": Q.sandwich(r, x), "identity": x, "one_sided": Q.multiply(r, x)}[transport]
            return (weights[..., None, None] * moved).flatten(1)

        def forward(self, x: Tensor, edge_index: Tensor, u: Tensor) -> Tensor:
            q = layer._field(x[None], layer.perturbation.inner, None)[0]
            return self.propagate(edge_index, x=layer.value(x), q=q, u=u)  # type: ignore[no-any-return]

    return EdgeByEdge(aggr="add", node_dim=0)


@pytest.mark.parametrize("transport", ["sandwich", "identity", "one_sided"])
@pytest.mark.parametrize("routing", ["alignment", "absolute", "uniform"])
@pytest.mark.parametrize("edges", [SHUFFLED, SHUFFLED[:, :20]], ids=["regular", "irregular"])
def test_it_equals_an_edge_by_edge_layer_of_pytorch_geometric(edges: Tensor, routing: str, transport: str) -> None:
    """Values and gradients, with and without rotations of the edges."""
    layer = conv(bias=False, routing=routing, transport=transport)
    slow = edge_by_edge(layer, routing, transport)
    one = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64).expand(edges.shape[1], 4)
    turned = Q.random_unit(edges.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for u in (one, turned):
        x = X[0].clone().requires_grad_()
        leaves = [x, layer.value.weight]
        expected, found = slow(x, edges, u), layer(x, edges, edge_rotation=None if u is one else u)
        assert torch.allclose(found, expected)
        upstream = torch.sin(torch.arange(found.numel(), dtype=torch.float64)).view_as(found)
        gradients = (torch.autograd.grad(out, leaves, upstream) for out in (found, expected))
        assert all(torch.allclose(a, b) for a, b in zip(*gradients, strict=True))


def test_it_is_called_like_gatv2conv() -> None:
    """Same arguments, same order of edges, same shapes; inside Sequential, and with EdgeIndex."""
    geometric = pytest.importorskip("torch_geometric")
    theirs = geometric.nn.GATv2Conv(5, 8, heads=3, dropout=0.1, residual=True, add_self_loops=False).double().eval()
    ours = conv(dropout=0.1, residual=True).eval()
    for x, graph in ((X[0], SHUFFLED), (X[1], EDGES[:, :20])):
        expected, (_, alpha) = theirs(x, graph, return_attention_weights=True)
        out, (edges, weights) = ours(x, graph, return_attention_weights=True)
        assert edges is graph
        assert (out.shape, weights.shape) == (expected.shape, alpha.shape)
        sums = [geometric.utils.scatter(w, graph[1], dim=0, dim_size=9) for w in (alpha, weights)]
        assert torch.allclose(*sums)
        model = geometric.nn.Sequential("x, edge_index", [(ours, "x, edge_index -> x"), torch.nn.ReLU()])
        assert torch.equal(model(x, graph), out.relu())
        assert torch.equal(ours(x, geometric.EdgeIndex(graph, sparse_size=(9, 9))), out)
    assert isinstance(ours(X[0], SHUFFLED, return_attention_weights=False), Tensor)


def test_edge_index_in_place_of_neighbours_names_the_conversion() -> None:
    field, features = Q.random_unit(1, 9, 3), torch.randn(1, 9, 3, 2, 4)
    with pytest.raises(ConfigError, match=r"looks like edge_index \(2, E\); convert it with quatsphere.to_csr"):
        quaternion_attention(field, field, features, EDGES, torch.ones(3))
    with pytest.raises(ConfigError, match=r"looks like edge_index \(2, E\)"):
        QuaternionAttention(dim=24, heads=3, vertices=9)(torch.randn(1, 9, 24), EDGES)


def test_knn_stays_in_its_cloud_and_orders_ties() -> None:
    batch = torch.tensor([0, 1, 0, 1, 0, 0, 2, 1, 0])
    found = knn(POINTS, 3, batch)
    assert (found[6] == -1).all()
    assert all(batch[j] == batch[i] for i, row in enumerate(found.tolist()) for j in row if j >= 0)
    assert (found[1] >= 0).sum() == 2
    grid = torch.tensor([[0.0], [1.0], [2.0]])
    assert knn(grid, 1).tolist() == [[1], [0], [1]]
    assert torch.equal(knn(POINTS.expand(2, -1, -1), 3)[1], TABLE)
    with pytest.raises(ConfigError, match="knn needs points"):
        knn(torch.zeros(0, 3), 1)


@given(st.integers(0, 2**31), st.integers(1, 6), st.booleans())
@settings(max_examples=20, deadline=None)
def test_knn_is_the_sorted_distance_matrix(seed: int, k: int, clouds: bool) -> None:
    """On a small integer grid, where most distances tie and points coincide: by distance, then by index."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randint(3, (12, 2), generator=generator).double()
    batch = torch.randint(3, (12,), generator=generator) if clouds else torch.zeros(12, dtype=torch.int64)
    found = knn(points, k, batch if clouds else None)
    for i in range(12):
        others = [j for j in range(12) if j != i and batch[j] == batch[i]]
        others.sort(key=lambda j: (float((points[i] - points[j]).square().sum()), j))
        assert found[i].tolist() == (others + [-1] * k)[:k]


def test_bad_arguments_are_one_line() -> None:
    with pytest.raises(ConfigError, match="out_channels must be a positive multiple of 4"):
        QuaternionConv(5, 6)
    with pytest.raises(ConfigError, match=r"dropout must lie in \[0, 1\)"):
        QuaternionConv(5, 8, dropout=1.0)
    with pytest.raises(ConfigError, match=r"x must have \(5, 5\) features: got 4"):
        conv()(X[..., :4], TABLE)
    with pytest.raises(ConfigError, match=r"x must be \(V, C\) or \(B, V, C\)"):
        conv()((X, X[0]), EDGES)
    with pytest.raises(ConfigError, match="edge_rotation must have 27 rows, one per edge"):
        conv()(X, EDGES, edge_rotation=torch.ones(3, 4))
    with pytest.raises(ConfigError, match="edge_rotation must be unit quaternions"):
        conv()(X, EDGES, edge_rotation=torch.ones(27, 4, dtype=torch.float64))
    with pytest.raises(ConfigError, match="edge_index must be int64"):
        conv()(X, EDGES.int())
    assert nn.QuaternionConv is QuaternionConv
    with pytest.raises(ConfigError, match="edge_index repeats 1 -> 2"):
        conv()(X, torch.tensor([[1, 1], [2, 2]]))
    with pytest.raises(IndexError, match=r"the sources, must lie in 0..8: got 1..9"):
        conv()(X, torch.tensor([[1, 9], [2, 2]]))


@pytest.mark.parametrize("given", [torch.float32, torch.int64, torch.float16])
def test_features_of_another_type_are_one_line(given: torch.dtype) -> None:
    with pytest.raises(ConfigError, match=f"x must be torch.float64 as the layer is: got {given}; call .to"):
        conv()(X.to(given), TABLE)


@pytest.mark.parametrize("graph", [SHUFFLED, SHUFFLED[:, 1:]], ids=["regular", "irregular"])
def test_an_empty_batch_has_an_empty_result(graph: Tensor) -> None:
    x = X[:0].clone().requires_grad_()
    out = conv()(x, graph)
    assert out.shape == (0, 9, 24)
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape


@given(st.integers(0, 2**31), st.integers(3, 8), st.sampled_from(["absolute", "uniform"]))
@settings(max_examples=25, deadline=None)
def test_with_local_frames_the_layer_is_invariant_to_rotation(seed: int, k: int, routing: str) -> None:
    """The graph, frames and features of a rotated cloud are recomputed; the output is the same at 1e-6."""
    generator = torch.Generator().manual_seed(seed)
    clouds = torch.randn(4, 30, 3, generator=generator, dtype=torch.float64)
    layer = QuaternionConv(3 * k, 8, heads=2, routing=routing).double()

    def run(points: Tensor) -> Tensor:
        graph = knn(points, k)
        frames = local_frames(points, graph)
        offsets = gather_points(points, graph) - points.unsqueeze(2)
        features = to_local(frames, offsets).flatten(2)
        return layer(features, graph, edge_rotation=frame_transport(frames, graph))  # type: ignore[no-any-return]

    turned = Q.rotate(Q.random_unit(dtype=torch.float64, generator=generator), clouds)
    assert torch.allclose(run(turned), run(clouds), rtol=0, atol=1e-6)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_pair_of_the_same_tensor_is_a_pair(batch: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer, x = QuaternionConv((8, 8), 4, heads=2), torch.randn(*batch, 6, 8)
    graph = torch.randint(6, (6, 3))
    out = layer((x, x), graph)
    assert torch.equal(out, layer((x, x.clone()), graph))
    out.sum().backward()
    assert layer.target_rows.weight.grad is not None
