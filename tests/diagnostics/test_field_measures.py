"""Spread, bound, heads and drift of fields with known values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from quatsphere.diagnostics.measures import head_similarity, orientation_spread, score_spread, tangent_norms
from quatsphere.geometry.quaternion import exp, multiply, random_unit
from quatsphere.nn.trace import field_motion


def graph(targets: int, sources: int, k: int) -> Tensor:
    return torch.stack(
        [torch.randperm(sources, generator=torch.Generator().manual_seed(i))[:k] for i in range(targets)]
    )


def test_spread_of_a_haar_field() -> None:
    generator = torch.Generator().manual_seed(0)
    target, source = (random_unit(8, 200, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    neighbours = graph(200, 200, 16)
    expected = math.pi / 2 + 2 / math.pi  # ∫ angle (1 - cos angle)/π over [0, π]
    assert expected == pytest.approx(2.207, abs=5e-4)
    assert orientation_spread(target, source, neighbours) == pytest.approx(expected, abs=0.01)
    assert score_spread(target, source, neighbours) == pytest.approx(0.5, abs=0.004)


@pytest.mark.parametrize("k", [2, 4, 16])
def test_haar_score_spread_does_not_depend_on_k(k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    target, source = (random_unit(16, 200, 4, generator=generator) for _ in range(2))
    assert score_spread(target, source, graph(200, 200, k)) == pytest.approx(0.5, abs=0.01)


def test_identity_field_has_no_spread() -> None:
    field = torch.tensor([1.0, 0, 0, 0]).expand(2, 10, 3, 4)
    assert orientation_spread(field, field, graph(10, 10, 4)) == 0
    assert score_spread(field, field, graph(10, 10, 4)) == 0


def test_antipodes_have_equal_orientation_and_opposite_scores() -> None:
    field = torch.tensor([1.0, 0, 0, 0]).repeat(1, 4, 1, 1)
    source = field * torch.tensor([1.0, -1, 1, -1]).view(1, 4, 1, 1)
    neighbours = torch.arange(4).expand(4, 4)
    assert orientation_spread(field, source, neighbours) == 0
    assert score_spread(field, source, neighbours) == pytest.approx(math.sqrt(4 / 3))  # of (1, -1, 1, -1)


def test_spread_of_two_orientations() -> None:
    """Half of the neighbours are rotated by 0.6 rad, |ω| = 0.3: mean angle 0.3, scores 1 and cos 0.3."""
    still = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    turned = exp(torch.tensor([0.0, 0.3, 0.0], dtype=torch.float64))
    target, source = still.repeat(1, 2, 1, 1), torch.stack((still, turned)).view(1, 2, 1, 4)
    neighbours = torch.tensor([[0, 1], [1, 0]])
    assert orientation_spread(target, source, neighbours) == pytest.approx(0.3)
    assert score_spread(target, source, neighbours) == pytest.approx((1 - math.cos(0.3)) / math.sqrt(2))


def test_one_neighbour_has_no_score_spread() -> None:
    field = random_unit(1, 5, 2)
    assert score_spread(field, field, torch.arange(5)[:, None]) == 0


@pytest.mark.parametrize("size", [0.0, 1e-6, 0.2, 1.3])
def test_tangent_norms_are_recovered(size: float) -> None:
    """|ω| of q ⊗ exp(ω), up to √3 π/4, the largest norm of a bounded perturbation."""
    base = random_unit(6, 4, dtype=torch.float64)
    direction = torch.nn.functional.normalize(torch.randn(3, 6, 4, 3, dtype=torch.float64), dim=-1)
    norms = tangent_norms(multiply(base, exp(size * direction)), base)
    assert norms.shape == (3, 6, 4)
    assert torch.allclose(norms, torch.full_like(norms, size), atol=1e-12)


def test_head_similarity() -> None:
    same = random_unit(5, 1).expand(5, 8, 4) * torch.tensor([1.0, -1]).repeat(4).view(1, 8, 1)
    assert head_similarity(same) == pytest.approx(1, rel=1e-5)
    assert head_similarity(torch.eye(4).expand(5, 4, 4)) == 0
    assert head_similarity(random_unit(20_000, 4)) == pytest.approx(0.25, abs=0.005)
    assert head_similarity(random_unit(5, 1)) is None


def test_field_motion_is_the_rotation_angle() -> None:
    start = random_unit(6, 4, dtype=torch.float64)
    moved = multiply(start, exp(torch.tensor([0.0, 0.0, 0.4], dtype=torch.float64).expand(6, 4, 3)))
    assert field_motion([start, -moved], [start, start]) == pytest.approx([0, 0.8])
