"""A run that is stopped, killed or resumed has the numbers of the uninterrupted run, bit for bit."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_runs import (
    Copies,
    Process,
    as_words,
    change,
    command,
    has_step,
    run_with_kills,
    tiny_config,
    trace_of,
)

from quatsphere.config import AttentionConfig, ResNet20Config, RunConfig
from quatsphere.storage import atomic
from quatsphere.storage.atomic import FAILPOINTS
from quatsphere.train import Reporter, ResumeOptions, train
from quatsphere.train.resources import Interrupted

RESUME = ResumeOptions(resume=True)
pytestmark = pytest.mark.usefixtures("unchecked")


def short(**more: Any) -> RunConfig:
    """Two epochs of four steps; every step is saved."""
    return tiny_config(**{"epochs": 2, "checkpoint_steps": 1} | more)


@pytest.fixture(scope="module")
def uninterrupted(unchecked: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Trace of an uninterrupted run, and copies of its folder after every step."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    train(short(), folder / "run", reporter=Copies(folder / "run", folder / "copies"))
    return trace_of(folder / "run"), folder / "copies"


def test_runs_repeat_exactly(uninterrupted: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    train(change(short(), "train", checkpoint_steps=3), tmp_path / "again")
    assert trace_of(tmp_path / "again") == uninterrupted[0]


def test_another_seed_gives_another_run(uninterrupted: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    train(short(seed=7, epochs=1), tmp_path / "other")
    assert trace_of(tmp_path / "other")["metrics"][0]["train"] != uninterrupted[0]["metrics"][0]["train"]


@pytest.mark.parametrize("step", [1, 3, 4, 6, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5, 7))])
def test_resume_from_every_step(uninterrupted: tuple[dict[str, Any], Path], step: int) -> None:
    trace, copies = uninterrupted
    train(short(), copies / f"step-{step}", RESUME)
    assert trace_of(copies / f"step-{step}") == trace


class StopWhileValidating(Reporter):
    """Sends SIGTERM to this process in the middle of the n-th validation."""

    def __init__(self, wanted: int) -> None:
        self.left = wanted

    def validating(self, done: int, total: int) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("epoch", [1, 2])
def test_resume_from_the_middle_of_validation(
    uninterrupted: tuple[dict[str, Any], Path], tmp_path: Path, epoch: int
) -> None:
    with pytest.raises(Interrupted) as stopped:
        train(short(), tmp_path / "run", reporter=StopWhileValidating(epoch))
    assert stopped.value.exit_code == 143
    train(short(), tmp_path / "run", RESUME)
    trace = trace_of(tmp_path / "run")
    assert trace == uninterrupted[0]
    assert trace["metrics"][epoch - 1]["learning_rates"]


def test_kill_while_the_only_checkpoint_is_replaced(uninterrupted: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    """A run stopped in validation saves the step again at the end of the epoch; a kill between the renames is harmless.

    The resumed process renames settings and environment, then moves the old step aside, then renames the new one.
    """
    config, run = change(short(), "train", checkpoint_steps=None), tmp_path / "run"
    with pytest.raises(Interrupted):
        train(config, run, reporter=StopWhileValidating(1))
    process = command(config, run, "--resume", QUATSPHERE_FAILPOINT="after_rename:3")
    assert process.wait() == 137, process.text
    assert not (run / "checkpoints" / "step-000004").exists()
    last = command(config, run, "--resume")
    assert last.wait() == 0, last.text
    assert "starting from the beginning" not in last.text
    assert trace_of(run) == uninterrupted[0]
    assert sorted(path.name for path in (run / "checkpoints").glob("step-*")) == ["step-000004", "step-000008"]


def test_kill_before_the_first_checkpoint_duplicates_no_line(
    uninterrupted: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    """The first epoch's line is written before the first checkpoint, so a resume after a kill must remove it."""
    config = change(short(), "train", checkpoint_steps=None)
    process = command(config, tmp_path / "run", QUATSPHERE_FAILPOINT="before_write:3")
    assert process.wait() == 137, process.text
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    assert not list(tmp_path.glob("run/checkpoints/step-??????"))
    train(config, tmp_path / "run", RESUME)
    assert trace_of(tmp_path / "run") == uninterrupted[0]


