"""The frozen module equals the model, for every variant."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.variants import ATTENTION_VARIANTS, QSV_VARIANTS, SMALL
from torch import nn

from quatsphere.export.frozen import FrozenModel
from quatsphere.models import create_model
from quatsphere.nn.extensions import register_routing, register_transport

MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
LATTICE = {name: value for name, value in SMALL.items() if name not in ("dim", "heads")}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *(("qsv", {**SMALL, **changes}) for changes in QSV_VARIANTS.values()),
    *(("attention", {**SMALL, **changes}) for changes in ATTENTION_VARIANTS.values()),
    *(("linear", {**LATTICE, **changes}) for changes in ({}, {"layout": "plane"}, {"wrap_longitude": True})),
    ("resnet20", {"image_size": 16, "width": 4}),
]


def shaken_model(name: str, **overrides: Any) -> Any:
    """Return a model whose weights are not those of a start, in evaluation mode."""
    model = create_model(name, **overrides).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            scale = 0.03 if parameter_name.startswith("layout.") else 0.1
            parameter.add_(scale * torch.randn_like(parameter))
        for field in getattr(model, "fields", []):
            field.base.div_(field.base.norm(dim=-1, keepdim=True))
        model.constrain()
    return model


def difference(model: Any) -> float:
    """Largest difference of the logits on five images."""
    torch.manual_seed(1)
    images = torch.rand(5, 3, 16, 16)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    with torch.no_grad():
        return float((model((images - mean) / std) - FrozenModel(model, MEAN, STD)(images)).abs().max())


@pytest.mark.parametrize(("name", "overrides"), VARIANTS)
def test_frozen_module_equals_the_model(name: str, overrides: dict[str, Any]) -> None:
    assert difference(shaken_model(name, **overrides)) < 2e-5


@pytest.mark.parametrize("name", ["qsv", "attention"])
def test_loaded_weights_need_no_forward_pass(name: str) -> None:
    """Graphs follow the loaded positions, also before the model has run."""
    loaded = create_model(name, **SMALL).eval()
    shaken = shaken_model(name, **SMALL)
    loaded.load_state_dict(shaken.state_dict())
    images = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        frozen = FrozenModel(loaded, [0.0] * 3, [1.0] * 3)(images)
        torch.testing.assert_close(frozen, shaken(images), atol=2e-5, rtol=0)


def test_registered_rules() -> None:
    @register_routing("export_squares")
    def squares(target: Any, source: Any, beta: Any) -> Any:
        return torch.softmax(beta * (target * source).sum(-1).square(), dim=2)

    @register_transport("export_scaled")
    class Scaled(nn.Module):
        def __init__(self, heads: int, channels: int) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(heads, 1, 1))

        def forward(self, target: Any, source: Any, features: Any) -> Any:
            return features * self.scale * target[..., None, :1]

    overrides = {**SMALL, "routing": "export_squares", "transport": "export_scaled"}
    assert difference(shaken_model("qsv", **overrides)) < 2e-5
