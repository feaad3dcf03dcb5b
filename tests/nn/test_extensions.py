"""Rules registered from outside the package: equal to built-in ones, and reached by everything that uses a model.

`models/test_compile.py` compiles them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.literal_model import DEMO, randomised_qsv
from measures import relative_error
from torch import Tensor, nn

from quatsphere import create_model, quaternion_attention, register_routing, register_transport
from quatsphere.config import DataConfig, QSVConfig, RunConfig, TrainConfig, checks
from quatsphere.data import load_dataset
from quatsphere.diagnostics import diagnose
from quatsphere.diagnostics.traced_model import transport_off
from quatsphere.errors import ConfigError
from quatsphere.geometry import quaternion as Q
from quatsphere.models.lattice import model_steps
from quatsphere.nn import extensions
from quatsphere.study.isolation import state_differences
from quatsphere.study.plan import cell_config
from quatsphere.study.variants import SCALES, VARIANTS, Variant
from quatsphere.train import train

IMAGES = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def alignment(target: Tensor, source: Tensor, beta: Tensor) -> Tensor:
    return torch.softmax(beta * Q.relative(target, source)[..., 0], dim=2)


def sandwich(target: Tensor, source: Tensor, features: Tensor) -> Tensor:
    return Q.sandwich(Q.relative(target, source)[..., None, :], features)


class Sharpened(nn.Module):
    """Alignment with a learned factor per head."""

    def __init__(self, heads: int, channels: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(0.5, 1.5, heads))

    def forward(self, target: Tensor, source: Tensor, beta: Tensor) -> Tensor:
        return torch.softmax(beta * self.factor * (target * source).sum(-1), dim=2)


class Scaled(nn.Module):
    """The sandwich times a learned factor per head and channel."""

    def __init__(self, heads: int, channels: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(0.5, 1.5, heads * channels).reshape(heads, channels, 1))

    def forward(self, target: Tensor, source: Tensor, features: Tensor) -> Tensor:
        return self.factor * sandwich(target, source, features)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the rules of these tests, removed afterwards."""
    for name in ("_routings", "_transports"):
        monkeypatch.setattr(extensions, name, {})
    monkeypatch.setattr(checks, "_ADDED", {})
    register_routing("literal")(alignment)
    register_transport("literal")(sandwich)
    register_routing("sharpened")(Sharpened)
    register_transport("scaled")(Scaled)


@pytest.mark.parametrize("backend", ["auto", "reference", "numba_cpu"])
@pytest.mark.parametrize(
    "changes", [{"routing": "literal"}, {"transport": "literal"}, {"routing": "literal", "transport": "literal"}]
)
def test_a_built_in_rule_written_out_gives_the_same_model(changes: dict[str, Any], backend: str) -> None:
    """Equal logits and gradients, in training with dropout as well."""
    ours, built_in = (randomised_qsv(backend=backend, **rules).double().train() for rules in (changes, {}))
    keys, found = torch.tensor([3, 5]), []
    for model in (ours, built_in):
        logits = model(IMAGES, sample_keys=keys)
        found.append([logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()), allow_unused=True)])
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other.abs().max() < 1e-12 or relative_error(one, other) < 1e-9


def test_registered_rules_of_a_bare_operator() -> None:
    field, x, graph = Q.random_unit(1, 6, 2), torch.randn(1, 6, 2, 3, 4), torch.randint(0, 6, (6, 3))
    rules: Any = {"routing": alignment, "transport": sandwich}
    ours = quaternion_attention(field, field, x, graph, torch.ones(2), **rules)
    assert torch.allclose(ours, quaternion_attention(field, field, x, graph, torch.ones(2)), atol=1e-5)
    with pytest.raises(ConfigError, match=r"weights of a routing function must have shape \(1, 6, 3, 2\)"):
        quaternion_attention(field, field, x, graph, torch.ones(2), routing=lambda q, p, b: (q * p).sum(-1)[..., 0])


def test_modules_own_parameters_in_every_step() -> None:
    model = create_model("qsv", **DEMO, routing="sharpened", transport="scaled")
    names = [name for name, _ in model.named_parameters() if ".rule." in name]
    assert len(names) == 2 * 5
    assert set(names) <= set(model.parameter_roles()["weights"])
    assert model.parameter_parts()["routing"] == 5 * 4
    model(IMAGES.float()).square().sum().backward()
    parameters = dict(model.named_parameters())
    assert all(parameters[name].grad.abs().max() > 0 for name in names)
    other = create_model("qsv", seed=1, **DEMO, routing="sharpened", transport="scaled")
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(IMAGES.float()), model.eval()(IMAGES.float()))


@torch.no_grad()
def test_a_trace_has_the_weights_of_the_rule() -> None:
    model = randomised_qsv(routing="sharpened").double()
    logits, trace = model(IMAGES, return_trace=True)
    assert torch.allclose(logits, model(IMAGES))
    target, source, graph = (trace[name][1] for name in ("field", "source_field", "neighbours"))
    rule = model.cross[0].routing.rule
    expected = rule(target[:, :, None], source[:, graph], trace["beta"][1])
    assert torch.allclose(trace["weights"][1], expected)


@torch.no_grad()
def test_interventions_reach_a_registered_transport() -> None:
    model, identity = randomised_qsv(transport="literal").double(), randomised_qsv(transport="identity").double()
    before, every = model(IMAGES), torch.ones(4, dtype=torch.bool)
    with transport_off(model_steps(model), every):
        assert relative_error(model(IMAGES), identity(IMAGES)) < 1e-12
    assert torch.equal(model(IMAGES), before)


def test_every_section_of_a_diagnosis() -> None:
    sections = diagnose(
        randomised_qsv(routing="sharpened", transport="scaled"), load_dataset("digits"), images=8, seed=1
    )
    assert [name for name, section in sections.items() if isinstance(section, dict) and "absent" in section] == [
        "training"
    ]
    assert abs(sections["transport"]["all"]["nll"]) > 1e-4


def test_it_trains(tmp_path: Path) -> None:
    model = QSVConfig(routing="sharpened", transport="scaled", dim=32, heads=2, base_vertices=16, shells=2)
    data = DataConfig(max_train_images=64, crop_pad=0, flip=False, trivial_augment=False)
    result = train(RunConfig(data=data, model=model, train=TrainConfig(epochs=1, batch_size=32)), tmp_path / "run")
    assert 0 <= result["test"]["accuracy"] <= 1


def test_a_row_of_an_ablation(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Variant("Sharpened", {"model.routing": "sharpened"}, adds=("*.routing.rule.*",))
    monkeypatch.setitem(VARIANTS, "sharpened", row)
    full, ours = (
        cell_config(SCALES["smoke"], "digits", name, 1, data_root=None, settings={}) for name in ("full", "sharpened")
    )
    assert ours.model == dataclasses.replace(full.model, routing="sharpened")
    assert not list(state_differences(ours, full, row, load_dataset("digits")))


def test_errors_are_one_line_that_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"routing must be alignment or .*got 'mine'; a rule of your own must be re"):
        create_model("qsv", routing="mine")
    with pytest.raises(ConfigError, match="routing 'uniform' is built in; register yours under another name"):
        register_routing("uniform")
    with pytest.raises(ConfigError, match="must be a lower-case identifier such as 'my_rule': got 'My rule'"):
        register_transport("My rule")
    with pytest.raises(ConfigError, match=r"must be a function or a subclass of nn\.Module"):
        register_transport("mine")(dict)
