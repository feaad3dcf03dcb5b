"""The facts behind "What the flat connection means" in docs/paper_map.md, about whole models."""

from __future__ import annotations

import pytest
import torch
from helpers.variants import SMALL

from quatsphere import create_model

OFF = {"routing": "uniform", "transport": "identity"}


def heads_that_meet(*, pooled: bool = False, **changes: object) -> torch.Tensor:
    """(H, H) bool: True where head h of the last tokens, or of the pooled vector, depends on head h' of the first."""
    model = create_model("qsv", **SMALL, **changes).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "outer_" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(0))
    _, trace = model(torch.rand(1, 3, 16, 16, dtype=torch.float64), return_trace=True)
    last = (trace["pooled"] if pooled else trace["hidden"][-1]).unflatten(-1, (SMALL["heads"], -1))
    rows = []
    for head in range(SMALL["heads"]):
        (gradient,) = torch.autograd.grad(last[..., head, :].square().sum(), trace["tokens"], retain_graph=True)
        rows.append(gradient.unflatten(-1, (SMALL["heads"], -1)).abs().amax((0, 1, 3)) > 0)
    return torch.stack(rows)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"routing": "uniform"},
        {"transport": "identity"},
        {"transport": "one_sided"},
        {"routing": "uniform", "transport": "lift"},
        {"routing": "uniform", "transport": "lower"},
    ],
)
def test_the_perturbed_field_connects_heads(changes: dict[str, object]) -> None:
    assert heads_that_meet(**changes).all()


@pytest.mark.parametrize(
    "changes",
    [OFF, {"field": "frozen_random"}, {"field": "static"}, OFF | {"transport": "projected"}],
)
def test_heads_stay_separate_without_a_perturbed_field(changes: dict[str, object]) -> None:
    """Without data-dependent quaternions the heads are networks side by side until the pooling."""
    assert torch.equal(heads_that_meet(**changes), torch.eye(SMALL["heads"], dtype=torch.bool))


def test_head_mixing_connects_heads() -> None:
    assert heads_that_meet(**OFF, head_mixing="linear").all()


def test_pooling_connects_heads() -> None:
    """Its score sums over all heads, so a head of the pooled vector depends on every head; a mean keeps them apart."""
    assert heads_that_meet(pooled=True, **OFF).all()
    apart = heads_that_meet(pooled=True, pooling="mean", **OFF)
    assert torch.equal(apart, torch.eye(SMALL["heads"], dtype=torch.bool))


@pytest.mark.parametrize(
    ("changes", "moved", "whole"),
    [
        ({}, 635_731, 639_187),
        ({"transport": "identity"}, 635_731, 639_187),
        ({"routing": "uniform"}, 635_619, 639_187),
        (OFF, 87_438, 639_187),
        ({"field": "frozen_random"}, 87_550, 91_006),
        ({"field": "static"}, 169_470, 172_926),
        (OFF | {"transport": "projected"}, 116_110, 667_859),
        (OFF | {"transport": "lift"}, 635_619, 639_187),
        (OFF | {"transport": "lower"}, 635_619, 639_187),
        (OFF | {"head_mixing": "linear"}, 546_190, 1_097_939),
        ({"perturbation": "shell"}, 502_515, 505_971),
    ],
)
def test_parameters_that_the_task_loss_can_move(changes: dict[str, object], moved: int, whole: int) -> None:
    model = create_model("qsv", **changes)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert sum(sizes.values()) == whole
    assert whole - sum(sizes[name] for name in model.unreachable_parameters()) == moved
