"""The fused GPU step equals its parts in plain torch, in Triton's interpreter (started by test_gpu.py)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.step_inputs import fused_inputs, make, parts, run
from measures import relative_error
from torch import Tensor

from quatsphere.kernels import DropoutMasks, backends
from quatsphere.kernels.gpu import attention as gpu_attention
from quatsphere.kernels.gpu import step as gpu_step
from quatsphere.models import build_model, model_config
from quatsphere.randomness import draw_mask, keep_scale

if not gpu_attention.available() or not gpu_attention.INTERPRETED:
    pytest.skip("needs triton and TRITON_INTERPRET=1 (test_gpu.py)", allow_module_level=True)

from quatsphere.kernels.gpu import step_launch

SMALL = (2, 3, 3, 2, 2)
"""B, S, H, Q, k."""
RULES = ("alignment", "sandwich")


def whole(step: dict[str, Any], rules: tuple[str, str]) -> Tensor:
    return backends.select_backend("triton_gpu", "cpu").step(fused_inputs(step, rules))


def assert_equal(found: list[Tensor], exact: list[Tensor], tolerance: float) -> None:
    for value, expected in zip(found, exact, strict=True):
        scale = max(float(expected.abs().max()), 1.0)  # gradients that are sums may cancel
        assert float((value.double() - expected).abs().max()) <= tolerance * scale


@pytest.mark.parametrize("cross", [False, True])
def test_equals_separate_operators(cross: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two vertices per program of the field's gradients, so that the last program is not full."""
    monkeypatch.setattr(step_launch, "VERTICES", 2)
    step = make(0, SMALL, cross, True)
    exact = run(parts, step, torch.float64, RULES, "factored")
    assert_equal(run(whole, step, torch.float64, RULES), exact, 1e-10)


def test_equals_separate_operators_in_single() -> None:
    step = make(1, (1, 3, 2, 1, 2), True, False)
    exact = run(parts, step, torch.float64, RULES, "factored")
    assert_equal(run(whole, step, torch.float32, RULES), exact, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("sizes", [(3, 4, 1, 1, 3), (17, 2, 2, 1, 1), (2, 5, 16, 4, 4), (1, 40, 5, 3, 9)])
@pytest.mark.parametrize("rules", [("absolute", "one_sided"), ("uniform", "identity")])
def test_equals_separate_operators_for_all_rules_and_sizes(sizes: Any, rules: tuple[str, str], cross: bool) -> None:
    """With more images than groups of the field's kernels, and more tokens than a tile of the Hamilton block."""
    step = make(2, sizes, cross, True)
    exact = run(parts, step, torch.float64, rules, "factored")
    assert_equal(run(whole, step, torch.float64, rules), exact, 1e-10)


def hashed(step: dict[str, Any], rate: float = 0.3) -> tuple[dict[str, Any], dict[str, Any]]:
    """The step with keys in place of masks, and with the masks of `draw_mask`."""
    keys, sites, scale = torch.arange(len(step["tokens"])) + 11, (2**62 + 5, 7), keep_scale(rate)
    edges = (*step["neighbours"].shape, len(step["beta"]))
    update = (len(step["neighbours"]), step["tokens"].shape[2])
    drawn = [draw_mask(keys, site, shape, rate) for site, shape in zip(sites, (edges, update), strict=True)]
    masks = DropoutMasks(keys, keys, scale, scale, *sites)
    return step | {"kept": masks}, step | {"kept": DropoutMasks(*drawn, scale, scale)}


def test_masks_hashed_in_the_kernels_are_those_of_draw_mask() -> None:
    """Bit for bit: every kept element and every dropped one changes the result by far more than the tolerance."""
    inside, drawn = hashed(make(3, (2, 3, 4, 1, 2), True, False))
    exact = run(parts, drawn, torch.float64, RULES, "factored")
    assert_equal(run(whole, inside, torch.float64, RULES), exact, 1e-10)


def test_bfloat16_tokens_under_autocast() -> None:
    """Products in bfloat16, everything else in float32; the result has the tokens' dtype."""
    step = make(4, (1, 3, 2, 2, 2), True, False)
    exact = run(parts, step | {"tokens": step["tokens"].bfloat16().double()}, torch.float64, RULES, "factored")

    def narrow(given: dict[str, Any], rules: tuple[str, str]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = whole(given | {"tokens": given["tokens"].bfloat16()}, rules)
        assert out.dtype == torch.bfloat16
        return out.float()

    for value, expected in zip(run(narrow, step, torch.float32, RULES), exact, strict=True):
        assert relative_error(value, expected) < 0.05


@pytest.mark.slow
def test_gradients_of_gradients() -> None:
    """By plain torch, from the graph of the fused step and its hashed masks."""
    inside, drawn = hashed(make(5, (1, 3, 2, 1, 2), True, False))
    found = []
    for function, step in ((whole, inside), (lambda *a: parts(*a, "factored"), drawn)):
        leaves = [step[name].clone().requires_grad_() for name in ("tokens", "first", "beta")]
        given = step | dict(zip(("tokens", "first", "beta"), leaves, strict=True))
        gradients = torch.autograd.grad(function(given, RULES).square().sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in gradients), leaves))
    for value, expected in zip(*found, strict=True):
        assert relative_error(value, expected) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("cross", [False, True])
def test_opcheck(cross: bool) -> None:
    step = make(6, (1, 3, 2, 1, 2), cross, True)
    for name in ("tokens", "first", "bounds", "beta"):
        step[name].requires_grad_()
    operands = (*fused_inputs(step, RULES).operands(), 0, 0, torch.float64)
    torch.library.opcheck(gpu_step.step_gpu.overload, operands)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_model_runs_its_steps_in_one_operator_each(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With keys in place of masks; the same values as plain torch with drawn masks. (The operator in plain torch.)"""
    sizes = {"dim": 8, "heads": 2, "base_vertices": 16, "neighbours": 4}
    sizes |= {"attention_dropout": dropout, "output_dropout": dropout}
    steps: list[Any] = []

    def step(*operands: Any) -> tuple[Tensor]:
        steps.append(operands)
        return (gpu_step.plain_step(*operands),)

    monkeypatch.setattr(gpu_step, "step_gpu", step)
    images, keys, logits = torch.randn(2, 3, 32, 32), torch.tensor([3, 5]), []
    for backend in ("triton_gpu", "factored"):
        model = build_model(model_config("qsv", backend=backend, **sizes), seed=0).train()
        logits.append(model(images, sample_keys=keys).detach())
    assert len(steps) == 7
    assert all((operands[15] is keys) == (dropout > 0) for operands in steps)
    assert relative_error(logits[0], logits[1]) < 1e-5
