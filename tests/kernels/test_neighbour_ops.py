"""The three neighbour operations: against dense matrices, their own gradients, and bit for bit on any threads."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from quatsphere.kernels import add_resampled, cpu, dot_product_attention, neighbour_ops, resample_vertices
from quatsphere.kernels.cpu import resample as cpu_resample
from quatsphere.kernels.neighbour_ops import edge_dot, gather_sum, scatter_sum


@pytest.fixture
def graph() -> Tensor:
    return torch.tensor([[0, 1], [1, 3], [3, 3], [0, 3], [2, 1]])  # source 4 has no target, 3 is listed twice by one


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def dense(weights: Tensor, graph: Tensor, sources: int) -> Tensor:
    """(B, T, k, H) -> (B, H, T, S) summing over repeated neighbours."""
    B, T, k, H = weights.shape
    matrix = torch.zeros(B, H, T, sources, dtype=weights.dtype)
    for t in range(T):
        for slot in range(k):
            matrix[:, :, t, graph[t, slot]] += weights[:, t, slot]
    return matrix


@pytest.fixture(params=[0, 1, 2**26])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots one by one as on CPUs, and as on accelerators, one and all at a time."""
    monkeypatch.setattr(neighbour_ops, "ROWS", request.param)
    monkeypatch.setattr(neighbour_ops, "_many_at_once", lambda _: request.param > 0)


@pytest.mark.usefixtures("rows")
def test_against_dense_matrices(graph: Tensor) -> None:
    weights, target, source = tensors((2, 5, 2, 3), (2, 5, 3, 4), (2, 5, 3, 4))
    matrix = dense(weights, graph, 5)
    gathered = torch.einsum("bhts,bshc->bthc", matrix, source)
    scattered = torch.einsum("bhts,bthc->bshc", matrix, target)
    every = torch.einsum("bthc,bshc->btsh", target, source)
    assert torch.allclose(gather_sum(weights, source, graph), gathered)
    assert torch.allclose(scatter_sum(weights, target, graph, 5), scattered)
    for t in range(5):
        assert torch.allclose(edge_dot(target, source, graph)[:, t], every[:, t, graph[t]])


@pytest.mark.usefixtures("rows")
def test_gradients_of_first_and_second_order(graph: Tensor) -> None:
    weights, target, source = tensors((1, 5, 2, 2), (1, 5, 2, 3), (1, 5, 2, 3))
    cases = [
        (lambda a, b: edge_dot(a, b, graph), (target, source)),
        (lambda w, b: gather_sum(w, b, graph), (weights, source)),
        (lambda w, a: scatter_sum(w, a, graph, 5), (weights, target)),
    ]
    for function, arguments in cases:
        assert gradcheck(function, arguments)
        assert gradgradcheck(function, arguments)


def test_operators_pass_opcheck(graph: Tensor) -> None:
    weights, target, source = tensors((1, 5, 2, 2), (1, 5, 2, 3), (1, 5, 2, 3))
    operators = torch.ops.quatsphere
    for operator, arguments in (
        (operators.edge_dot.default, (target, source, graph)),
        (operators.gather_sum.default, (weights, source, graph)),
        (operators.scatter_sum.default, (weights, target, graph, 5)),
    ):
        torch.library.opcheck(operator, arguments)


def test_bits_do_not_depend_on_threads() -> None:
    generator = torch.Generator().manual_seed(0)
    graph = torch.randint(320, (384, 16), generator=generator)
    source = torch.randn(2, 320, 16, 16, generator=generator, requires_grad=True)
    weights = torch.rand(2, 384, 16, 16, generator=generator, requires_grad=True)
    found = []
    before = torch.get_num_threads()
    for threads in (1, 2, 2):
        torch.set_num_threads(threads)
        out = gather_sum(weights, source, graph)
        found.append([out, *torch.autograd.grad(out.square().sum(), (weights, source))])
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_resampling_is_differentiable_and_linear() -> None:
    (x,) = tensors((2, 5, 3))
    indices, weights = torch.tensor([[0, 1], [3, 4], [2, 2]]), torch.tensor([[0.3, 0.7], [0.5, 0.5], [1.0, 0.0]])
    expected = (x[:, indices] * weights.double()[..., None]).sum(2)
    for backend in ("auto", "factored"):
        resample = partial(resample_vertices, indices=indices, weights=weights.double(), backend=backend)
        assert torch.allclose(resample(x), expected)
        assert gradcheck(resample, (x,))
        assert gradgradcheck(resample, (x,))


