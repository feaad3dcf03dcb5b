"""Mathematical properties of the coupled kernel, for every backend, in float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from helpers.kernel_inputs import make_problem
from torch import Tensor

from quatsphere.geometry import quaternion as Q
from quatsphere.kernels import AttentionInputs, backends_on, quaternion_attention
from quatsphere.kernels.torch_backend import edge_scores, edge_weights

every_backend = pytest.mark.parametrize("backend", backends_on("cpu"))
SIZES = (2, 8, 6, 4, 3, 2)


def apply(problem: AttentionInputs, backend: str, **changes: Any) -> Tensor:
    changed = dataclasses.replace(problem, **changes)
    return quaternion_attention(
        **{f.name: getattr(changed, f.name) for f in dataclasses.fields(changed)}, backend=backend
    )


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-11, atol=1e-12)


@every_backend
@pytest.mark.parametrize("routing", ["alignment", "absolute", "uniform"])
@pytest.mark.parametrize("transport", ["sandwich", "one_sided", "identity"])
def test_invariant_to_global_left_rotation(routing: str, transport: str, backend: str) -> None:
    """q -> g q for all tokens changes nothing: only relative quaternions enter."""
    problem = make_problem(0, SIZES, routing, transport)
    g = Q.random_unit(dtype=torch.float64)
    turned = apply(
        problem,
        backend,
        target_field=Q.multiply(g, problem.target_field),
        source_field=Q.multiply(g, problem.source_field),
    )
    assert close(turned, apply(problem, backend))


@every_backend
@pytest.mark.parametrize("routing", ["alignment", "absolute", "uniform"])
def test_kernel_equivariant_to_right_gauge(routing: str, backend: str) -> None:
    """q -> q g and x -> g* x g: scores unchanged, output -> g* z g."""
    problem = make_problem(1, SIZES, routing)
    g = Q.random_unit(dtype=torch.float64)
    turned = apply(
        problem,
        backend,
        target_field=Q.multiply(problem.target_field, g),
        source_field=Q.multiply(problem.source_field, g),
        features=Q.sandwich(Q.conjugate(g), problem.features),
    )
    assert close(turned, Q.sandwich(Q.conjugate(g), apply(problem, backend)))


@every_backend
def test_double_cover(backend: str) -> None:
    """q_i -> -q_i: transport and absolute routing are invariant, alignment routing flips its score."""
    problem = make_problem(2, SIZES)
    flip = torch.where(torch.arange(8) % 2 == 0, 1.0, -1.0).double()[None, :, None, None]
    flipped = problem.target_field * flip
    for routing in ("absolute", "uniform"):
        same = dataclasses.replace(problem, routing=routing)
        assert close(apply(same, backend, target_field=flipped), apply(same, backend))
    scores = edge_scores(problem)
    flipped_scores = edge_scores(dataclasses.replace(problem, target_field=flipped))
    assert close(flipped_scores, scores * flip)
    assert not close(apply(problem, backend, target_field=flipped), apply(problem, backend))


@every_backend
@pytest.mark.parametrize("transport", ["sandwich", "identity", "one_sided"])
@pytest.mark.parametrize("routing", ["alignment", "absolute", "uniform"])
def test_frozen_identity_is_both_roles_off(routing: str, transport: str, backend: str) -> None:
    problem = make_problem(3, SIZES, routing, transport)
    one = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    identity = {"target_field": one.expand(2, 8, 3, 4), "source_field": one.expand(2, 6, 3, 4)}
    off = apply(problem, "reference", routing="uniform", transport="identity")
    assert close(apply(problem, backend, **identity), off)


@every_backend
def test_no_sharpness_is_uniform(backend: str) -> None:
    problem = make_problem(4, SIZES)
    assert close(apply(problem, backend, beta=torch.zeros(3).double()), apply(problem, backend, routing="uniform"))


@every_backend
def test_infinite_sharpness_takes_the_best_neighbour(backend: str) -> None:
    """β -> ∞: the message of the neighbour with the largest score alone."""
    problem = make_problem(5, SIZES)
    beta = torch.full((3,), 1e6).double()
    changed = dataclasses.replace(problem, beta=beta)
    scores, weights = edge_scores(changed), edge_weights(changed)
    assert torch.equal(weights.argmax(2), scores.argmax(2))
    best = problem.neighbours.expand(2, 3, 8, 4).gather(3, scores.argmax(2).transpose(1, 2)[..., None])[..., 0]
    index = best.transpose(1, 2)[..., None]  # (B, T, H, 1)
    source = problem.source_field.gather(1, index.expand(-1, -1, -1, 4))
    sent = problem.features.gather(1, index[..., None].expand(-1, -1, -1, 2, 4))
    expected = Q.sandwich(Q.relative(problem.target_field, source)[..., None, :], sent)
    assert close(apply(problem, backend, beta=beta), expected)


@every_backend
def test_transport_keeps_the_real_part_of_the_mean(backend: str) -> None:
    problem = make_problem(6, SIZES, routing="uniform")
    moved, still = apply(problem, backend), apply(problem, backend, transport="identity")
    assert close(moved[..., 0], still[..., 0])


@every_backend
def test_permuting_sources_with_the_graph_changes_nothing(backend: str) -> None:
    problem = make_problem(7, SIZES)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    place = torch.argsort(order)
    permuted = apply(
        problem,
        backend,
        source_field=problem.source_field[:, order],
        features=problem.features[:, order],
        neighbours=place[problem.neighbours],
    )
    assert close(permuted, apply(problem, backend))


def test_two_hops_compose_to_one() -> None:
    """The connection is flat: carrying x from k to j to i is carrying it from k to i."""
    a, b, c = (Q.random_unit(50, dtype=torch.float64) for _ in range(3))
    x = torch.randn(50, 4, dtype=torch.float64)
    two = Q.sandwich(Q.relative(a, b), Q.sandwich(Q.relative(b, c), x))
    assert close(two, Q.sandwich(Q.relative(a, c), x))


def test_scores_are_cosines_of_half_the_rotation_angle() -> None:
    """|Re(r)| = cos(ϑ/2), where ϑ is the angle of the rotation matrix of r, from its trace."""
    problem = make_problem(8, SIZES)
    scores, weights = edge_scores(problem), edge_weights(problem)
    source = problem.source_field[:, problem.neighbours]
    matrix = Q.to_rotation_matrix(Q.relative(problem.target_field[:, :, None], source))
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
    angle = torch.acos(((trace - 1) / 2).clamp(-1, 1))
    assert torch.allclose(scores.abs(), torch.cos(angle / 2), atol=1e-7)
    assert close(weights.sum(2), torch.ones(2, 8, 3).double())
