"""The quaternion field: unit, bounded, starts at its base with a nonzero gradient, commutes with interpolation."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.shape_checks import without_shape_checks
from torch.autograd import gradcheck

from quatsphere.geometry import quaternion as Q
from quatsphere.geometry.neighbours import index_resampling
from quatsphere.kernels import Mixing, Network, resample_vertices
from quatsphere.kernels.torch_backend import tangent
from quatsphere.nn.field import FIELD_INITS, LearnedBound, NoBound, NoPerturbation, Perturbation, ShellField


def make(dtype: torch.dtype = torch.float64, **changes: object) -> tuple[Perturbation, ShellField, ShellField]:
    torch.manual_seed(0)
    source = ShellField(6, 4, "near_identity", True, LearnedBound()).to(dtype)
    target = ShellField(9, 4, "near_identity", True, LearnedBound()).to(dtype)
    return Perturbation(32, 4, **changes).to(dtype), source, target  # type: ignore[arg-type]


def test_field_starts_at_its_base_with_a_nonzero_gradient() -> None:
    network, shell, _ = make()
    tokens = torch.randn(2, 6, 32, dtype=torch.float64)
    field, _ = network.fields(tokens, shell, shell, None)
    assert torch.allclose(field, Q.normalize(shell.base).expand(2, -1, -1, -1))
    probe = torch.randn_like(field)
    gradients = torch.autograd.grad((field * probe).sum(), [network.outer_weight, network.outer_bias, shell.base])
    assert all(torch.isfinite(g).all() and g.abs().max() > 0 for g in gradients)


def test_perturbation_stays_within_its_bound() -> None:
    network, shell, _ = make(zero_init=False)
    tokens = 100 * torch.randn(2, 6, 32, dtype=torch.float64)
    field, _ = network.fields(tokens, shell, shell, None)
    assert torch.allclose(field.norm(dim=-1), torch.ones(2, 6, 4, dtype=torch.float64))
    angle = Q.distance(field, Q.normalize(shell.base).expand_as(field))
    assert angle.max() <= 2 * math.sqrt(3) * shell.bound.value + 1e-12  # each of three components is below the bound


def test_bound_at_zero_logit_and_its_range() -> None:
    bound = LearnedBound()
    assert float(bound.value) == pytest.approx((0.01 + math.pi / 4) / 2)
    assert round(float(bound.value), 3) == 0.398
    for logit, limit in ((-100.0, 0.01), (100.0, math.pi / 4)):
        bound.logit.data.fill_(logit)
        assert float(bound.value) == pytest.approx(limit)


def test_first_layer_commutes_with_interpolation() -> None:
    """Values and gradients: resample the tokens, or the output of the first layer."""
    network, source, target = make(zero_init=False)
    mixing = Mixing(*index_resampling(6, 9, torch.float64))
    tokens = torch.randn(2, 6, 32, dtype=torch.float64, requires_grad=True)
    ours = network.fields(tokens, source, target, mixing)[1]
    literal = network.fields(resample_vertices(tokens, *mixing), target, target, None)[1]
    assert torch.allclose(ours, literal, rtol=0, atol=1e-14)
    probe = torch.randn_like(ours)
    leaves = [tokens, *network.parameters(), target.base]
    for a, b in zip(
        torch.autograd.grad((ours * probe).sum(), leaves),
        torch.autograd.grad((literal * probe).sum(), leaves),
        strict=True,
    ):
        assert torch.allclose(a, b, atol=1e-6)


def test_within_a_shell_targets_are_sources() -> None:
    network, shell, _ = make()
    tokens = torch.randn(2, 6, 32, dtype=torch.float64)
    source_field, target_field = network.fields(tokens, shell, shell, None)
    assert source_field is target_field


def test_no_perturbation_is_the_base() -> None:
    _, source, target = make()
    fields = NoPerturbation().fields(torch.randn(3, 6, 32), source, target, None)
    assert torch.equal(fields[0][1], source.base)
    assert torch.equal(fields[1][2], target.base)


def test_no_bound_takes_the_raw_output_as_tangent() -> None:
    hidden, network = torch.randn(2, 5, 4), Network(torch.randn(4), torch.randn(1, 4, 3), torch.randn(1, 3))
    shell = ShellField(5, 1, "haar", True, NoBound())
    expected = Q.multiply(shell.base, Q.exp(tangent(hidden, *network)))
    for field in NoBound().perturb(hidden, network, [shell], None, "auto"):
        assert torch.allclose(field, expected, atol=1e-6)


@pytest.mark.parametrize("init", list(FIELD_INITS))
def test_every_start_is_unit(init: str) -> None:
    base = FIELD_INITS[init](40, 8)
    assert base.shape == (40, 8, 4)
    assert torch.allclose(base.norm(dim=-1), torch.ones(40, 8))


@pytest.mark.parametrize("scale", [0.0, 1e-9, 0.3])
def test_gradients_of_the_perturbation(scale: float) -> None:
    network, shell, other = make()
    torch.nn.init.normal_(network.outer_weight, std=scale)
    tokens = torch.randn(1, 6, 32, dtype=torch.float64, requires_grad=True)
    mixing = Mixing(*index_resampling(6, 9))
    with without_shape_checks():
        assert gradcheck(lambda x: network.fields(x, shell, other, mixing), (tokens,))
