"""Tensors that steps derive from parameters: computed together or one by one, values and gradients are equal."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quatsphere.models import create_model
from quatsphere.models.lattice import model_steps
from quatsphere.nn.field import bounds_of
from quatsphere.nn.shell_step import Derived, derive_on_cpu, derive_together


@pytest.mark.parametrize("overrides", [{}, {"rounds": 0}, {"shells": 1}, {"beta_start": 5.0, "beta_frozen": True}])
def test_derived_together_equal_those_of_each_step(overrides: dict[str, object]) -> None:
    torch.manual_seed(0)
    small = {"dim": 32, "heads": 4, "base_vertices": 16, "shells": 3, "neighbours": 4}
    model = create_model("qsv", **small | overrides).double()
    for parameter in model.parameters():
        parameter.data.normal_()
    steps, expected = [], []
    for step in model_steps(model):
        ends = sorted({step.source, step.target})
        fields, module = [model.fields[shell - 1] for shell in ends], step.module
        steps.append((module, fields))
        weights = module.ffn.weights(module.post)
        expected.append(Derived(bounds_of(fields), module.routing.beta, weights, module.gate.value))
    parameters = [p for name, p in model.named_parameters() if not name.endswith(("positions", "base"))]
    gradients = []
    for all_steps in (expected, derive_together(steps), derive_on_cpu(steps)):
        flat: list[Tensor] = []
        for bounds, beta, weights, gate in all_steps:
            flat += [bounds, beta, *weights, *([] if gate is None else [gate])]
        loss = sum((x * torch.arange(1, x.numel() + 1).view_as(x)).sin().sum() for x in flat)
        gradients.append((flat, torch.autograd.grad(loss, parameters, allow_unused=True)))  # type: ignore[arg-type]
    (values, grads), *others = gradients
    for mine, mine_grads in others:
        torch.testing.assert_close(mine, values, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(mine_grads, grads, rtol=1e-9, atol=1e-9)
