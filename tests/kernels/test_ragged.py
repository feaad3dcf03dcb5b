"""Ragged, per-sample and masked graphs and rotations of edges: every backend equals the reference; theorems."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from measures import relative_error
from torch import Tensor

from quatsphere import quaternion_attention, to_csr
from quatsphere.errors import ConfigError
from quatsphere.geometry import quaternion as Q
from quatsphere.geometry import sphere
from quatsphere.kernels import backends_on
from quatsphere.kernels.graphs import check_rotation, check_table
from quatsphere.kernels.inputs import ONE_WAY, ROUTINGS, TRANSPORTS

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}
FAST = [name for name in backends_on("cpu") if name != "reference"]
B, T, S, H, C = 2, 7, 6, 3, 2
DEGREES = {
    "random": [3, 1, 2, 6, 4, 1, 2],
    "empty": [0] * T,
    "star": [0, 0, 0, 6, 0, 0, 0],
    "skewed": [1, 0, 6, 1, 1, 0, 1],
}


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def csr(degrees: list[int], sources: int = S, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A graph with these numbers of distinct random neighbours."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.tensor([0, *degrees]).cumsum(0)
    parts = [torch.randperm(sources, generator=generator)[:degree] for degree in degrees]
    return rows, torch.cat([torch.zeros(0, dtype=torch.int64), *parts])


def padded(graph: tuple[Tensor, Tensor]) -> Tensor:
    """The same graph as a table filled up with -1, gaps last."""
    rows, source = graph
    counts = rows[1:] - rows[:-1]
    table = torch.full((len(counts), max(1, int(counts.max()))), -1)
    for i, (start, stop) in enumerate(itertools.pairwise(rows)):
        table[i, : stop - start] = source[start:stop]
    return table


def leaves(dtype: torch.dtype = torch.float64, edges: int | None = None, batch: int = B) -> dict[str, Tensor]:
    """Random arguments by name, with a rotation per edge if `edges` is given."""
    made = {
        "target_field": Q.normalize(normal(1, batch, T, H, 4)),
        "source_field": Q.normalize(normal(2, batch, S, H, 4)),
        "features": normal(3, batch, S, H, C, 4),
        "beta": normal(4, H).abs() + 0.5,
        "target_directions": torch.nn.functional.normalize(normal(5, T, 3), dim=-1),
        "source_directions": torch.nn.functional.normalize(normal(6, S, 3), dim=-1),
    }
    if edges is not None:
        made["edge_rotation"] = Q.normalize(normal(7, edges, 4))
    return {name: x.to(dtype).requires_grad_() for name, x in made.items()}


def results(given: dict[str, Tensor], graph: object, **options: object) -> dict[str, Tensor]:
    """Output and all gradients by name."""
    out = quaternion_attention(**given, neighbours=graph, **options)  # type: ignore[arg-type]
    probe = normal(9, *out.shape).to(out.dtype)
    found = torch.autograd.grad((out * probe).sum(), list(given.values()), allow_unused=True)
    zeros = (torch.zeros_like(x) if g is None else g for x, g in zip(given.values(), found, strict=True))
    return {"output": out.detach(), **dict(zip(given, zeros, strict=True))}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    for name, exact in expected.items():
        assert found[name].isfinite().all(), name
        if exact.numel() and exact.abs().max() > 1e-10:
            assert relative_error(found[name], exact) < tolerance, name
        else:
            assert found[name].abs().sum() < 1e-4, name


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("kind", DEGREES)
@pytest.mark.parametrize("transport", [*TRANSPORTS, *ONE_WAY])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_equals_reference(routing: str, transport: str, kind: str, backend: str) -> None:
    graph = csr(DEGREES[kind])
    keep = normal(8, B, len(graph[1]), H) > -0.5
    options = {"routing": routing, "transport": transport, "keep": keep, "keep_scale": 1.4}
    exact = results(leaves(), graph, **options, backend="reference")
    for dtype, tolerance in TOLERANCES.items():
        assert_same(results(leaves(dtype), graph, **options, backend=backend), exact, tolerance)


@pytest.mark.parametrize("transport", [*TRANSPORTS, *ONE_WAY])
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("kind", ["random", "skewed"])
def test_rotated_edges_equal_reference(kind: str, routing: str, transport: str) -> None:
    graph = csr(DEGREES[kind])
    keep = normal(8, B, len(graph[1]), H) > -0.5
    options = {"routing": routing, "transport": transport, "keep": keep, "keep_scale": 1.4}
    exact = results(leaves(edges=len(graph[1])), graph, **options, backend="reference")
    for backend, (dtype, tolerance) in itertools.product(FAST, TOLERANCES.items()):
        found = results(leaves(dtype, len(graph[1])), graph, **options, backend=backend)
        assert_same(found, exact, tolerance)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, S), min_size=T, max_size=T), st.sampled_from(ROUTINGS), st.sampled_from(TRANSPORTS))
def test_all_forms_of_a_graph_agree(degrees: list[int], routing: str, transport: str) -> None:
    """CSR, -1, a mask, a graph per sample, and the reference are one function."""
    graph, options = csr(degrees), {"routing": routing, "transport": transport}
    table = padded(graph)
    per_sample = table.expand(B, -1, -1)
    exact = results(leaves(), graph, **options, backend="reference")
    for form in (graph, table, per_sample):
        assert_same(results(leaves(), form, **options), exact, 1e-9)
    mask = {"valid": table >= 0}
    assert_same(results(leaves(), table.clamp(min=0), **options, **mask), exact, 1e-9)
    mask = {"valid": per_sample >= 0}
    assert_same(results(leaves(), table.clamp(min=0), **options, **mask), exact, 1e-9)


@pytest.mark.parametrize("backend", backends_on("cpu"))
def test_a_target_without_neighbours_gets_zero(backend: str) -> None:
    graph = csr(DEGREES["skewed"])
    found = results(leaves(), graph, backend=backend)
    alone = [i for i, degree in enumerate(DEGREES["skewed"]) if degree == 0]
    assert (found["output"][:, alone] == 0).all()
    assert (found["target_field"][:, alone] == 0).all()


@pytest.mark.parametrize("backend", backends_on("cpu"))
def test_equal_degrees_equal_the_regular_kernel(backend: str) -> None:
    table = padded(csr([4] * T))
    regular = results(leaves(), table, backend=backend)
    assert_same(results(leaves(), csr([4] * T), backend=backend), regular, 1e-10)
    graphs = torch.stack([table, table.flip(1)])
    assert_same(results(leaves(), graphs, backend=backend), regular, 1e-9)


def test_a_graph_per_sample_is_that_of_each_sample() -> None:
    graphs = torch.stack([padded(csr([4] * T, seed=seed)) for seed in range(B)])
    given = leaves()
    found = quaternion_attention(**given, neighbours=graphs)
    for b in range(B):
        one = {name: x[b : b + 1] if x.dim() > 2 else x for name, x in given.items()}
        assert torch.allclose(found[b : b + 1], quaternion_attention(**one, neighbours=graphs[b]))


@pytest.mark.parametrize("transport", [*TRANSPORTS, *ONE_WAY])
def test_identity_rotations_change_nothing(transport: str) -> None:
    table = padded(csr([4] * T))
    ones = torch.zeros(T, 4, 4, dtype=torch.float64)
    ones[..., 0] = 1
    plain = quaternion_attention(**leaves(), neighbours=table, transport=transport)
    turned = quaternion_attention(**leaves(), neighbours=table, transport=transport, edge_rotation=ones)
    assert torch.allclose(plain, turned, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("routing", ["alignment", "absolute", "uniform"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_gauge_changes_only_the_frames(routing: str, transport: str) -> None:
    """u_ij = g_i* g_j is the kernel without rotations in the frames g q."""
    table, given = padded(csr([4] * T)), leaves()
    g_target, g_source = Q.normalize(normal(10, T, 4)), Q.normalize(normal(11, S, 4))
    u = Q.relative(g_target[:, None], g_source[table])
    turned = quaternion_attention(**given, neighbours=table, routing=routing, transport=transport, edge_rotation=u)
    given["target_field"] = Q.multiply(g_target[:, None], given["target_field"])
    given["source_field"] = Q.multiply(g_source[:, None], given["source_field"])
    flat = quaternion_attention(**given, neighbours=table, routing=routing, transport=transport)
    assert torch.allclose(turned, flat, rtol=1e-10, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_the_holonomy_of_a_spherical_triangle_is_its_area(seed: int) -> None:
    """Three applications of the kernel along a -> b -> c -> a turn a tangent vector by the area."""
    points = torch.nn.functional.normalize(normal(seed, 3, 3) + torch.tensor([2.0, 0, 0]), dim=-1)
    x = torch.zeros(1, 1, 1, 1, 4, dtype=torch.float64)
    x[..., 1:] = torch.linalg.cross(points[0], points[1])
    start, one = x[0, 0, 0, 0, 1:] / x.norm(), torch.tensor([[[[1.0, 0, 0, 0]]]], dtype=torch.float64)
    graph = torch.zeros(1, 1, dtype=torch.int64)
    for here, there in ((0, 1), (1, 2), (2, 0)):
        u = sphere.parallel_transport(points[here], points[there]).view(1, 1, 4)
        x = quaternion_attention(one, one, x, graph, torch.ones(1, dtype=torch.float64), edge_rotation=u)
    end = x[0, 0, 0, 0, 1:] / x.norm()
    angle = math.atan2(float(points[0] @ torch.linalg.cross(start, end)), float(start @ end))
    area = float(sphere.triangle_area(*points))
    assert math.isclose(math.remainder(angle - area, 2 * math.pi), 0.0, abs_tol=1e-7)


def test_derivatives_of_second_order_and_forward_mode() -> None:
    graph = csr(DEGREES["skewed"])
    given = leaves(edges=len(graph[1]), batch=1)
    names = ("target_field", "source_field", "features", "edge_rotation")

    def call(*tensors: Tensor) -> Tensor:
        changed = {**given, **dict(zip(names, tensors, strict=True))}
        changed["edge_rotation"] = Q.normalize(changed["edge_rotation"])
        return quaternion_attention(**changed, neighbours=graph)

    tensors = tuple(given[name] for name in names)
    assert torch.autograd.gradgradcheck(lambda *x: call(*x).sin().sum(), tensors, atol=1e-4, fast_mode=True)
    tangents = tuple(normal(20 + n, *x.shape) for n, x in enumerate(tensors))
    value, slope = torch.func.jvp(call, tensors, tangents)
    step = 1e-6
    moved = call(*(x + step * t for x, t in zip(tensors, tangents, strict=True)))
    assert torch.allclose((moved - value) / step, slope, atol=1e-4)


def test_a_transport_given_as_a_function() -> None:
    graph = csr(DEGREES["skewed"])

    def message(target: Tensor, source: Tensor, features: Tensor) -> Tensor:
        return Q.sandwich(Q.relative(target, source)[..., None, :], features)

    given = leaves(edges=len(graph[1]))
    assert_same(results(given, graph, transport=message), results(given, graph, transport="sandwich"), 1e-10)
    assert_same(results(given, graph, transport=message, backend="reference"), results(given, graph), 1e-10)
    with pytest.raises(ConfigError, match="a routing given as a function needs k neighbours"):
        quaternion_attention(**given, neighbours=graph, routing=lambda *_: torch.ones(1))


@pytest.mark.parametrize("backend", backends_on("cpu"))
@pytest.mark.parametrize(("targets", "sources"), [(0, 3), (3, 0), (0, 0), (3, 3)])
def test_a_graph_without_edges(targets: int, sources: int, backend: str) -> None:
    """Also without targets or sources: zero, with zero gradients."""
    given = {
        "target_field": torch.ones(B, targets, H, 4),
        "source_field": torch.ones(B, sources, H, 4),
        "features": torch.ones(B, sources, H, C, 4),
        "beta": torch.ones(H),
    }
    given = {name: x.requires_grad_() for name, x in given.items()}
    empty = torch.zeros(0, dtype=torch.int64)
    for graph in ((torch.zeros(targets + 1, dtype=torch.int64), empty), empty.view(targets, 0) if targets else None):
        if graph is not None:
            found = results(given, graph, backend=backend)
            assert found["output"].shape == (B, targets, H, C, 4)
            assert all((x == 0).all() for x in found.values())


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (torch.zeros(2, 9, dtype=torch.int64), r"looks like edge_index \(2, E\); convert it with quatsphere.to_csr"),
        (torch.zeros(5, 3, dtype=torch.int64), r"shape \(7, k\) or \(B, 7, k\): got \(5, 3\)"),
        (torch.zeros(3, T, 2, dtype=torch.int64), r"shape \(2, 7, k\): got \(3, 7, 2\)"),
        (torch.full((T, 2), S), "must lie in 0..5, the source vertices: got 6..6"),
        (torch.full((T, 2), -2), "must lie in 0..5, the source vertices: got -2..-2"),
        (torch.full((B, T, 2), S), "must lie in 0..5, the source vertices: got 6..6"),
        (torch.zeros(T, 2), "neighbours must be int64: got torch.float32"),
        ((torch.zeros(T + 1, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)), "must grow from 0 to the 3 edges"),
        (
            (torch.tensor([0, 2, 1, 1, 1, 1, 1, 1]), torch.zeros(1, dtype=torch.int64)),
            "must grow from 0 to the 1 edges",
        ),
        ((torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)), r"row_pointer must have shape \(8,\)"),
        ((torch.arange(T + 1), torch.full((T,), S)), "source of CSR must lie in 0..5: got 6..6"),
        ((torch.arange(T + 1), torch.full((T,), -1)), "source of CSR must lie in 0..5: got -1..-1"),
    ],
)
@pytest.mark.parametrize("backend", backends_on("cpu"))
def test_bad_graphs_are_one_line(graph: object, message: str, backend: str) -> None:
    with pytest.raises((ConfigError, IndexError), match=message) as caught:
        quaternion_attention(**leaves(), neighbours=graph, backend=backend)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_bad_rotations_and_masks_are_one_line() -> None:
    table = padded(csr([4] * T))
    with pytest.raises(ConfigError, match="must be unit quaternions: got length 2; divide by the norm"):
        quaternion_attention(**leaves(), neighbours=table, edge_rotation=torch.ones(T, 4, 4))
    with pytest.raises(ConfigError, match="edge_rotation must have shape"):
        quaternion_attention(**leaves(), neighbours=table, edge_rotation=torch.ones(T, 3, 4) / 2)
    with pytest.raises(ConfigError, match=r"edge_rotation must be floating-point: got torch.int64"):
        check_rotation(torch.ones(T, 4, 4).long(), table, H)
    with pytest.raises(ConfigError, match=r"must have shape \(2, 7, 4, 4\) or \(2, 7, 4, 3, 4\): got \(7, 4, 4\)"):
        quaternion_attention(**leaves(), neighbours=table.expand(B, -1, -1), edge_rotation=torch.ones(T, 4, 4) / 2)
    with pytest.raises(ConfigError, match="a graph is neighbours"):
        check_rotation(torch.ones(T, 4, 4) / 2, [table], H)
    with pytest.raises(ConfigError, match=r"valid must be bool: got torch.int64"):
        check_table(table, table, T)
    with pytest.raises(ConfigError, match="valid belongs to neighbours"):
        quaternion_attention(**leaves(), neighbours=csr([4] * T), valid=table >= 0)


def test_to_csr_sorts_and_refuses_repeated_edges() -> None:
    edges = torch.tensor([[3, 0, 1, 2], [1, 0, 1, 0]])
    rows, source, order = to_csr(edges, 3, 4)
    assert rows.tolist() == [0, 2, 4, 4]
    assert source.tolist() == [0, 2, 1, 3]
    assert edges[0][order].tolist() == source.tolist()
    with pytest.raises(ConfigError, match=r"edge_index repeats 0 -> 0; merge repeated edges"):
        to_csr(torch.zeros(2, 2, dtype=torch.int64), 1)
    with pytest.raises(IndexError, match=r"row 1 of edge_index, the targets, must lie in 0..1: got 0..2"):
        to_csr(torch.tensor([[0, 1], [0, 2]]), 2)
    with pytest.raises(ConfigError, match="edge_index must be int64"):
        to_csr(torch.zeros(2, 2), 2)


@pytest.mark.parametrize("transport", [*TRANSPORTS, *ONE_WAY])
@pytest.mark.parametrize("routing", ["alignment", "absolute"])
def test_rotations_per_head_equal_one_head_at_a_time(routing: str, transport: str) -> None:
    graph, given = csr(DEGREES["skewed"]), leaves()
    u = Q.normalize(normal(12, len(graph[1]), H, 4))
    options = {"routing": routing, "transport": transport}
    found = results({**given, "edge_rotation": u.requires_grad_()}, graph, **options)
    exact = results({**given, "edge_rotation": u}, graph, **options, backend="reference")
    for backend in FAST:
        assert_same(results({**given, "edge_rotation": u}, graph, **options, backend=backend), exact, 1e-10)
    for h in range(H):
        one = {name: x[:, :, h : h + 1] if x.dim() > 3 else x for name, x in given.items()} | {
            "beta": given["beta"][h : h + 1]
        }
        alone = quaternion_attention(**one, neighbours=graph, edge_rotation=u[:, h], **options)
        assert torch.allclose(found["output"][:, :, h : h + 1], alone, rtol=1e-10, atol=1e-12)
