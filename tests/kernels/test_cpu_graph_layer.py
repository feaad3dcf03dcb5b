"""The graph layer as one function on CPUs equals plain torch; what is kept of a graph follows its changes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from measures import relative_error
from torch import Tensor

from quatsphere import QuaternionConv
from quatsphere.kernels import cpu
from quatsphere.kernels.caches import GraphCache
from quatsphere.kernels.cpu import graph_layer as layer
from quatsphere.kernels.inputs import ROUTINGS, TRANSPORTS
from quatsphere.nn.quaternion_conv import sort_edges

pytestmark = pytest.mark.skipif(not cpu.available(), reason="numba is not installed")
NODES, DEGREE = 13, 3


def problem(
    batch: int, heads: int, channels: int, ragged: bool, dropped: bool, dtype: torch.dtype = torch.float64
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Differentiable inputs of `_GraphLayer`, and its graph and mask."""
    generator = torch.Generator().manual_seed(heads + 10 * batch)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    width = 4 * heads * channels
    leaves = [
        normal(batch, NODES, 5),
        normal(width, 5),
        normal(width, 5),
        normal(width),
        normal(heads, width // heads, 3),
        normal(heads, 3),
        torch.full((1,), 0.4, dtype=dtype),
        torch.nn.functional.normalize(normal(NODES, heads, 4), dim=-1),
        normal(heads).abs() + 0.5,
    ]
    source, rows = torch.randint(0, NODES, (NODES, DEGREE), generator=generator), None
    shape: tuple[int, ...] = (batch, NODES, DEGREE, heads)
    if ragged:
        counts = torch.randint(0, 2 * DEGREE, (NODES,), generator=generator)
        counts[4] = 0
        rows = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
        source = torch.randint(0, NODES, (int(rows[-1]),), generator=generator)
        shape = (batch, len(source), heads)
    keep = torch.rand(shape, generator=generator) > 0.3 if dropped else None
    return [leaf.requires_grad_() for leaf in leaves], [source, rows, keep]


def values_and_gradients(function: Any, leaves: list[Tensor], rest: list[Any]) -> list[Tensor]:
    out = function(*leaves, *rest)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), leaves, materialize_grads=True)]


@pytest.mark.parametrize("ragged", [False, True], ids=["regular", "ragged"])
@pytest.mark.parametrize(("batch", "heads", "channels"), [(1, 1, 4), (1, 4, 4), (2, 4, 2), (1, 3, 3), (3, 9, 1)])
def test_it_equals_plain_torch(batch: int, heads: int, channels: int, ragged: bool) -> None:
    """Values and gradients; heads are split where lanes would be empty, and (1, 3, 3) cannot be split in two."""
    leaves, rest = problem(batch, heads, channels, ragged, dropped=heads == 4)
    modes = ROUTINGS.index("alignment"), TRANSPORTS.index("sandwich"), 1.4
    found = values_and_gradients(layer._GraphLayer.apply, leaves, [*rest, *modes])
    for one, other in zip(found, values_and_gradients(layer._plain, leaves, [*rest, *modes]), strict=True):
        assert relative_error(one, other) < 1e-11
    narrow = problem(batch, heads, channels, ragged, heads == 4, torch.float32)
    for one, other in zip(
        values_and_gradients(layer._GraphLayer.apply, narrow[0], [*rest, *modes]), found, strict=True
    ):
        assert relative_error(one.double(), other) < 1e-4


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("routing", ["alignment", "absolute", "uniform"])
@pytest.mark.parametrize("ragged", [False, True], ids=["regular", "ragged"])
def test_every_rule_equals_plain_torch(ragged: bool, routing: str, transport: str) -> None:
    leaves, rest = problem(1, 2, 2, ragged, dropped=False)
    modes = ROUTINGS.index(routing), TRANSPORTS.index(transport), 1.0
    found = values_and_gradients(layer._GraphLayer.apply, leaves, [*rest, *modes])
    for one, other in zip(found, values_and_gradients(layer._plain, leaves, [*rest, *modes]), strict=True):
        assert relative_error(one, other) < 1e-11


@pytest.mark.parametrize("ragged", [False, True], ids=["regular", "ragged"])
def test_gradients_can_be_differentiated_again(ragged: bool) -> None:
    leaves, rest = problem(1, 2, 2, ragged, dropped=False)
    both = []
    for function in (layer._GraphLayer.apply, layer._plain):
        out = function(*leaves, *rest, 0, 0, 1.0)  # type: ignore[no-untyped-call]
        (gradient,) = torch.autograd.grad(out.square().sum(), leaves[0], create_graph=True)
        both.append(torch.autograd.grad(gradient.square().sum(), leaves[1])[0])
    assert relative_error(*(each.detach() for each in both)) < 1e-9


