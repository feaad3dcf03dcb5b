"""The graph layer: forms of the graph, batches, bipartite graphs, weights in the given order, and PyTorch Geometric."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quatsphere import QuaternionConv, knn
from quatsphere.errors import ConfigError
from quatsphere.geometry import quaternion as Q

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


def test_it_equals_an_edge_by_edge_layer_of_pytorch_geometric() -> None:
    geometric = pytest.importorskip("torch_geometric")
    layer = conv(bias=False)
    field = layer._field(X[:1], layer.perturbation.inner, None)[0]

    class EdgeByEdge(geometric.nn.MessagePassing):  # type: ignore[misc,name-defined]
        def message(self, x_j: Tensor, q_i: Tensor, q_j: Tensor, index: Tensor, size_i: int) -> Tensor:
            r = Q.relative(q_i, q_j)
            weights = geometric.utils.softmax(layer.routing.beta * r[..., 0], index, num_nodes=size_i)
            turned = Q.sandwich(r[:, :, None], x_j.unflatten(1, (3, -1, 4)))
            return (weights[..., None, None] * turned).flatten(1)

        def forward(self, x: Tensor, edge_index: Tensor, q: Tensor) -> Tensor:
            return self.propagate(edge_index, x=x, q=q)  # type: ignore[no-any-return]

    expected = EdgeByEdge(aggr="add", node_dim=0)(layer.value(X[0]), SHUFFLED, field)
    assert torch.allclose(layer(X[0], SHUFFLED), expected)
    model = geometric.nn.Sequential("x, edge_index", [(layer, "x, edge_index -> x")])
    assert torch.allclose(model(X[0], SHUFFLED), expected)


def test_knn_stays_in_its_cloud_and_settles_ties() -> None:
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


def test_bad_arguments_are_one_line() -> None:
    with pytest.raises(ConfigError, match="out_channels must be a positive multiple of 4"):
        QuaternionConv(5, 6)
    with pytest.raises(ConfigError, match=r"dropout must lie in \[0, 1\)"):
        QuaternionConv(5, 8, dropout=1.0)
    with pytest.raises(ConfigError, match="edge_index repeats 1 -> 2"):
        conv()(X, torch.tensor([[1, 1], [2, 2]]))
    with pytest.raises(IndexError, match=r"the sources, must lie in 0..8: got 1..9"):
        conv()(X, torch.tensor([[1, 9], [2, 2]]))
