"""Whole models under `torch.func`, twice differentiated and in half precision, with default settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, jvp

from quatsphere import create_model
from quatsphere.models import Model

SMALL = {"dim": 32, "heads": 4, "base_vertices": 16, "shells": 2, "rounds": 1, "image_size": 8}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qsv": ("qsv", SMALL),
    "qsv, geometric": ("qsv", SMALL | {"routing": "geometric", "wrap": True}),
    "attention": ("attention", SMALL),
    "resnet20": ("resnet20", {"width": 4, "image_size": 8}),
}
KEYS = torch.tensor([3, 5])
Tensors = dict[str, Tensor]


def build(name: str) -> Model:
    """A model in training mode, dropout on; the field of QSV is perturbed, so that no gradient vanishes."""
    kind, overrides = MODELS[name]
    model = create_model(kind, **overrides)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            if "outer_" in part:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval() if kind == "resnet20" else model


def numbers(like: Tensor, seed: int) -> Tensor:
    return 0.1 * torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=like.dtype)


class FunctionalModel:
    """A model in float64 as a function of its parameters and images."""

    def __init__(self, name: str) -> None:
        self.model = build(name).double()
        self.images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        self.parameters = {part: p.detach() for part, p in self.model.named_parameters()}
        self.along = {part: numbers(p, i) for i, (part, p) in enumerate(self.parameters.items())}

    def __call__(self, parameters: Tensors, images: Tensor) -> Tensor:
        out: Tensor = functional_call(self.model, parameters, (images,), {"sample_keys": KEYS})
        return out

    def energy(self, parameters: Tensors) -> Tensor:
        return self(parameters, self.images).square().sum()


@pytest.fixture(params=MODELS)
def functional(request: pytest.FixtureRequest) -> FunctionalModel:
    return FunctionalModel(request.param)


def test_forward_mode_agrees_with_reverse_mode(functional: FunctionalModel) -> None:
    """⟨u, J t⟩ = ⟨Jᵀ u, t⟩ for the default backend, whose gradients are fused; also while gradients are off."""
    turn = numbers(functional.images, 100)
    out, tangent = jvp(functional, (functional.parameters, functional.images), (functional.along, turn))
    with torch.no_grad():
        functional(functional.parameters, functional.images)
        again = jvp(functional, (functional.parameters, functional.images), (functional.along, turn))[1]
    assert torch.allclose(tangent, again, rtol=1e-12)
    leaves = {part: p.clone().requires_grad_() for part, p in functional.parameters.items()}
    images, probe = functional.images.clone().requires_grad_(), numbers(out, 101)
    fused = functional(leaves, images)
    assert torch.allclose(fused, out, atol=1e-12)
    gradients = torch.autograd.grad((fused * probe).sum(), [*leaves.values(), images], allow_unused=True)
    pairs = zip(gradients, [*functional.along.values(), turn], strict=True)
    expected = sum((g * t).sum() for g, t in pairs if g is not None)
    assert torch.allclose((tangent * probe).sum(), torch.as_tensor(expected), rtol=1e-9)
    assert tangent.abs().max() > 1e-4


def test_hessian_both_ways(functional: FunctionalModel) -> None:
    """tᵀ H t: forward over reverse by `torch.func`, and reverse over fused reverse."""
    along = functional.along
    turned = jvp(grad(functional.energy), (functional.parameters,), (along,))[1]
    leaves = {part: p.clone().requires_grad_() for part, p in functional.parameters.items()}
    gradients = torch.autograd.grad(
        functional.energy(leaves), list(leaves.values()), create_graph=True, materialize_grads=True
    )
    total = torch.stack([(g * t).sum() for g, t in zip(gradients, along.values(), strict=True)]).sum()
    again = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
    for part, found in zip(along, again, strict=True):
        assert torch.allclose(found, turned[part], atol=1e-9), part


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MODELS)
def test_half_precision_models_train_and_infer(name: str, dtype: torch.dtype) -> None:
    """`.bfloat16()` and `.half()`: forward and backward of every part run and are close to float32."""
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    exact = build(name)
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.copy_(parameter.to(dtype))
    model = build(name).to(dtype)
    logits, expected = model(images, sample_keys=KEYS), exact(images.float(), sample_keys=KEYS)
    assert logits.dtype == dtype
    assert torch.allclose(logits.float(), expected, atol=0.05 * float(expected.detach().abs().max()))
    logits.float().square().sum().backward()
    expected.square().sum().backward()
    gradients = [
        torch.cat([p.grad.flatten().float() for p in each.parameters() if p.grad is not None])
        for each in (model, exact)
    ]
    assert torch.cosine_similarity(*gradients, dim=0) > 0.99
    with torch.inference_mode():
        assert model.eval()(images).isfinite().all()
