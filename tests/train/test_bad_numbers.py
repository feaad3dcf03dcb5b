"""A number that is not finite stops the run before the update; checkpoints with such numbers are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny_runs import as_words, tiny_config, trace_of
from torch import Tensor

import quatsphere.train.run as run_module
from quatsphere.cli import main
from quatsphere.config import RunConfig
from quatsphere.errors import CheckpointError, NumericsError
from quatsphere.geometry.quaternion import random_unit
from quatsphere.models import Model, build_model
from quatsphere.storage.checkpoint import load_last_good
from quatsphere.train import Progress, Reporter, ResumeOptions, train
from quatsphere.train.batches import Batch, Batches
from quatsphere.train.checkpointing import restore_weights
from quatsphere.train.step import first_not_finite

pytestmark = pytest.mark.usefixtures("unchecked")
NAN = float("nan")


def config(**more: Any) -> RunConfig:
    return tiny_config(**{"epochs": 2, "checkpoint_steps": 1} | more)


class ActAfterStep(Reporter):
    """Calls a function after a step."""

    def __init__(self, step: int, action: Callable[[], None]) -> None:
        self.at, self.action = step, action

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        if progress.step == self.at:
            self.action()


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[Model]:
    """Models built by the runs of this test."""
    built: list[Model] = []

    def build(*words: Any, **options: Any) -> Model:
        built.append(build_model(*words, **options))
        return built[-1]

    monkeypatch.setattr(run_module, "build_model", build)
    return built


def spoil_input(step: int, models: list[Model], monkeypatch: pytest.MonkeyPatch) -> Reporter:
    """Set one pixel of an image of the next step to NaN."""
    make = Batches.batch

    def batch(self: Batches, epoch: int, number: int, *more: Any) -> Batch:
        made = make(self, epoch, number, *more)
        if epoch * self.steps + number == step:
            made.images[3, 0, 2, 2] = NAN
        return made

    monkeypatch.setattr(Batches, "batch", batch)
    return Reporter()


def spoil_gradient(step: int, models: list[Model], monkeypatch: pytest.MonkeyPatch) -> Reporter:
    """Set the gradient of one parameter in the next step to NaN."""
    return ActAfterStep(step, lambda: _spoil_gradient(models[0].classifier.bias))


def _spoil_gradient(parameter: Tensor) -> None:
    parameter.register_hook(lambda gradient: gradient * NAN)


def spoil_weight(step: int, models: list[Model], monkeypatch: pytest.MonkeyPatch) -> Reporter:
    """Set one weight to infinity between two steps."""
    return ActAfterStep(step, lambda: models[0].classifier.weight.data[0, 0].fill_(float("inf")))


SPOILED = {
    "input": (spoil_input, "cross_entropy"),
    "gradient": (spoil_gradient, "gradient of classifier.bias"),
    "weight": (spoil_weight, "classifier.weight"),
}


@pytest.mark.parametrize("step", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4, 5, 6, 7, 8))])
@pytest.mark.parametrize("kind", SPOILED)
def test_run_stops_before_the_update(
    kind: str, step: int, models: list[Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil, tensor = SPOILED[kind]
    reporter = spoil(step, models, monkeypatch)
    with pytest.raises(NumericsError, match=f"^{tensor} is not finite .*details in crash/") as stopped:
        train(config(epochs=3), tmp_path / "run", reporter=reporter)
    assert stopped.value.exit_code == 5
    last = load_last_good(tmp_path / "run" / "checkpoints", pytest.fail)
    assert last is not None
    assert last.step == (step - 1 if kind == "weight" else step)
    assert first_not_finite([*last.weights.items(), *last.state.items()]) is None
    if kind != "weight":
        now = models[0].state_dict()
        assert all(torch.equal(now[name], value) for name, value in last.weights.items())


def test_crash_file_names_the_images(models: list[Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NumericsError):
        train(config(), tmp_path / "run", reporter=spoil_input(6, models, monkeypatch))
    crash = json.loads((tmp_path / "run" / "crash" / "crash.json").read_text())
    assert (crash["tensor"], crash["epoch"], crash["step_in_epoch"], crash["step"]) == ("cross_entropy", 1, 2, 6)
    assert len(crash["samples"]) == 16
    assert crash["seed"] == 42
    assert crash["config"]["model"]["name"] == "qsv"


def test_position_that_is_not_finite_stops_the_run(models: list[Model], tmp_path: Path) -> None:
    """torch ends the process in the gradient of a pixel sampled at NaN, before a loss could show it."""
    reporter = ActAfterStep(2, lambda: models[0].layout.shells[0].positions.data[3].fill_(NAN))
    with pytest.raises(NumericsError, match=r"^layout\.shells\.0\.positions is not finite \(epoch 1, step 2, "):
        train(config(checkpoint_steps=None), tmp_path / "run", reporter=reporter)


@pytest.mark.slow
def test_crashed_run_can_be_resumed(models: list[Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched, pytest.raises(NumericsError):
        train(config(), tmp_path / "run", reporter=spoil_input(6, models, patched))
    train(config(), tmp_path / "run", ResumeOptions(resume=True))
    train(config(), tmp_path / "whole")
    assert trace_of(tmp_path / "run") == trace_of(tmp_path / "whole")


def test_divergence_has_exit_code_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = as_words(config(optim={"peak_lr": 1e6, "initial_div": 1.0}), tmp_path / "run")
    assert main(words) == 5
    messages = capsys.readouterr().err.strip().splitlines()[-1]
    assert messages.startswith("quatsphere: error: ")
    assert "is not finite (epoch 1, step 1, images [" in messages
    assert "lower the learning rate" in messages


@pytest.mark.slow
def test_fp16_stops_when_every_scale_overflows(models: list[Model], tmp_path: Path) -> None:
    """An overflow skips a step and halves the scale; a gradient that never fits must not skip steps for ever."""
    few = {"max_train_images": 20, "val_fraction": 0.02, "test_fraction": 0.02}
    settings = config(precision="fp16", epochs=20, batch_size=10, checkpoint_steps=None, data=few)
    reporter = ActAfterStep(2, lambda: _spoil_gradient(models[0].classifier.bias))
    with pytest.raises(NumericsError, match="a gradient overflows fp16 at every scale"):
        train(settings, tmp_path / "run", reporter=reporter)
    assert first_not_finite(models[0].state_dict().items()) is None


def test_field_without_unit_length_is_not_saved(models: list[Model], tmp_path: Path) -> None:
    reporter = ActAfterStep(2, lambda: models[0].fields[0].base.data[0].mul_(1.01))
    with pytest.raises(NumericsError, match=r"^fields\.0\.base has lost its unit length"):
        train(config(), tmp_path / "run", reporter=reporter)
    last = load_last_good(tmp_path / "run" / "checkpoints", pytest.fail)
    assert last is not None
    assert last.step == 1


POSITIONS = "layout.shells.0.positions"


@pytest.fixture
def pair() -> tuple[Model, dict[str, Tensor]]:
    """A model and the weights of another one."""
    return build_model(config().model, seed=1), dict(build_model(config().model, seed=2).state_dict())


def test_restored_weights_are_equal(pair: tuple[Model, dict[str, Tensor]]) -> None:
    model, weights = pair
    restore_weights(model, weights)
    model.constrain()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_restored_vertices_are_not_projected_again(pair: tuple[Model, dict[str, Tensor]]) -> None:
    """A vertex may differ from its radius in the last bit; a resumed run must not move it, as the first did not."""
    model, weights = pair
    name = "layout.shells.1.positions"
    weights[name] = weights[name] * (1 + 3e-7)
    restore_weights(model, weights)
    model.constrain()
    assert torch.equal(model.state_dict()[name], weights[name])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda w: w.pop("classifier.bias"), "missing classifier.bias"),
        (lambda w: w.update(extra=torch.zeros(1)), "unknown extra"),
        (lambda w: w.update({"classifier.bias": torch.zeros(3)}), r"classifier.bias has shape \(3,\), the model \(10,"),
        (lambda w: w.update({"classifier.bias": torch.full((10,), NAN)}), "classifier.bias holds values that are not"),
        (
            lambda w: w.update({"classifier.bias": torch.zeros(10).half()}),
            "bias has type torch.float16, the model torch",
        ),
        (lambda w: w.update({"fields.0.base": w["fields.0.base"] * 1.01}), "norm is off by 1.0e-02; --repair"),
        (
            lambda w: w.update({POSITIONS: w[POSITIONS] * 10}),
            "a vertex whose radius is off by 9.0e[+]00; --repair projects",
        ),
        (lambda w: w.update({POSITIONS: w[POSITIONS] * 0}), "has all vertices at one point; use an older checkpoint"),
        (lambda w: w[POSITIONS][3].zero_(), "a vertex whose radius is off by 1.0e[+]00; use an older checkpoint"),
        (lambda w: w[POSITIONS].copy_(w[POSITIONS][:1].clone()), "has all vertices at one point; use an older"),
    ],
)
def test_wrong_weights_change_nothing(
    damage: Callable[[dict[str, Tensor]], object], message: str, pair: tuple[Model, dict[str, Tensor]]
) -> None:
    model, weights = pair
    before = {name: value.clone() for name, value in model.state_dict().items()}
    damage(weights)
    with pytest.raises(CheckpointError, match=message):
        restore_weights(model, weights)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_at_most_ten_differences_are_listed(pair: tuple[Model, dict[str, Tensor]]) -> None:
    model, weights = pair
    with pytest.raises(CheckpointError, match=f"and {len(weights) - 10} more; check the configuration"):
        restore_weights(model, {})


def test_repair_renormalises_with_a_note(pair: tuple[Model, dict[str, Tensor]]) -> None:
    model, weights = pair
    messages: list[str] = []
    weights["fields.0.base"] = weights["fields.0.base"] * 1.01
    restore_weights(model, weights, repair=True, note=messages.append)
    assert messages == ["repaired fields.0.base: a norm was off by 1.0e-02"]
    assert (model.fields[0].base.norm(dim=-1) - 1).abs().max() < 1e-6


def test_repair_projects_vertices_with_a_note(pair: tuple[Model, dict[str, Tensor]]) -> None:
    model, weights = pair
    messages: list[str] = []
    right = weights[POSITIONS].clone()
    weights[POSITIONS] = right * 1.01
    restore_weights(model, weights, repair=True, note=messages.append)
    assert messages == [f"repaired {POSITIONS}: a radius was off by 1.0e-02"]
    torch.testing.assert_close(model.state_dict()[POSITIONS], right, atol=1e-6, rtol=0)


def test_vertices_off_their_sphere_are_not_saved(models: list[Model], tmp_path: Path) -> None:
    def move() -> None:
        models[0].layout.shells[1].positions.data.mul_(1.01)

    with pytest.raises(NumericsError, match=r"^layout\.shells\.1\.positions has left its sphere"):
        train(config(), tmp_path / "run", reporter=ActAfterStep(2, move))
    last = load_last_good(tmp_path / "run" / "checkpoints", pytest.fail)
    assert last is not None
    assert last.step == 1


def test_vertex_at_the_origin_stops_the_run(models: list[Model], tmp_path: Path) -> None:
    """It has no image coordinates: torch would end the process in the gradient of a pixel sampled at NaN."""
    reporter = ActAfterStep(2, lambda: models[0].layout.shells[0].positions.data[3].zero_())
    with pytest.raises(NumericsError, match=r"^layout\.shells\.0\.positions has a vertex without a direction"):
        train(config(checkpoint_steps=None), tmp_path / "run", reporter=reporter)


def test_first_bad_tensor_is_named() -> None:
    good, bad = torch.ones(3), torch.tensor([1.0, NAN])
    assert first_not_finite([("a", good), ("counts", torch.tensor([1]))]) is None
    assert first_not_finite([("a", good), ("b", bad), ("c", bad)]) == "b"
    assert first_not_finite([("a", random_unit(2)), ("b", torch.tensor(float("-inf")))]) == "b"
    assert first_not_finite([]) is None
    huge, opposite = torch.tensor([3e38, 3e38]), torch.tensor([1.0, -1.0]) / 0
    assert first_not_finite([("empty", good[:0]), ("huge", huge)]) is None
    assert first_not_finite([("huge", huge), ("opposite", opposite)]) == "opposite"
