"""Rules for starting and resuming a run: run folders, settings, data."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from helpers.tiny_runs import as_words, change, tiny_config, tiny_run, trace_of, write_idx

from quatsphere.cli import main
from quatsphere.config import ResNet20Config, RunConfig
from quatsphere.data.load import DIGITS
from quatsphere.errors import CheckpointError, ConfigError
from quatsphere.storage.checkpoint import Checkpoint
from quatsphere.storage.safe_yaml import read_yaml
from quatsphere.train import Reporter, ResumeOptions, train
from quatsphere.train.provenance import note_environment_change, numeric_environment

pytestmark = pytest.mark.usefixtures("unchecked")
RESUME = ResumeOptions(resume=True)


def config(**more: Any) -> RunConfig:
    return tiny_config(**{"epochs": 1} | more)


@pytest.fixture(scope="module")
def finished(unchecked: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run"
    tiny_run(run, config())
    return run


def state_of(folder: Path) -> dict[str, int]:
    """Return every file with its modification time."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_existing_run_is_never_overwritten(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = state_of(finished)
    assert main(as_words(config(), finished)) == 2
    messages = capsys.readouterr().err.strip().splitlines()
    assert messages[-1] == "quatsphere: error: run 'run' exists (epoch 1 of 1); use --resume or another name"
    assert state_of(finished) == before


