"""The fused CPU attention over edge lists: parts and chunks of very skewed graphs, threads, compilation, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from measures import relative_error
from torch import Tensor

from quatsphere import quaternion_attention
from quatsphere.errors import ConfigError
from quatsphere.geometry import quaternion as Q
from quatsphere.kernels import cpu
from quatsphere.kernels.cpu import ragged as cpu_ragged
from quatsphere.kernels.inputs import ONE_WAY, ROUTINGS, TRANSPORTS

pytestmark = pytest.mark.skipif(not cpu.available(), reason="numba is not installed")
Csr = tuple[Tensor, Tensor]


@pytest.fixture
def threads():
    """Set torch's number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def graph_of(degrees: list[int], sources: int, seed: int, hub: bool = False) -> Csr:
    """CSR with these numbers of random sources, or all edges from source 0."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.tensor([0, *degrees]).cumsum(0)
    source = torch.randint(0, sources, (int(rows[-1]),), generator=generator)
    return rows, source * (not hub)


def problem(graph: Csr, sources: int, heads: int, seed: int, turned: str = "none", batch: int = 1) -> dict[str, Tensor]:
    """Random float64 arguments by name; `turned` is none, edges or heads."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    targets, edges = len(graph[0]) - 1, len(graph[1])
    made = {
        "target_field": Q.normalize(normal(batch, targets, heads, 4), check=False),
        "source_field": Q.normalize(normal(batch, sources, heads, 4), check=False),
        "features": normal(batch, sources, heads, 2, 4),
        "beta": normal(heads).abs() + 0.5,
        "target_directions": torch.nn.functional.normalize(normal(targets, 3), dim=-1),
        "source_directions": torch.nn.functional.normalize(normal(sources, 3), dim=-1),
    }
    if turned != "none":
        made["edge_rotation"] = Q.normalize(normal(edges, *([heads] if turned == "heads" else []), 4))
    return made


def results(made: dict[str, Tensor], graph: Csr, dtype: torch.dtype = torch.float64, **options: object) -> list[Tensor]:
    """Output and all gradients."""
    leaves = {name: x.to(dtype).requires_grad_() for name, x in made.items()}
    out = quaternion_attention(**leaves, neighbours=graph, **options)  # type: ignore[arg-type]
    probe = torch.sin(torch.arange(out.numel(), dtype=torch.float64)).view(out.shape).to(dtype)
    found = torch.autograd.grad((out * probe).sum(), list(leaves.values()), allow_unused=True)
    return [
        out.detach(),
        *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves.values(), found, strict=True)),
    ]


def assert_close(found: list[Tensor], exact: list[Tensor], tolerance: float) -> None:
    for one, other in zip(found, exact, strict=True):
        assert one.isfinite().all()
        if other.numel() and other.abs().max() > 1e-10:
            assert relative_error(one, other) < tolerance
        else:
            assert not other.numel() or one.abs().max() < 10 * tolerance  # cancels in the mathematics


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([0, 0, 1, 2, 3, 7, 20, 255, 256, 257, 700]), min_size=1, max_size=6),
    st.integers(1, 12),
    st.integers(0, 10**6),
    st.tuples(st.sampled_from(ROUTINGS), st.sampled_from([*TRANSPORTS, *ONE_WAY])),
    st.sampled_from(["none", "edges", "heads"]),
    st.booleans(),
)
def test_equals_plain_torch_for_any_degrees(
    degrees: list[int], heads: int, seed: int, rules: tuple[str, str], turned: str, hub: bool
) -> None:
    """Degrees up to several parts; with a hub all edges leave one source. Plain torch equals the reference, which takes
    every target in turn, in test_ragged."""
    graph = graph_of(degrees, 9, seed, hub)
    made = problem(graph, 9, heads, seed, turned, batch=1 + seed % 2)
    keep = torch.rand(1 + seed % 2, len(graph[1]), heads, generator=torch.Generator().manual_seed(seed)) > 0.3
    options = {"routing": rules[0], "transport": rules[1], "keep": keep if seed % 3 else None, "keep_scale": 1.4}
    exact = results(made, graph, **options, backend="factored")
    assert_close(results(made, graph, **options, backend="numba_cpu"), exact, 1e-9)
    assert_close(results(made, graph, torch.float32, **options, backend="numba_cpu"), exact, 1e-4)


@pytest.mark.parametrize("turned", ["none", "edges"])
@pytest.mark.parametrize("batch", [1, 5], ids=["by_parts", "by_images"])
def test_bit_identical_for_any_number_of_threads(batch: int, turned: str, threads) -> None:
    graph = graph_of([900, 0, 3, 40, 300, 1] + [8] * 60, 50, 0)
    made = problem(graph, 50, 8, 0, turned, batch)
    found = []
    for count in (1, 2, 2, 3, 7):
        threads(count)
        found.append(results(made, graph, torch.float32, backend="numba_cpu"))
    for other in found[1:]:
        assert all(torch.equal(one, same) for one, same in zip(found[0], other, strict=True))


