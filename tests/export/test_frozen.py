"""The frozen module equals the model, for every variant."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from helpers.variants import ATTENTION_VARIANTS, QSV_VARIANTS, SMALL
from torch import nn

from quatsphere.config import QSVConfig
from quatsphere.config.resolve import MODEL_CONFIGS
from quatsphere.export.frozen import FrozenModel
from quatsphere.models import create_model
from quatsphere.nn.extensions import register_routing, register_transport
from quatsphere.nn.routing import ROUTINGS
from quatsphere.nn.transport import TRANSPORTS

MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
LATTICE = {name: value for name, value in SMALL.items() if name not in ("dim", "heads")}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *(("qsv", {**SMALL, **changes}) for changes in (*QSV_VARIANTS.values(), {"field_init": "aligned"})),
    *(("attention", {**SMALL, **changes}) for changes in (*ATTENTION_VARIANTS.values(), {"wrap_longitude": True})),
    *(("linear", {**LATTICE, **changes}) for changes in ({}, {"layout": "plane"}, {"wrap_longitude": True})),
    ("linear", {**LATTICE, "resample": "geometric", "stencil": "pitch", "self_neighbour": False}),
    ("resnet20", {"image_size": 16, "width": 4}),
]
NOT_IN_A_FILE = {"name", "backend"}
"""Settings without influence on a file: exported models are plain torch."""


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


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_routing_with_every_transport(routing: str, transport: str) -> None:
    """Pairs on the plane, where it has the rule, fields in turn; the table above has the sphere."""
    modes = get_args(get_type_hints(QSVConfig)["field_mode"])
    mode = modes[(list(ROUTINGS).index(routing) + list(TRANSPORTS).index(transport)) % len(modes)]
    layout = "sphere" if routing == "geometric" else "plane"  # a plane has no directions
    overrides = {"routing": routing, "transport": transport, "field_mode": mode, "layout": layout}
    assert difference(shaken_model("qsv", **{**SMALL, **overrides})) < 2e-5


def test_the_table_has_every_model_and_every_choice() -> None:
    """A choice that is added to a model's settings must be added to the table, or export is not tested for it."""
    assert {name for name, _ in VARIANTS} == set(MODEL_CONFIGS)
    for name, kind in MODEL_CONFIGS.items():
        tried = [dataclasses.asdict(create_model(n, **overrides).config) for n, overrides in VARIANTS if n == name]
        for field, hint in get_type_hints(kind).items():
            choices = get_args(hint) if get_origin(hint) is Literal else (True, False) if hint is bool else ()
            missing = set(choices) - {config[field] for config in tried if field in config}
            assert not missing or field in NOT_IN_A_FILE, f"{name}: {field} {missing}"


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
