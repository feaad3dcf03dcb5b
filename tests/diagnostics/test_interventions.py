"""Interventions and measurements work on the default backend, at the size of the demo."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from helpers.literal_model import literal_logits, randomised_qsv
from measures import relative_error
from torch import Tensor

from quatsphere.data import Dataset, load_dataset
from quatsphere.diagnostics import diagnose
from quatsphere.diagnostics.cost_breakdown import FUSED_NOTE, runs_fused, time_parts, timed_methods
from quatsphere.diagnostics.measures import pixel_gradients
from quatsphere.diagnostics.traced_model import patched_attribute, transport_off, unfused_steps
from quatsphere.models.lattice import model_steps
from quatsphere.models.scoring import measure_routing
from quatsphere.nn.shell_step import ShellStep

EVERY = torch.ones(4, dtype=torch.bool)
CASES = {
    "one step": {1: EVERY},
    "one head": {step: torch.arange(4) == 2 for step in range(5)},
    "one head of one step": {4: torch.arange(4) == 0},
    "everything": dict.fromkeys(range(5), EVERY),
}
"""Heads without transport by step."""
IMAGES = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


@pytest.mark.parametrize("backend", ["auto", "numba_cpu", "factored", "reference"])
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_transport_off_agrees_with_the_equations(case: str, backend: str) -> None:
    model, images = randomised_qsv(backend=backend).double(), IMAGES.double()
    before = model(images)
    with ExitStack() as stack:
        for number, heads in CASES[case].items():
            stack.enter_context(transport_off([model_steps(model)[number]], heads))
        off = model(images)
    assert relative_error(off, literal_logits(model, images, CASES[case])) < 1e-13
    assert relative_error(off, before) > 1e-2
    assert torch.equal(model(images), before)


@pytest.mark.parametrize("transport", ["sandwich", "one_sided"])
@pytest.mark.parametrize("backend", ["auto", "factored"])
def test_effects_agree_with_the_identity_variant(backend: str, transport: str, digits: Dataset) -> None:
    """A model built without transport has the same logits, accuracy and likelihood."""
    model, plain = (randomised_qsv(backend=backend, transport=rule) for rule in (transport, "identity"))
    plain.load_state_dict(model.state_dict())
    with torch.no_grad(), transport_off(model_steps(model), EVERY):
        assert relative_error(model(IMAGES), plain(IMAGES)) < 1e-5
    section = diagnose(model, digits, images=100, only=["transport"])["transport"]
    expected = diagnose(plain, digits, split="val", accuracy_images=100, only=["accuracy"])["accuracy"]["held_out"]
    assert section["accuracy"] + section["all"]["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-5)
    assert section["nll"] + section["all"]["nll"] == pytest.approx(expected["nll"], rel=1e-4)
    effects = [*section["heads"], *section["steps"], section["all"]]
    assert min(abs(effect["nll"]) for effect in effects) > 1e-3


def close(found: Any, expected: Any, where: str = "") -> None:
    """Nested values agree, numbers to rounding."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            close(found[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for index, pair in enumerate(zip(found, expected, strict=True)):
            close(*pair, where=f"{where}[{index}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-3, abs=2e-4), where
    else:
        assert found == expected, where


def test_sections_agree_with_the_reference_backend(digits: Dataset) -> None:
    sections = [
        diagnose(randomised_qsv(backend=backend), digits, images=8, accuracy_images=20, seed=1)
        for backend in ("auto", "reference")
    ]
    for section in sections:
        for key in ("time_share", "images_per_second", "note"):
            section["parts"].pop(key)
    close(*sections)


@torch.no_grad()
def test_trace_agrees_with_the_reference_backend() -> None:
    fused, slow = randomised_qsv(), randomised_qsv(backend="reference")
    logits, trace = fused(IMAGES, return_trace=True)
    _, expected = slow(IMAGES, return_trace=True)
    assert relative_error(logits, fused(IMAGES)) < 1e-5
    for name, values in expected.items():
        for ours, theirs in zip(trace[name], values, strict=True):
            assert ours.shape == theirs.shape
            assert relative_error(ours.double(), theirs.double()) < 1e-4, name
    assert measure_routing(fused, IMAGES)["routing_entropy"] == pytest.approx(
        measure_routing(slow, IMAGES)["routing_entropy"]
    )


def test_pixel_gradients_agree_with_the_reference_backend() -> None:
    fused, slow = (pixel_gradients(randomised_qsv(backend=backend), IMAGES) for backend in ("auto", "reference"))
    assert relative_error(fused, slow) < 1e-4


METHODS = ("forward_unfused", "attend", "perturbation.fields", "transport.prepare", "routing.directions", "ffn.forward")


@pytest.mark.parametrize("method", [*METHODS, "gate.forward"])
@torch.no_grad()
def test_patched_methods_are_called(method: str) -> None:
    model = randomised_qsv()
    owner_name, _, name = f".{method}".rpartition(".")
    step = model.cross[0]
    owner = step.get_submodule(owner_name.strip("."))
    calls: list[str] = []
    assert runs_fused(model, IMAGES)
    with patched_attribute(owner, name, lambda own: lambda *arguments: calls.append(name) or own(*arguments)):
        model(IMAGES)
    assert calls
    calls.clear()
    model(IMAGES)
    assert not calls


@pytest.mark.parametrize("part", ["ffn", "gate"])
@torch.no_grad()
def test_hooks_are_called(part: str) -> None:
    model = randomised_qsv()
    before = model(IMAGES)
    handle = model.cross[0].get_submodule(part).register_forward_hook(lambda module, inputs, out: torch.zeros_like(out))
    assert relative_error(model(IMAGES), before) > 1e-3
    handle.remove()
    assert torch.equal(model(IMAGES), before)


@torch.no_grad()
def test_overridden_methods_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ShellStep.attend

    class Silent(ShellStep):
        def attend(self, *arguments: Any) -> Tensor:
            return torch.zeros_like(own(self, *arguments))

    model = randomised_qsv()
    before = model(IMAGES)
    model.within.__class__ = Silent
    assert relative_error(model(IMAGES), before) > 1e-3
    model.within.__class__ = ShellStep
    monkeypatch.setattr(ShellStep, "attend", Silent.attend)
    assert relative_error(model(IMAGES), before) > 1e-3


@torch.no_grad()
def test_unfused_steps() -> None:
    model = randomised_qsv()
    before = model(IMAGES)
    with unfused_steps(model):
        assert not runs_fused(model, IMAGES)
        assert relative_error(model(IMAGES), before) < 1e-5
    assert runs_fused(model, IMAGES)


def test_every_part_is_timed(digits: Dataset) -> None:
    model = randomised_qsv()
    seconds = time_parts(model, IMAGES)
    assert set(seconds) == {part for part, _, _ in timed_methods(model)} | {"rest"}
    assert all(seconds[part] > 0 for part in ("perturbation", "kernel", "Hamilton block"))
    assert diagnose(model, digits, only=["parts"])["parts"]["note"] == FUSED_NOTE
    assert diagnose(randomised_qsv(backend="factored"), digits, only=["parts"])["parts"]["note"] is None
