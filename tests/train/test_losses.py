"""Losses against values derived by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from helpers.tiny_runs import tiny_config

from quatsphere.geometry.quaternion import random_unit
from quatsphere.models import build_model
from quatsphere.train.losses import (
    AuxiliaryLosses,
    beta_penalty,
    cross_entropy,
    head_diversity,
    smooth_targets,
    smoothness,
)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_cross_entropy_with_smoothing_equals_torch(smoothing: float) -> None:
    logits, labels = torch.randn(7, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 4, 0, 1])
    ours = cross_entropy(logits, smooth_targets(labels, 5, smoothing).double(), 7)
    assert ours == pytest.approx(F.cross_entropy(logits, labels, label_smoothing=smoothing).item(), rel=1e-7)


def test_cross_entropy_of_uniform_logits_is_log_classes() -> None:
    targets = smooth_targets(torch.tensor([3, 1]), 10, 0.1)
    assert cross_entropy(torch.zeros(2, 10), targets, 2).item() == pytest.approx(math.log(10))


def test_cross_entropies_of_two_parts_add_up() -> None:
    logits, targets = torch.randn(5, 3), smooth_targets(torch.tensor([0, 1, 2, 0, 1]), 3, 0.1)
    whole = cross_entropy(logits, targets, 5)
    parts = [cross_entropy(logits[r::2], targets[r::2], 5) for r in (0, 1)]
    assert torch.allclose(whole, parts[0] + parts[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cross_entropy_of_half_precision_logits_is_float32(dtype: torch.dtype) -> None:
    targets = smooth_targets(torch.tensor([0]), 4, 0.0)
    loss = cross_entropy(torch.zeros(1, 4, dtype=dtype), targets, 1)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(4))


@pytest.mark.parametrize("heads", [2, 4, 16])
def test_identical_heads_have_the_greatest_diversity_loss(heads: int) -> None:
    same = random_unit(6, 1).expand(6, heads, 4)
    assert head_diversity([same, same[:2]]).item() == pytest.approx(heads * (heads - 1), rel=1e-5)


def test_diversity_is_the_sum_over_pairs_of_heads() -> None:
    """Every shell has the same weight, regardless of its size; gradients agree as well."""
    torch.manual_seed(0)
    fields = [random_unit(count, 5, dtype=torch.float64).requires_grad_() for count in (3, 7)]
    pairs = [(h, other) for h in range(5) for other in range(5) if h != other]
    shells = [sum((q[:, h] * q[:, other]).sum(-1).square().mean() for h, other in pairs) for q in fields]
    expected, found = (shells[0] + shells[1]) / 2, head_diversity(fields)
    assert torch.allclose(found, expected, rtol=1e-12)
    for ours, plain in zip(torch.autograd.grad(found, fields), torch.autograd.grad(expected, fields), strict=True):
        assert torch.allclose(ours, plain, atol=1e-13)


@pytest.mark.parametrize("heads", [2, 5, 16])
def test_mean_over_pairs_is_the_sum_divided_by_their_number(heads: int) -> None:
    fields = [random_unit(count, heads, dtype=torch.float64) for count in (3, 7)]
    mean, total = head_diversity(fields, "mean"), head_diversity(fields)
    assert mean.item() == pytest.approx(total.item() / (heads * (heads - 1)), rel=1e-14)


def test_orthonormal_heads_have_zero_diversity_loss() -> None:
    frame = torch.linalg.qr(torch.randn(3, 4, 4, dtype=torch.float64)).Q
    assert head_diversity([frame]).item() == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("heads", [4, 16])
def test_diversity_of_haar_random_heads(heads: int) -> None:
    """E⟨p, q⟩² = 1/4 on S³: H(H-1)/4."""
    torch.manual_seed(0)
    value = head_diversity([random_unit(20_000, heads)]).item()
    assert value == pytest.approx(heads * (heads - 1) / 4, rel=0.01)


def test_diversity_has_the_lower_bound_of_a_tight_frame() -> None:
    """H²/4 - H, reached by H/4 orthonormal bases (Welch); random heads have a larger loss."""
    heads = 16
    frames = torch.linalg.qr(torch.randn(5, heads // 4, 4, 4)).Q.reshape(5, heads, 4)
    bound = heads**2 / 4 - heads
    assert head_diversity([frames]).item() == pytest.approx(bound, rel=1e-5)
    assert head_diversity([random_unit(50, heads)]).item() > bound


def test_smoothness_ignores_signs_and_is_zero_without_motion() -> None:
    fields = [random_unit(6, 4), random_unit(9, 4)]
    assert smoothness(fields, fields).item() == pytest.approx(0, abs=1e-6)
    assert smoothness(fields, [-q for q in fields]).item() == pytest.approx(0, abs=1e-6)


def test_smoothness_of_known_angles() -> None:
    one, i = torch.tensor([[[1.0, 0, 0, 0]]]), torch.tensor([[[0.0, 1, 0, 0]]])
    assert smoothness([one], [i]).item() == pytest.approx(2)
    sixty = torch.tensor([[[0.5, math.sqrt(0.75), 0, 0]]])
    assert smoothness([one, one], [i, sixty]).item() == pytest.approx((2 + 1) / 2)


def test_beta_penalty_by_hand() -> None:
    assert beta_penalty([torch.tensor([1.0, -2.0]), torch.tensor([3.0])]).item() == 14


def test_auxiliary_terms_by_name_with_coefficients() -> None:
    config = tiny_config()
    model = build_model(config.model)
    auxiliary = AuxiliaryLosses(model, model.parameter_roles(), config.train)
    assert set(auxiliary.terms()) == {"head_diversity", "beta_penalty"}
    auxiliary.store_fields()
    terms = auxiliary.terms()
    assert terms["smoothness"].item() == pytest.approx(0, abs=1e-8)
    assert terms["beta_penalty"].item() == 0
    assert terms["head_diversity"].item() == pytest.approx(0.01 * head_diversity(auxiliary.fields).item())
    auxiliary.config = replace(config.train, head_diversity_pairs="mean")
    mean = head_diversity(auxiliary.fields, "mean").item()
    assert auxiliary.terms()["head_diversity"].item() == pytest.approx(0.01 * mean)


def test_stored_fields_are_copies() -> None:
    config = tiny_config()
    model = build_model(config.model)
    auxiliary = AuxiliaryLosses(model, model.parameter_roles(), config.train)
    auxiliary.store_fields()
    with torch.no_grad():
        auxiliary.fields[0].copy_(random_unit(*auxiliary.fields[0].shape[:2]))
    assert auxiliary.terms()["smoothness"].item() > 1e-5


@pytest.mark.parametrize("name", ["attention", "resnet20"])
def test_models_without_quaternions_have_no_auxiliary_losses(name: str) -> None:
    from quatsphere.models import create_model

    shape = {"width": 4} if name == "resnet20" else {"base_vertices": 16, "shells": 2, "dim": 16}
    model = create_model(name, **shape)
    auxiliary = AuxiliaryLosses(model, model.parameter_roles(), tiny_config().train)
    auxiliary.store_fields()
    assert auxiliary.terms() == {}


@pytest.mark.parametrize("pairs", ["sum", "mean"])
@pytest.mark.parametrize("stored", [False, True])
def test_terms_in_few_launches_are_the_same(pairs: str, stored: bool) -> None:
    """The form for accelerators: values and gradients."""
    torch.manual_seed(0)
    config = replace(tiny_config().train, head_diversity_pairs=pairs, head_diversity=0.3, beta_penalty=0.2)
    model = build_model(tiny_config().model, seed=0).double()
    auxiliary = AuxiliaryLosses(model, model.parameter_roles(), config)
    for beta in auxiliary.betas:
        torch.nn.init.normal_(beta)
    if stored:
        auxiliary.store_fields()
        for field in auxiliary.fields:
            field.data.copy_(random_unit(*field.shape[:-1], dtype=torch.float64))
    found, expected = auxiliary._terms_in_few_launches(), auxiliary.terms()
    assert found.keys() == expected.keys()
    parameters = [*auxiliary.fields, *auxiliary.betas]
    for name, term in expected.items():
        torch.testing.assert_close(found[name], term, rtol=1e-12, atol=1e-14)
        for mine, theirs in zip(
            *(torch.autograd.grad(x, parameters, allow_unused=True, retain_graph=True) for x in (found[name], term)),
            strict=True,
        ):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-13)
