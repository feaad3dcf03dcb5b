"""--checkpoint of every verb that loads a run, and names of runs that are nearly right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny: list[str], command: Command) -> Path:
    """A run of three epochs, with checkpoints of steps 4 and 6 and perhaps an earlier best one."""
    run = tmp_path_factory.mktemp("three") / "run"
    ended = command("train", *tiny, "--train.epochs=3", f"--run-dir={run}")
    assert ended.code == 0, ended.err
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy whose best checkpoint is step 6."""
    copy = shutil.copytree(trained, tmp_path / "runs" / "demo")
    (copy / "checkpoints" / "best").write_text("step-000006\n")
    return copy


def damage(folder: Path) -> None:
    data = bytearray((folder / "weights.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "weights.safetensors").write_bytes(bytes(data))


def test_a_checkpoint_is_chosen_by_name_or_step(run: Path, command: Command, fails: Command) -> None:
    def step(*words: str) -> int:
        return int(json.loads(command("evaluate", str(run), "--json", *words).out)["step"])

    assert step() == step("--checkpoint", "best") == step("--checkpoint", "last") == 6
    assert step("--checkpoint", "4") == 4
    (run / "checkpoints" / "best").write_text("step-000004\n")
    assert (step(), step("--checkpoint=last")) == (4, 6)
    fails(4, "run 'demo' has no checkpoint step 7; --checkpoint takes 6, 4", "evaluate", str(run), "--checkpoint", "7")
    fails(2, "--checkpoint must be best, last or the number of a step: got 'x'", "evaluate", str(run), "--checkpoint=x")


def test_the_error_of_a_damaged_checkpoint_names_the_remedy(
    run: Path, command: Command, fails: Command, noise: Callable[..., bytes], tmp_path: Path
) -> None:
    (tmp_path / "x.png").write_bytes(noise(0))
    damage(run / "checkpoints" / "step-000006")
    verbs = (("evaluate",), ("predict", "x.png"), ("diagnose", "--images=8", "--accuracy-images=8"), ("view",))
    for verb, *rest in verbs:
        words = (verb, str(run), *rest)
        fails(4, r"step 6 is damaged \(hash.*\); load another checkpoint with --checkpoint 4", *words)
        ended = command(*words, "--checkpoint", "4")
        assert ended.code == 0, ended.err
    shutil.rmtree(run / "checkpoints" / "step-000004")
    fails(4, "step 6 is damaged .*; no other is left", "evaluate", str(run))


@pytest.mark.usefixtures("blank_figures")
def test_a_report_of_another_checkpoint(run: Path, command: Command, fails: Command, tmp_path: Path) -> None:
    damage(run / "checkpoints" / "step-000006")
    ended = command("report", str(run))
    assert ended.code == 0, ended.err
    assert "quatsphere: note: predictions are left out: checkpoint step 6 is damaged" in ended.err
    ended = command("report", str(run), "--checkpoint", "4")
    assert (ended.code, ended.err) == (0, "")
    (tmp_path / "results" / "cells").mkdir(parents=True)
    fails(2, "--checkpoint is for runs", "report", "results", "--checkpoint", "last")


def test_resuming_a_run_that_is_not_there_is_an_error(run: Path, tmp_path: Path, fails: Command) -> None:
    looked = r"no run to resume in runs/dmeo \(looked for config.yaml\); "
    fails(4, looked + r"did you mean runs/demo\? a new run needs --preset", "train", "--run-dir=runs/dmeo", "--resume")
    fails(4, r"no run to resume in other .*; a new run needs --preset NAME", "train", "--run-dir", "other", "--resume")
    fails(4, r"no run in runs/dmeo .*; did you mean runs/demo\?", "evaluate", "runs/dmeo")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["demo"]


def test_resuming_with_settings_still_starts(tiny: list[str], command: Command) -> None:
    ended = command("train", *tiny, "--run-dir=run", "--resume")
    assert ended.code == 0, ended.err
