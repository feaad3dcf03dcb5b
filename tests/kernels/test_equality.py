"""Every backend equals the reference: values and all gradients, every routing x transport x keep mask."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers.kernel_inputs import assert_equal, make_problem
from hypothesis import given
from hypothesis import strategies as st

from quatsphere.errors import ConfigError
from quatsphere.geometry import quaternion as Q
from quatsphere.geometry import sphere
from quatsphere.geometry.neighbours import knn_budget, nearest_neighbours
from quatsphere.kernels import AttentionInputs, backends_on, quaternion_attention
from quatsphere.kernels.inputs import ROUTINGS, TRANSPORTS

FAST = [name for name in backends_on("cpu") if name != "reference"]


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("keep", [False, True], ids=["all", "keep"])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_equals_reference_on_a_random_graph(routing: str, transport: str, keep: bool, backend: str) -> None:
    assert_equal(make_problem(0, (2, 9, 7, 4, 3, 2), routing, transport, keep), backend)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_equals_reference_on_a_real_graph(routing: str, transport: str, backend: str) -> None:
    source, target = sphere.fibonacci_sphere(128), sphere.fibonacci_sphere(192, 0.85)
    graph = nearest_neighbours(target, source, knn_budget(192))
    problem = make_problem(1, (2, 192, 128, 14, 2, 2), routing, transport, True, graph)
    directions = {"target_directions": sphere.directions(target).double()}
    assert_equal(dataclasses.replace(problem, **directions), backend)


@pytest.mark.parametrize("backend", FAST)
@given(
    st.tuples(
        st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.just(1), st.integers(1, 5), st.integers(1, 8)
    ),
    st.integers(0, 10**6),
    st.sampled_from(ROUTINGS),
    st.sampled_from(TRANSPORTS),
    st.booleans(),
)
def test_equals_reference_on_random_shapes(
    backend: str, sizes: tuple[int, ...], seed: int, routing: str, transport: str, keep: bool
) -> None:
    B, T, S, _, H, channels = sizes
    assert_equal(make_problem(seed, (B, T, S, 1 + seed % S, H, channels), routing, transport, keep), backend)


def test_reference_of_one_edge_by_hand() -> None:
    """One target, one source: the weight is 1 and z = r x r*, from the definition."""
    problem = make_problem(3, (1, 1, 1, 1, 1, 1))
    r = Q.relative(problem.target_field[0, 0, 0], problem.source_field[0, 0, 0])
    expected = Q.multiply(Q.multiply(r, problem.features[0, 0, 0, 0]), Q.conjugate(r))
    z = quaternion_attention(
        problem.target_field, problem.source_field, problem.features, problem.neighbours, problem.beta,
        backend="reference",
    )  # fmt: skip
    assert torch.allclose(z[0, 0, 0, 0], expected)


def test_autocast_inputs_are_widened_at_the_border() -> None:
    problem = make_problem(4, (1, 5, 5, 3, 2, 2))
    fields = (problem.target_field.float(), problem.source_field.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = quaternion_attention(*fields, problem.features.bfloat16(), problem.neighbours, problem.beta.float())
    assert z.dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"routing": "softmax"}, "unknown routing 'softmax'; choose one of alignment"),
        ({"transport": "projected"}, "unknown transport 'projected'; choose one of sandwich"),
        ({"backend": "cuda"}, "unknown backend 'cuda'; choose one of auto"),
        ({"beta": torch.ones(5)}, r"beta must have shape \(3,\): got \(5,\)"),
        ({"neighbours": torch.zeros(9, 4, dtype=torch.int32)}, "neighbours must be int64"),
        ({"keep": torch.ones(2, 9, 4, 3)}, "keep must be bool: got torch.float32"),
        ({"routing": "geometric", "target_directions": None}, "geometric' needs target_directions"),
    ],
)
def test_bad_arguments_state_the_rule(change: dict[str, object], message: str) -> None:
    problem = make_problem(5, (2, 9, 7, 4, 3, 2))
    arguments = {f.name: getattr(problem, f.name) for f in dataclasses.fields(problem)} | change
    if "beta" in change or "keep" in change:  # under pytest jaxtyping checks shapes first: check the inputs themselves
        with pytest.raises(ConfigError, match=message):
            AttentionInputs(**arguments)
        return
    with pytest.raises(ConfigError, match=message):
        quaternion_attention(**arguments)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("backend", FAST)
def test_quaternions_of_any_length(transport: str, backend: str) -> None:
    """Also for quaternions that are not unit: every power of |q|² in the gradients is correct."""
    problem = make_problem(3, (2, 6, 7, 3, 5, 3), "alignment", transport)
    lengths = torch.linspace(0.5, 2.0, 5, dtype=torch.float64)[:, None]
    fields = problem.target_field * lengths, problem.source_field * lengths.flip(0)
    assert_equal(dataclasses.replace(problem, target_field=fields[0], source_field=fields[1]), backend)
