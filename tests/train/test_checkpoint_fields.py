"""Checkpoints with a right seal and wrong content: a resume falls back to the older one or is refused in one line."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny_runs import tiny_config, trace_of

from quatsphere import load
from quatsphere.cli import main
from quatsphere.errors import CheckpointError
from quatsphere.storage.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from quatsphere.train import Reporter, ResumeOptions, train

pytestmark = pytest.mark.usefixtures("unchecked")
CONFIG = tiny_config(epochs=2, checkpoint_steps=1, keep_checkpoints=3)
Damage = Callable[[Checkpoint], object]


def moment(end: str) -> Callable[[Checkpoint], str]:
    """Name of the first tensor of the optimiser's state with this ending."""
    return lambda c: next(name for name in c.state if name.endswith(end))


def recast(end: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    return lambda c: c.state.update({(name := moment(end)(c)): change(c.state[name])})


def meta(**values: Any) -> Damage:
    return lambda c: c.meta.update(values)


def progress(**values: Any) -> Damage:
    return lambda c: c.meta["progress"].update(values)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no moment": (lambda c: c.state.pop(moment("/exp_avg")(c)), "/exp_avg is missing"),
    "no quaternion moment": (lambda c: c.state.pop(moment("/square")(c)), "/square is missing"),
    "unknown moment": (lambda c: c.state.update({"x/exp_avg": torch.zeros(1)}), "x/exp_avg is unknown"),
    "moment of another type": (recast("/exp_avg", torch.Tensor.half), "type torch.float16"),
    "moment of another shape": (recast("/exp_avg", lambda t: t[..., None]), "has shape"),
    "moment not finite": (recast("/exp_avg_sq", lambda t: t * float("nan")), "holds values that are not finite"),
    "count of steps": (recast("/step", lambda t: t + 1000), "at step 8"),
    "previous field": (recast("previous_field/0", lambda t: t[:1].clone()), "field of the last epoch"),
    "weight of another type": (
        lambda c: c.weights.update({"classifier.bias": c.weights["classifier.bias"].to(torch.int8)}),
        "classifier.bias has type torch.int8",
    ),
    "base of integers": (
        lambda c: c.weights.update({"fields.0.base": c.weights["fields.0.base"].int()}),
        "fields.0.base has type torch.int32",
    ),
    "no weight": (lambda c: c.weights.pop("classifier.bias"), "missing classifier.bias"),
    "no progress": (lambda c: c.meta.pop("progress"), "field progress is missing"),
    "no fingerprint": (lambda c: c.meta.pop("fingerprint"), "field fingerprint is missing"),
    "fingerprint of another type": (meta(fingerprint=7), "field fingerprint is wrong"),
    "no offset": (lambda c: c.meta.pop("metrics_offset"), "field metrics_offset is missing"),
    "negative offset": (meta(metrics_offset=-1), "field metrics_offset is wrong"),
    "offset of another type": (meta(metrics_offset="0"), "field metrics_offset is wrong"),
    "epoch of another type": (progress(epoch="1"), "field progress.epoch is wrong"),
    "another step": (progress(step=3), "field progress is not that of step 8"),
    "unknown progress": (progress(more=1), "field progress is not that of step 8"),
    "sums of another type": (progress(sums={"loss": None}), "field progress.sums.loss is wrong"),
    "no sums": (progress(sums={}, step_in_epoch=2), "field progress.sums.images is missing"),
    "classes": (meta(classes=["a"]), "classes, mean or std do not fit the model"),
    "mean": (meta(mean=[None]), r"field mean\[0\] is wrong"),
    "std": (meta(std=[0.0]), "field std is not positive"),
}


@pytest.fixture(scope="module")
def finished(unchecked: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight steps without its result; its last two checkpoints are those of steps 7 and 8."""
    run = tmp_path_factory.mktemp("finished") / "run"
    train(CONFIG, run)
    return run


def reseal(step: Path, damage: Damage) -> None:
    """Write a checkpoint again, with wrong content under a right seal."""
    content = load_checkpoint(step)
    damage(content)
    shutil.rmtree(step)
    save_checkpoint(step.parent, content, best=False)


class Notes(Reporter):
    def __init__(self) -> None:
        self.found: list[str] = []

    def note(self, message: str) -> None:
        self.found.append(message)


@pytest.mark.parametrize("kind", DAMAGES)
def test_resume_falls_back_to_the_older_checkpoint(kind: str, finished: Path, tmp_path: Path) -> None:
    damage, reason = DAMAGES[kind]
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "result.json").unlink()
    reseal(run / "checkpoints" / "step-000008", damage)
    reporter = Notes()
    train(CONFIG, run, ResumeOptions(resume=True), reporter)
    (said,) = [note for note in reporter.found if "falling back to step 7" in note]
    assert re.search(reason, said), said
    assert trace_of(run) == trace_of(finished)


@pytest.mark.parametrize("kind", ["no fingerprint", "classes", "mean", "no progress"])
def test_a_model_with_wrong_meta_is_not_loaded(kind: str, finished: Path, tmp_path: Path) -> None:
    damage, reason = DAMAGES[kind]
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    reseal(run / "checkpoints" / "step-000008", damage)
    with pytest.raises(CheckpointError, match=rf"step 8 is damaged \({reason}"):
        load(run, 8)


def test_no_good_checkpoint_has_exit_code_4(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "result.json").unlink()
    for step in (run / "checkpoints").glob("step-*"):
        reseal(step, meta(fingerprint=None))
    assert main(["train", "--run-dir", str(run), "--resume"]) == 4
    assert "no good checkpoint left" in capsys.readouterr().err


def test_a_damaged_result_is_tested_again(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    text = (run / "result.json").read_text()
    (run / "result.json").write_text(text.replace('"test_accuracy": 0.', '"test_accuracy": 1.'))
    with pytest.raises(CheckpointError, match=r"^damaged result \(.*: sha256 differs\)"):
        load(run).result  # noqa: B018 - reads the file
    assert main(["train", "--run-dir", str(run), "--resume"]) == 0
    assert "sha256 differs); the run is tested again" in capsys.readouterr().err
    assert trace_of(run) == trace_of(finished)