def test_resuming_a_finished_run_returns_its_result(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = state_of(finished)
    assert main(as_words(config(), finished, "--resume")) == 0
    messages = capsys.readouterr()
    assert "run 'run' is finished" in messages.err
    assert "test accuracy 0." in messages.out
    assert state_of(finished) == before


def test_resume_without_a_run_starts_one(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(as_words(config(), tmp_path / "run", "--resume")) == 0
    assert "no checkpoint yet: starting from the beginning" in capsys.readouterr().err
    assert trace_of(tmp_path / "run") == trace_of(finished)


OTHERS = {
    "model.dim: 32 in the run, 64 now": {"model": {"dim": 64}},
    "model.routing: 'alignment' in the run, 'uniform' now": {"model": {"routing": "uniform"}},
    "optim.peak_lr: 0.001 in the run, 0.5 now": {"optim": {"peak_lr": 0.5}},
    "train.epochs: 1 in the run, 2 now": {"epochs": 2},
    "train.seed: 42 in the run, 1 now": {"seed": 1},
}


@pytest.mark.parametrize("difference", OTHERS)
def test_other_settings_are_refused(
    difference: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished = without_result(finished, tmp_path)
    before = state_of(unfinished)
    other = config(**OTHERS[difference])
    assert main(as_words(other, unfinished, "--resume")) == 2
    assert difference in capsys.readouterr().err
    with pytest.raises(ConfigError, match=difference.replace(".", r"\.")):
        train(other, unfinished, RESUME)
    assert state_of(unfinished).keys() - before.keys() <= {str(unfinished / ".lock")}


def without_result(finished: Path, folder: Path) -> Path:
    """Copy of a run without its result."""
    shutil.copytree(finished, folder / "run")
    (folder / "run" / "result.json").unlink()
    return folder / "run"


def test_another_model_is_refused(finished: Path, tmp_path: Path) -> None:
    unfinished = without_result(finished, tmp_path)
    other = RunConfig(config().data, ResNet20Config(width=4), config().optim, config().train)
    with pytest.raises(ConfigError, match=r"model\.name: 'qsv' in the run, 'resnet20' now"):
        train(other, unfinished, RESUME)


def test_some_settings_can_change_in_a_resumed_run(finished: Path, tmp_path: Path) -> None:
    unfinished = without_result(finished, tmp_path)
    other = config(checkpoint_steps=3, keep_checkpoints=5, checkpoint_seconds=7.0)
    train(other, unfinished, RESUME)
    assert read_yaml(unfinished / "config.yaml")["train"]["keep_checkpoints"] == 5
    assert trace_of(unfinished) == trace_of(finished)


def test_run_older_than_a_setting_resumes_with_its_default(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished = without_result(finished, tmp_path)
    stored = read_yaml(unfinished / "config.yaml")
    del stored["model"]["stencil"]
    (unfinished / "config.yaml").write_text(yaml.safe_dump(stored))
    with pytest.raises(ConfigError, match=r"model\.stencil: 'span' in the run, 'pitch' now"):
        train(config(model={"stencil": "pitch"}), unfinished, RESUME)
    assert main(as_words(config(), unfinished, "--resume")) == 0, capsys.readouterr().err
    assert trace_of(unfinished) == trace_of(finished)


def test_sizes_of_the_data_need_not_be_given(finished: Path, tmp_path: Path) -> None:
    unfinished = without_result(finished, tmp_path)
    train(config(model={"image_size": 32, "in_channels": 3}), unfinished, RESUME)
    assert trace_of(unfinished) == trace_of(finished)


REFUSED = {
    "train.batch_size must not exceed the 64 training images": {"batch_size": 65},
    "no test images are left": {"data": {"test_fraction": 0.0}},
    "cannot be used": {"device": "cuda:99"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_nothing_is_written_before_everything_is_checked(message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train(config(**REFUSED[message]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_missing_tensorboard_is_reported_before_the_run_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"quatsphere\[track\]"):
        train(config(track="tensorboard"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def few_digits() -> tuple[np.ndarray, np.ndarray]:
    with np.load(DIGITS) as digits:
        return digits["levels"][:300] * 15, digits["labels"][:300]


@pytest.fixture
def own_data(tmp_path: Path) -> tuple[RunConfig, Path]:
    """Configuration of a data set in files that the test can change, and their folder."""
    images, labels = few_digits()
    write_idx(tmp_path / "data", images, labels)
    return config(data={"name": "idx", "root": str(tmp_path / "data")}, epochs=2), tmp_path / "data"


class StopAfterFirstEpoch(Reporter):
    def epoch(self, record: dict[str, Any]) -> None:
        if record["epoch"] == 1:
            raise KeyboardInterrupt


def test_changed_data_is_refused_unless_accepted(
    own_data: tuple[RunConfig, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, folder = own_data
    settings = change(settings, "train", checkpoint_steps=1)
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "run", reporter=StopAfterFirstEpoch())
    images, labels = few_digits()
    images[0, 0, 0] += 1
    write_idx(folder, images, labels)
    assert main(as_words(settings, tmp_path / "run", "--resume")) == 4
    assert "the data changed since this run started" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="--accept-data-change"):
        train(settings, tmp_path / "run", RESUME)
    assert main(as_words(settings, tmp_path / "run", "--resume", "--accept-data-change")) == 0
    assert (tmp_path / "run" / "result.json").is_file()


def test_data_can_move(own_data: tuple[RunConfig, Path], tmp_path: Path) -> None:
    settings, folder = own_data
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "run", reporter=StopAfterFirstEpoch())
    folder.rename(tmp_path / "elsewhere")
    train(change(settings, "data", root=str(tmp_path / "elsewhere")), tmp_path / "run", RESUME)
    assert (tmp_path / "run" / "result.json").is_file()


def test_changed_environment_is_noted_in_one_line() -> None:
    messages: list[str] = []
    same = Checkpoint(1, {}, {}, {"circumstances": numeric_environment(1)})
    note_environment_change(same, 1, messages.append)
    assert messages == []
    note_environment_change(same, 2, messages.append)
    older = Checkpoint(1, {}, {}, {"circumstances": {**numeric_environment(1), "torch": "1.0"}})
    note_environment_change(older, 1, messages.append)
    assert messages == [
        "last bits may differ: the checkpoint is from another environment (processes 1 -> 2)",
        f"last bits may differ: the checkpoint is from another environment (torch 1.0 -> {torch.__version__})",
    ]
