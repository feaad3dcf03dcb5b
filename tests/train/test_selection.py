"""Selection of the best checkpoint and early stopping, also across resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_runs import Copies, tiny_config, trace_of
from torch import nn

import quatsphere.train.trainer as trainer_module
from quatsphere.config import RunConfig
from quatsphere.data import Dataset
from quatsphere.models import build_model
from quatsphere.storage.checkpoint import load_best, load_checkpoint
from quatsphere.train import Evaluation, Progress, ResumeOptions, evaluate, train
from quatsphere.train.checkpointing import restore_weights
from quatsphere.train.evaluation import SplitName
from quatsphere.train.run import fit_to_data, load_data
from quatsphere.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("unchecked")
ACCURACIES = [0.3, 0.5, 0.5, 0.4, 0.5009, 0.2, 0.1]
"""Validation accuracies by epoch: best in epoch 2; epoch 5 exceeds it by less than 1e-3."""


def config(**more: Any) -> RunConfig:
    few = {"max_train_images": 20, "val_fraction": 0.02, "test_fraction": 0.02}
    return tiny_config(**{"epochs": 7, "batch_size": 10, "min_delta": 1e-3, "data": few, "checkpoint_steps": 1} | more)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make validation return ACCURACIES."""
    monkeypatch.setattr(Trainer, "validate", lambda trainer: ACCURACIES[trainer.progress.epoch])


def test_improvement_needs_more_than_min_delta() -> None:
    progress = Progress()
    verdicts = []
    for epoch, accuracy in enumerate(ACCURACIES, start=1):
        progress.epoch, progress.step = epoch, 10 * epoch
        verdicts.append((progress.improved(accuracy, 1e-3), progress.waited))
    assert verdicts == [(True, 0), (True, 0), (False, 1), (False, 2), (False, 3), (False, 4), (False, 5)]
    assert (progress.best_accuracy, progress.best_step, progress.best_epoch) == (0.5, 20, 2)


def test_equal_accuracy_is_no_improvement() -> None:
    progress = Progress()
    assert progress.improved(0.5, 0.0)
    assert not progress.improved(0.5, 0.0)
    assert progress.improved(0.5000001, 0.0)


def test_progress_round_trips_through_json() -> None:
    progress = Progress(epoch=3, best_accuracy=1 / 3, sums={"loss": 0.1 + 0.2})
    assert Progress(**json.loads(json.dumps(progress.to_json()))) == progress


@pytest.mark.parametrize(("patience", "epochs"), [(1, 3), (3, 5), (None, 7)])
@pytest.mark.usefixtures("scripted")
def test_patience_counts_epochs_without_improvement(patience: int | None, epochs: int, tmp_path: Path) -> None:
    result = train(config(patience=patience), tmp_path / "run")
    assert result["epochs"] == epochs
    assert (result["best_epoch"], result["best_step"], result["val_accuracy"]) == (2, 4, 0.5)
    assert trace_of(tmp_path / "run")["best"] == "step-000004\n"


@pytest.mark.usefixtures("scripted")
def test_resumed_run_stops_at_the_same_epoch(tmp_path: Path) -> None:
    """Every checkpoint has the number of epochs without improvement and the best step."""
    settings = config(patience=3)
    train(settings, tmp_path / "run", reporter=Copies(tmp_path / "run", tmp_path / "copies"))
    trace = trace_of(tmp_path / "run")
    copies = sorted((tmp_path / "copies").iterdir())
    assert len(copies) == 9
    for copy in copies[1::3]:
        result = train(settings, copy, ResumeOptions(resume=True))
        assert (result["epochs"], result["best_step"]) == (5, 4)
        assert trace_of(copy) == trace


def test_test_images_are_used_once_at_the_best_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits: list[str] = []

    def watched(model: nn.Module, dataset: Dataset, split: SplitName, **options: Any) -> Evaluation:
        splits.append(split)
        return evaluate(model, dataset, split, **options)

    monkeypatch.setattr(trainer_module, "evaluate", watched)
    monkeypatch.setattr(Trainer, "validate", lambda trainer: [0.1, 0.9, 0.1][trainer.progress.epoch])
    settings = config(epochs=3)
    result = train(settings, tmp_path / "run")
    assert splits == ["test"]
    assert (result["best_step"], result["steps"], result["val_accuracy"]) == (4, 6, 0.9)
    dataset = load_data(settings.data, print)
    model = build_model(fit_to_data(settings, dataset).model)
    reports = []
    for step in (4, 6):
        checkpoint = load_checkpoint(tmp_path / "run" / "checkpoints" / f"step-00000{step}")
        restore_weights(model, checkpoint.weights)
        reports.append(evaluate(model, dataset, "test").report())
    assert reports[0] == result["test"]
    assert reports[1] != result["test"]


def test_selection_uses_the_validation_images(tmp_path: Path) -> None:
    settings = config(epochs=3)
    result = train(settings, tmp_path / "run")
    dataset = load_data(settings.data, print)
    model = build_model(fit_to_data(settings, dataset).model)
    restore_weights(model, load_best(tmp_path / "run" / "checkpoints").weights)
    assert evaluate(model, dataset, "val").accuracy == result["val_accuracy"]
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(record["val_accuracy"] for record in records) == result["val_accuracy"]


def test_best_checkpoint_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "validate", lambda trainer: [0.9, 0.1, 0.1, 0.1][trainer.progress.epoch])
    train(config(epochs=4, patience=None), tmp_path / "run")
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert kept == ["step-000002", "step-000007", "step-000008"]
