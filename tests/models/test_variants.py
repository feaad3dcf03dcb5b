"""Every variant: gradients reach exactly the parameters that the model declares."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.variants import ATTENTION_VARIANTS, QSV_VARIANTS, SMALL

from quatsphere import create_model

RATES = {"inner_skip": 0.03}
"""Rates other than 0.3; the update of a skipped block is not small at the start, and 0.3 diverges."""


def build(variant: str) -> Any:
    if variant == "resnet20":
        return create_model("resnet20", image_size=16, width=4)
    if variant in ATTENTION_VARIANTS:
        small = {name: value for name, value in SMALL.items() if name != "heads"}
        return create_model("attention", **small, **ATTENTION_VARIANTS[variant])
    return create_model("qsv", **SMALL, **QSV_VARIANTS[variant])


ALL = [*QSV_VARIANTS, *ATTENTION_VARIANTS, "resnet20"]


@pytest.mark.parametrize("variant", ALL)
def test_gradients_reach_exactly_the_declared_parameters(variant: str) -> None:
    """Two steps with the task loss alone, batch 1 and 2: no gradient exactly where declared, finite elsewhere."""
    model = build(variant).double()
    silent = set(model.unreachable_parameters())
    assert silent <= {name for name, _ in model.named_parameters()}
    optimiser = torch.optim.SGD(model.parameters(), lr=RATES.get(variant, 0.3))
    generator = torch.Generator().manual_seed(0)
    largest: dict[str, float] = {}
    for batch in (1, 2, 2):
        images = torch.rand(batch, 3, 16, 16, generator=generator, dtype=torch.float64)
        optimiser.zero_grad()
        F.cross_entropy(model(images), torch.arange(batch)).backward()
        for name, parameter in model.named_parameters():
            gradient = parameter.grad if parameter.grad is not None else torch.zeros(1)
            assert torch.isfinite(gradient).all(), name
            largest[name] = float(gradient.abs().max())
        optimiser.step()
        model.constrain()
    without = {name for name, value in largest.items() if value < 1e-14}
    assert without == silent


@pytest.mark.parametrize("variant", [name for name in QSV_VARIANTS if "frozen_r" not in name and "static" not in name])
def test_last_layer_of_every_perturbation_network_learns_from_the_first_step(variant: str) -> None:
    model = build(variant)
    last = [(name, parameter) for name, parameter in model.named_parameters() if ".perturbation.outer_" in name]
    silent = model.unreachable_parameters()
    if model.config.field_mode != "learned" or {name for name, _ in last} <= silent:
        return
    F.cross_entropy(model(torch.rand(2, 3, 16, 16)), torch.tensor([0, 1])).backward()
    owners = 3 if model.config.perturbation == "shell" else 3 + model.config.rounds
    assert len(last) == 2 * owners
    for name, parameter in last:
        assert (parameter.grad.abs().max() > 0) == (name not in silent), name


@pytest.mark.parametrize("variant", ALL)
def test_roles_partition_the_parameters(variant: str) -> None:
    model = build(variant)
    named = [name for names in model.parameter_roles().values() for name in names]
    assert sorted(named) == sorted(name for name, _ in model.named_parameters())
    assert sum(model.parameter_parts().values()) == sum(p.numel() for p in model.parameters())


@cache
def initial_parameters(variant: str) -> dict[str, torch.Tensor]:
    """Parameters of a new model by name."""
    return dict(build(variant).named_parameters())


@pytest.mark.parametrize("variant", ALL)
def test_shared_parts_start_equal(variant: str) -> None:
    """Initial weights depend on (seed, name): whatever a variant removes, the rest starts as in the full model."""
    whole = variant if variant == "resnet20" else "attention" if variant in ATTENTION_VARIANTS else "full"
    full = initial_parameters(whole)
    declared = {"haar": (".base",), "no_zero_init": (".outer_",), "beta_warm": ("beta_logit",)}.get(variant, ())
    for name, parameter in build(variant).named_parameters():
        if name in full and full[name].shape == parameter.shape and not any(part in name for part in declared):
            assert torch.equal(parameter, full[name]), name


def test_seeds_differ() -> None:
    one, two = create_model("qsv", **SMALL, seed=1), create_model("qsv", **SMALL, seed=2)
    assert not torch.equal(one.embed.projection.weight, two.embed.projection.weight)
    assert not torch.equal(one.fields[0].base, two.fields[0].base)
    again = create_model("qsv", **SMALL, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))


def test_frozen_identity_equals_both_roles_off() -> None:
    """With the identity field every transport and routing is uniform averaging of x."""
    images = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    outputs = []
    for changes in (
        {"field": "frozen_identity"},
        {"field": "frozen_identity", "transport": "one_sided"},
        {"field": "frozen_identity", "routing": "uniform", "transport": "identity"},
    ):
        outputs.append(create_model("qsv", **SMALL, **changes).double().eval()(images))
    assert torch.allclose(outputs[0], outputs[1])
    assert torch.allclose(outputs[0], outputs[2])


def test_backends_agree_on_the_whole_model() -> None:
    images = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    logits = [create_model("qsv", **SMALL, backend=b).double().eval()(images) for b in ("reference", "factored")]
    assert torch.allclose(*logits, rtol=1e-10, atol=1e-12)