def test_the_layer_uses_it_and_equals_the_composed_layer() -> None:
    """Regular and irregular graphs, a base, dropout off; a layer with a map of its own is composed."""
    torch.manual_seed(0)
    x, edges = torch.randn(2, NODES, 6, dtype=torch.float64), torch.randint(0, NODES, (2, 40)).unique(dim=1)
    base = torch.nn.functional.normalize(torch.randn(NODES, 4, dtype=torch.float64), dim=-1)
    fused = QuaternionConv(6, 8, 4, residual=True).double()
    plain = QuaternionConv(6, 8, 4, residual=True, backend="factored").double()
    plain.load_state_dict(fused.state_dict())
    ring = torch.arange(NODES)
    for graph in (edges, (ring[:, None] + torch.tensor([1, 5, 6])) % NODES):
        assert fused._fuses(x, sort_edges(graph, NODES, NODES)[0])
        assert not plain._fuses(x, sort_edges(graph, NODES, NODES)[0])
        same = fused(x, graph, base=base), plain(x, graph, base=base)
        assert relative_error(*(each.detach() for each in same)) < 1e-12
    assert not QuaternionConv(6, 8, 4, transport="projected").double()._fuses(x, graph)
    assert not fused._fuses(x, torch.where(graph == 0, -1, graph))


def test_a_graph_is_kept_until_it_changes_or_is_gone() -> None:
    cache, calls = GraphCache(), []

    def make() -> int:
        calls.append(1)
        return len(calls)

    a, b = torch.arange(4), torch.arange(4)
    assert [cache.get((a, b), 1, make), cache.get((a, b), 1, make)] == [1, 1]
    assert cache.get((a, b.clone()), 1, make) == 2
    assert cache.get((a, b), 2, make) == 3
    a[0] = 3
    assert cache.get((a, b), 2, make) == 4
    a.data = torch.arange(9)  # the version does not change
    assert cache.get((a, b), 2, make) == 5
    b.numpy()[0] = 2  # neither does this
    assert cache.get((a, b), 2, make) == 6
    with torch.inference_mode():
        hidden = torch.arange(4)
    assert cache.get((hidden,), 0, make) != cache.get((hidden,), 0, make)
    gone = weakref.ref(a)
    del a
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("regular", [True, False])
def test_graphs_and_what_follows_from_them_are_freed(regular: bool) -> None:
    conv, x = QuaternionConv(4, 4, 1), torch.randn(NODES, 4, requires_grad=True)
    target, source = torch.arange(NODES).repeat_interleave(2), torch.arange(2 * NODES) % NODES
    edges = torch.stack((source, target))[:, 0 if regular else 1 :].clone()
    conv(x, edges).sum().backward()
    rows = torch.searchsorted(edges[1].contiguous(), torch.arange(NODES + 1))
    source = edges[0].clone()
    conv(x, (rows, source)).sum().backward()
    gone = [weakref.ref(tensor) for tensor in (edges, rows, source)]
    del edges, rows, source
    gc.collect()
    assert [each() for each in gone] == [None] * 3


def test_rows_rewritten_through_numpy_are_read_again() -> None:
    """The graph shrinks in place, without a mark on its tensors: old row pointers would lead outside of the arrays."""
    torch.manual_seed(0)
    nodes, degree = 50, 20
    conv = QuaternionConv(8, 8, heads=2)
    x = torch.randn(1, nodes, 8, requires_grad=True)
    pointers = np.arange(nodes + 1) * degree
    rows, source = torch.from_numpy(pointers), torch.randint(nodes, (nodes * degree,))
    torch.autograd.grad(conv(x, (rows, source)).square().sum(), x)
    pointers[:] = np.arange(nodes + 1)
    graph = (rows, torch.arange(nodes).flip(0))
    found, expected = conv(x, graph), conv(x, (rows.clone(), graph[1]))
    gradients = [torch.autograd.grad(out.square().sum(), x)[0] for out in (found, expected)]
    assert torch.equal(found, expected)
    assert torch.equal(*gradients)


def test_features_without_a_batch_axis_are_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def counted(*inputs: object) -> Tensor:
        calls.append(1)
        return layer.graph_layer(*inputs)

    monkeypatch.setattr("quatsphere.nn.quaternion_conv.graph_layer", counted)
    conv, x, graph = QuaternionConv(8, 8, heads=2), torch.randn(5, 8), torch.randint(5, (5, 3))
    assert torch.equal(conv(x, graph), conv(x[None], graph)[0])
    assert len(calls) == 2
