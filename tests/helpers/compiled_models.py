"""Comparison of a compiled model with the same model run eagerly."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from helpers.variants import ATTENTION_VARIANTS, QSV_VARIANTS
from torch import Tensor

from quatsphere import create_model

ONE_STEP: dict[str, Any] = {"dim": 24, "heads": 3, "base_vertices": 9, "shells": 1, "rounds": 0, "image_size": 8}
"""The smallest model with every part but the gate; odd sizes, so that generated loops have remainders."""
ALL_STEPS: dict[str, Any] = ONE_STEP | {"base_vertices": 12, "shells": 2, "rounds": 1, "plane_rows": 6}
"""All three kinds of step."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{variant: ("qsv", ALL_STEPS | changes) for variant, changes in QSV_VARIANTS.items()},
    **{variant: ("attention", ALL_STEPS | changes) for variant, changes in ATTENTION_VARIANTS.items()},
    "resnet20": ("resnet20", {"image_size": 8, "width": 4}),
}
"""variant -> (model, settings)."""


def compare(name: str, settings: dict[str, Any], backend: str = "inductor") -> dict[str, float]:
    """Largest errors of logits and gradients of the compiled model, and of gradients that should be zero.

    The backend `aot_eager` traces the same graphs, forward and backward, and generates no code.
    """
    model = create_model(name, **settings)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # a perturbation that perturbs, so that gradients reach every layer
        for part, parameter in model.named_parameters():
            if "outer_" in part:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    images = torch.rand(2, 3, settings["image_size"], settings["image_size"], generator=generator)
    buffers = {part: buffer.clone() for part, buffer in model.named_buffers()}

    def run(function: Any) -> tuple[Tensor, dict[str, Tensor]]:
        model.zero_grad()
        for part, buffer in model.named_buffers():  # running statistics as before the first run
            buffer.copy_(buffers[part])
        logits = function(images, sample_keys=torch.tensor([3, 5]))
        F.cross_entropy(logits, torch.tensor([0, 1])).backward()
        found = {part: p.grad.clone() for part, p in model.named_parameters() if p.grad is not None}
        return logits.detach().clone(), found

    def error(value: Tensor, expected: Tensor) -> float:
        return float((value - expected).abs().max() / expected.abs().max())

    eager_logits, eager = run(model)
    logits, compiled = run(torch.compile(model, fullgraph=True, backend=backend))
    largest = max(float(gradient.abs().max()) for gradient in eager.values())
    silent = set(model.unreachable_parameters())
    absent = [compiled[part] for part in compiled if part not in eager or part in silent]
    return {
        "logits": error(logits, eager_logits),
        "gradients": max(error(compiled[part], eager[part]) for part in eager if part not in silent),
        "silent": max((float(gradient.abs().max()) / largest for gradient in absent), default=0.0),
    }


def require_equal(errors: dict[str, float]) -> None:
    """Logits to 1e-5, gradients to 1e-4 of their largest value; zero for unreachable parameters."""
    assert errors["logits"] <= 1e-5, errors
    assert errors["gradients"] <= 1e-4, errors
    assert errors["silent"] <= 1e-6, errors