@pytest.mark.parametrize("width", [3, 8, 13])
@pytest.mark.parametrize("backend", ["auto", "factored"])
def test_gated_residual_equals_its_formula(backend: str, width: int) -> None:
    """update + gate * interp(x), values and all three gradients, also for a closed gate."""
    update, x = tensors((2, 3, width), (2, 5, width))
    indices, weights = torch.tensor([[0, 1], [3, 4], [2, 2]]), torch.tensor([[0.3, 0.7], [0.5, 0.5], [1.0, 0.0]])
    for number in (0.7, 0.0):
        gate = torch.tensor(number, dtype=torch.float64, requires_grad=True)
        residual = partial(add_resampled, indices=indices, weights=weights, backend=backend)
        expected = update + gate * (x[:, indices] * weights.double()[..., None]).sum(2)
        assert torch.allclose(residual(update, gate, x), expected, rtol=1e-14)
        assert gradcheck(residual, (update, gate, x))


@pytest.mark.skipif(not cpu.available(), reason="numba is not installed")
def test_compiled_resampling_passes_opcheck() -> None:
    x, g = tensors((2, 5, 3), (2, 4, 3))
    indices, weights = torch.tensor([[0, 1], [3, 4], [2, 2], [4, 0]]), torch.rand(4, 2, dtype=torch.float64)
    torch.library.opcheck(cpu_resample.resample.overload, (x, indices, weights))
    torch.library.opcheck(cpu_resample.resample_back.overload, (g, indices, weights, 5))
    torch.library.opcheck(cpu_resample.resample_onto.overload, (g, x[0, 0, 0].detach(), x, indices, weights))
    with pytest.raises(IndexError, match=r"0\.\.4"):
        resample_vertices(x, indices + 1, weights)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_full_neighbourhood_is_torch_attention(dtype: torch.dtype) -> None:
    """k = V: the dot-product kernel is scaled_dot_product_attention, values and all gradients."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 7, 3, 8, generator=generator, dtype=dtype).requires_grad_() for _ in range(3))
    everyone = torch.arange(7).repeat(7, 1)
    ours = dot_product_attention(q, k, v, everyone)
    theirs = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert torch.allclose(ours, theirs, atol=tolerance)
    probe = torch.randn(ours.shape, generator=generator, dtype=dtype)
    for a, b in zip(
        torch.autograd.grad((ours * probe).sum(), (q, k, v)),
        torch.autograd.grad((theirs * probe).sum(), (q, k, v)),
        strict=True,
    ):
        assert torch.allclose(a, b, atol=tolerance)


def test_a_reversed_table_is_found_until_the_graph_changes(graph: Tensor) -> None:
    """By memory and version: a changed graph, another number of sources or a freed table is sorted again."""
    known = neighbour_ops.ReversedTable(graph, 5)
    assert neighbour_ops.reversed_edges(graph, 5)[0] is known.offsets
    assert neighbour_ops.reversed_edges(graph.detach(), 5)[1] is known.edges
    assert neighbour_ops.reversed_edges(graph, 6)[0] is not known.offsets
    assert neighbour_ops.reversed_edges(graph.clone(), 5)[0] is not known.offsets
    place = known.edges.data_ptr()
    graph[0, 0] = 4
    assert neighbour_ops.reversed_edges(graph, 5)[0] is not known.offsets
    known.update()
    offsets, edges = neighbour_ops.reversed_edges(graph, 5)
    assert offsets is known.offsets
    assert edges.data_ptr() == place
    expected = neighbour_ops.reverse_edges(graph, 5)
    assert torch.equal(offsets, expected[0])
    assert torch.equal(edges, expected[1])
    del known
    assert neighbour_ops.ReversedTable.find(graph, 5) is None