def test_three_kills_change_nothing(uninterrupted: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    begin = time.monotonic()
    first = command(short(), tmp_path / "whole")
    assert first.wait() == 0, first.text
    assert trace_of(tmp_path / "whole") == uninterrupted[0]
    duration = 0.7 * (time.monotonic() - begin)
    run_with_kills(3, short(), tmp_path / "run", duration, random.Random(0))
    assert trace_of(tmp_path / "run") == uninterrupted[0]
    assert "test accuracy" in first.text


def test_kill_during_a_save(uninterrupted: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    """A process killed while a checkpoint is half written loses only that checkpoint."""
    process = command(short(), tmp_path / "run", QUATSPHERE_FAILPOINT="half_written:9")
    assert process.wait() == 137, process.text
    train(short(), tmp_path / "run", RESUME)
    assert trace_of(tmp_path / "run") == uninterrupted[0]
    assert not list(tmp_path.rglob("*.tmp.*"))


def test_sigterm_during_a_save(
    uninterrupted: tuple[dict[str, Any], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After SIGTERM during a write, the write is completed and the process ends with code 143."""
    passes = itertools.count(1)

    def terminate_self(name: str) -> None:
        if name == "half_written" and next(passes) == 9:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(atomic, "failpoint", terminate_self)
        process = command(short(), tmp_path / "run")
    assert process.wait() == 143, process.text
    assert not list(tmp_path.rglob("*.tmp.*"))
    train(short(), tmp_path / "run", RESUME)
    assert trace_of(tmp_path / "run") == uninterrupted[0]


MODELS: dict[str, RunConfig] = {
    "attention": RunConfig(model=AttentionConfig(dim=16, heads=2, base_vertices=16, shells=2, neighbours=4)),
    "resnet20": RunConfig(model=ResNet20Config(width=4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_resume_of_the_other_models(name: str, tmp_path: Path) -> None:
    """The state includes the running statistics of batch norm."""
    config = short()
    config = RunConfig(config.data, MODELS[name].model, config.optim, config.train)
    train(config, tmp_path / "run", reporter=Copies(tmp_path / "run", tmp_path / "copies"))
    train(config, tmp_path / "copies" / "step-6", RESUME)
    assert trace_of(tmp_path / "copies" / "step-6") == trace_of(tmp_path / "run")


VARIANTS: dict[str, dict[str, Any]] = {
    "renormalised": {"optim": {"quaternion_optimizer": "adamw_renormalise", "quaternion_schedule": "annealed"}},
    "no repulsion": {"optim": {"repulsion": False, "schedule": "constant"}},
    "geometric": {"model": {"routing": "geometric", "resample": "geometric"}},
    "frozen": {"model": {"field": "frozen_random", "positions": "frozen"}},
    "mixed": {"data": {"mixup": 0.2, "cutmix": 1.0}},
    "bf16": {"precision": "bf16"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_resume_of_variants(name: str, tmp_path: Path) -> None:
    config = short(**VARIANTS[name])
    train(config, tmp_path / "run", reporter=Copies(tmp_path / "run", tmp_path / "copies"))
    for step in range(1, 8):
        train(config, tmp_path / "copies" / f"step-{step}", RESUME)
        assert trace_of(tmp_path / "copies" / f"step-{step}") == trace_of(tmp_path / "run")


@pytest.mark.slow
def test_resume_from_fifty_steps(tmp_path: Path) -> None:
    """Resume thirteen epochs of four steps from each of the 51 steps before the last."""
    config = short(epochs=13, patience=5)
    train(config, tmp_path / "run", reporter=Copies(tmp_path / "run", tmp_path / "copies"))
    trace = trace_of(tmp_path / "run")
    for copy in sorted((tmp_path / "copies").iterdir()):
        train(config, copy, RESUME)
        assert trace_of(copy) == trace, copy.name


KILLS = [(point, nth) for point in FAILPOINTS for nth in (1, 2, 5, 14) if point != "before_metrics" or nth <= 2]
"""Two epochs write two lines of metrics, and many files."""


@pytest.mark.slow
@pytest.mark.parametrize(("point", "nth"), KILLS)
def test_kill_at_every_point_of_a_save(
    point: str, nth: int, uninterrupted: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    """Kill the process at its n-th call of a failpoint."""
    run = tmp_path / "run"
    assert command(short(), run, QUATSPHERE_FAILPOINT=f"{point}:{nth}").wait() == 137
    train(short(), run, RESUME)
    assert trace_of(run) == uninterrupted[0]


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [40, 200])
def test_many_kills_change_nothing(wanted: int, tmp_path: Path) -> None:
    """Kill runs until `wanted` kills were made; every result is the same."""
    config = short(epochs=6)
    begin = time.monotonic()
    assert command(config, tmp_path / "whole").wait() == 0
    duration = time.monotonic() - begin
    kills, number = 0, 0
    while kills < wanted:
        run = tmp_path / f"run-{number}"
        kills += run_with_kills(10, config, run, 0.5 * duration, random.Random(number))
        assert trace_of(run) == trace_of(tmp_path / "whole")
        number += 1


@pytest.mark.slow
def test_kills_of_the_installed_command(uninterrupted: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    """Kill the installed command, in a new interpreter each time, after it has saved a new checkpoint."""
    run = tmp_path / "run"
    words = [sys.executable, "-m", "quatsphere", *as_words(short(), run, "--resume")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for step in (1, 4, 6):
        process = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
        while process.poll() is None and not has_step(run, step)():
            time.sleep(0.01)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    subprocess.run(words, env=environment, check=True)
    assert trace_of(run) == uninterrupted[0]


@pytest.mark.slow
def test_deterministic_run_keeps_its_threads(tmp_path: Path) -> None:
    """A run started with two threads resumes with two, even if the environment has one."""
    import torch

    config = change(short(), "train", threads=None)

    def begin() -> None:
        torch.set_num_threads(2)
        train(config, tmp_path / "run", reporter=StopWhileValidating(1))

    assert Process(begin, tmp_path / "log").wait() == 99
    seen: list[int] = []

    class ThreadCount(Reporter):
        def start(self, facts: dict[str, Any]) -> None:
            seen.append(facts["threads"])

    try:
        train(config, tmp_path / "run", RESUME, ThreadCount())
    finally:
        torch.set_num_threads(1)
    assert seen == [2]