@given(st.lists(st.integers(0, 2000), max_size=40))
def test_parts_cover_every_edge_once_in_chunks_of_bounded_cost(degrees: list[int]) -> None:
    """Every vertex has a part, every edge is in one, and no chunk costs twice CHUNK_COST: one target with most of
    the edges does not keep one thread busy while the others wait."""
    from quatsphere.kernels.cpu.loops.ragged import CHUNK_COST, PART_EDGES, VERTEX_COST, cut_rows

    rows = np.concatenate(([0], np.cumsum(np.array(degrees, np.int64)))).astype(np.int64)
    parts = cut_rows(rows)
    sizes = np.diff(parts.offsets)
    assert parts.offsets[0] == 0
    assert parts.offsets[-1] == rows[-1]
    assert np.all(sizes >= 0)
    assert np.all(sizes <= PART_EDGES)
    assert np.array_equal(np.bincount(parts.vertex, sizes, len(degrees)), degrees)
    costs = [sum(sizes[a:b] + VERTEX_COST) for a, b in zip(parts.chunks[:-1], parts.chunks[1:], strict=True)]
    assert sum(costs) == rows[-1] + VERTEX_COST * len(sizes)
    assert all(cost < 2 * CHUNK_COST for cost in costs)
    assert all(cost > 0 for cost in costs)
    split = [v for v, degree in enumerate(degrees) if degree > PART_EDGES]
    assert parts.split_vertex.tolist() == split
    assert sorted(parts.partial[parts.partial >= 0]) == list(range(parts.split[-1]))


def operands(**changed: object) -> tuple[object, ...]:
    graph = graph_of([3, 0, 2, 5], 4, 1)
    made = problem(graph, 4, 3, 1, "edges") | {"rows": graph[0], "source": graph[1]} | changed
    names = ("target_field", "source_field", "features", "rows", "source", "edge_rotation", "beta")
    tensors = [made[name] for name in names]
    tensors[5] = tensors[5][:, None].clone().requires_grad_()  # type: ignore[index]
    tensors[2].requires_grad_()  # type: ignore[attr-defined]
    return (*tensors, None, None, None, 0, 0, 1.0, True)


def test_opcheck() -> None:
    torch.library.opcheck(cpu_ragged.attend_ragged.overload, operands())


def test_compiled_equals_eager() -> None:
    arguments = operands()

    def attend(features: Tensor, rotation: Tensor) -> Tensor:
        given = (*arguments[:2], features + 1, *arguments[3:5], 1.0 * rotation, *arguments[6:])
        return cpu_ragged.attend_ragged(*given)[0].sin()

    leaves = [arguments[2], arguments[5]]
    graph = torch.compile(attend, fullgraph=True, backend="aot_eager")
    eager, compiled = (torch.autograd.grad(f(*leaves).sum(), leaves) for f in (attend, graph))
    assert all(torch.allclose(a, b) for a, b in zip(eager, compiled, strict=True))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"source": torch.tensor([0, 1, 2, 3, 4, 0, 0, 0, 0, 0])}, r"neighbours must lie in 0..3"),
        ({"source": torch.tensor([0, 1, 2, 3, -1, 0, 0, 0, 0, 0])}, r"neighbours must lie in 0..3"),
        ({"rows": torch.tensor([0, 3, 3, 5, 11])}, "row_pointer must have 5 entries that grow from 0 to the 10 edges"),
        ({"rows": torch.tensor([0, 7, 3, 5, 10])}, "row_pointer must have 5 entries"),
        ({"rows": torch.tensor([0, 10])}, "row_pointer must have 5 entries"),
    ],
)
def test_the_operator_itself_never_reads_outside_an_array(changed: dict[str, Tensor], message: str) -> None:
    with pytest.raises((ConfigError, IndexError), match=message):
        cpu_ragged.attend_ragged(*operands(**changed))


def test_nan_propagates_and_extreme_scores_are_finite() -> None:
    graph = graph_of([3, 0, 300, 5], 4, 1)
    made = problem(graph, 4, 3, 1)
    made["beta"] = torch.tensor([0.0, 60.0, 1e4], dtype=torch.float64)
    exact = results(made, graph, backend="factored")
    assert_close(results(made, graph, backend="numba_cpu"), exact, 1e-9)
    assert all(x.isfinite().all() for x in results(made, graph, torch.float32, backend="numba_cpu"))
    made = {name: x.detach() for name, x in made.items()}
    made["features"][0, int(graph[1][0]), 0, 0, 1] = float("nan")
    out = quaternion_attention(**made, neighbours=graph, backend="numba_cpu")
    assert out[0, 0, 0].isnan().any()
    assert (out[0, 1] == 0).all()


def test_the_regular_kernel_does_not_load_the_ragged_loops() -> None:
    import subprocess
    import sys

    code = (
        "import sys, torch; from quatsphere import quaternion_attention as f; q = torch.eye(4).view(1, 4, 1, 4);"
        "f(q, q, q.unsqueeze(3), torch.zeros(4, 2, dtype=torch.int64), torch.ones(1), backend='numba_cpu');"
        "assert 'quatsphere.kernels.cpu.loops.ragged' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
