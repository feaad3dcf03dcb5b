"""Whatever happens to a run, its numbers are those of the undisturbed one, bit for bit."""

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
from tiny_runs import Copies, Process, as_words, change, command, has_step, tiny_config, trace_of

from quatsphere.config import AttentionConfig, ResNet20Config, RunConfig
from quatsphere.storage import atomic
from quatsphere.storage.atomic import FAILPOINTS
from quatsphere.train import Reporter, ResumeOptions, train
from quatsphere.train.resources import Interrupted

RESUME = ResumeOptions(resume=True)
pytestmark = pytest.mark.usefixtures("unchecked")


def short(**more: Any) -> RunConfig:
    """Two epochs of four steps, every step saved."""
    return tiny_config(**{"epochs": 2, "checkpoint_steps": 1} | more)


@pytest.fixture(scope="module")
def undisturbed(unchecked: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The trace of a run that nothing happened to, and copies of its folder after every step."""
    folder = tmp_path_factory.mktemp("undisturbed")
    train(short(), folder / "run", reporter=Copies(folder / "run", folder / "copies"))
    return trace_of(folder / "run"), folder / "copies"


def test_two_runs_are_equal(undisturbed: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    train(change(short(), "train", checkpoint_steps=3), tmp_path / "again")
    assert trace_of(tmp_path / "again") == undisturbed[0]


def test_another_seed_is_another_run(undisturbed: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    train(short(seed=7, epochs=1), tmp_path / "other")
    assert trace_of(tmp_path / "other")["metrics"][0]["train"] != undisturbed[0]["metrics"][0]["train"]


@pytest.mark.parametrize("step", [1, 3, 4, 6, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5, 7))])
def test_resume_from_every_step(undisturbed: tuple[dict[str, Any], Path], step: int) -> None:
    trace, copies = undisturbed
    train(short(), copies / f"step-{step}", RESUME)
    assert trace_of(copies / f"step-{step}") == trace


class StopWhileValidating(Reporter):
    """Sends this process a real SIGTERM in the middle of the n-th validation."""

    def __init__(self, wanted: int) -> None:
        self.left = wanted

    def validating(self, done: int, total: int) -> None:
        """Count validations."""
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("epoch", [1, 2])
def test_resume_from_the_middle_of_validation(
    undisturbed: tuple[dict[str, Any], Path], tmp_path: Path, epoch: int
) -> None:
    with pytest.raises(Interrupted) as stopped:
        train(short(), tmp_path / "run", reporter=StopWhileValidating(epoch))
    assert stopped.value.exit_code == 143
    train(short(), tmp_path / "run", RESUME)
    trace = trace_of(tmp_path / "run")
    assert trace == undisturbed[0]
    assert trace["metrics"][epoch - 1]["learning_rates"]


def test_a_kill_while_the_only_checkpoint_is_replaced(undisturbed: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    """A run stopped in validation saves the step again when the epoch ends; a death between both renames costs nothing.

    The resumed life renames settings and environment, then the old step aside, then the new one into its place.
    """
    config, run = change(short(), "train", checkpoint_steps=None), tmp_path / "run"
    with pytest.raises(Interrupted):
        train(config, run, reporter=StopWhileValidating(1))
    life = command(config, run, "--resume", QUATSPHERE_FAILPOINT="after_rename:3")
    assert life.wait() == 137, life.text
    assert not (run / "checkpoints" / "step-000004").exists()
    last = command(config, run, "--resume")
    assert last.wait() == 0, last.text
    assert "starting from the beginning" not in last.text
    assert trace_of(run) == undisturbed[0]
    assert sorted(path.name for path in (run / "checkpoints").glob("step-*")) == ["step-000004", "step-000008"]


def test_a_kill_before_the_first_checkpoint_leaves_no_double_line(
    undisturbed: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    """The first epoch's line is written before the first checkpoint: a kill in between must not keep it."""
    config = change(short(), "train", checkpoint_steps=None)
    life = command(config, tmp_path / "run", QUATSPHERE_FAILPOINT="before_write:3")
    assert life.wait() == 137, life.text
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    assert not list(tmp_path.glob("run/checkpoints/step-??????"))
    train(config, tmp_path / "run", RESUME)
    assert trace_of(tmp_path / "run") == undisturbed[0]


def survive(kills: int, config: RunConfig, run: Path, life_time: float, generator: random.Random) -> int:
    """Start, kill -9 at a random moment, resume, and so on, then let it end; returns how often it was killed."""
    for count in range(kills):
        life = command(config, run, "--resume")
        time.sleep(generator.uniform(0, life_time))
        life.send(signal.SIGKILL)
        if life.wait() == 0:
            return count
    end = command(config, run, "--resume")
    assert end.wait() == 0, end.text
    return kills


def test_three_kills_change_nothing(undisturbed: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    begin = time.monotonic()
    first = command(short(), tmp_path / "whole")
    assert first.wait() == 0, first.text
    assert trace_of(tmp_path / "whole") == undisturbed[0]
    life_time = 0.7 * (time.monotonic() - begin)
    survive(3, short(), tmp_path / "run", life_time, random.Random(0))
    assert trace_of(tmp_path / "run") == undisturbed[0]
    assert "test accuracy" in first.text


def test_a_kill_inside_a_save(undisturbed: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    """A process that dies while a checkpoint is half written loses only that checkpoint."""
    life = command(short(), tmp_path / "run", QUATSPHERE_FAILPOINT="half_written:9")
    assert life.wait() == 137, life.text
    train(short(), tmp_path / "run", RESUME)
    assert trace_of(tmp_path / "run") == undisturbed[0]
    assert not list(tmp_path.rglob("*.tmp.*"))


def test_a_sigterm_inside_a_save(
    undisturbed: tuple[dict[str, Any], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM while a checkpoint is half written: the write is completed, then the process ends with code 143."""
    passes = itertools.count(1)

    def terminate_self(name: str) -> None:
        if name == "half_written" and next(passes) == 9:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(atomic, "failpoint", terminate_self)
        life = command(short(), tmp_path / "run")
    assert life.wait() == 143, life.text
    assert not list(tmp_path.rglob("*.tmp.*"))
    train(short(), tmp_path / "run", RESUME)
    assert trace_of(tmp_path / "run") == undisturbed[0]


MODELS: dict[str, RunConfig] = {
    "attention": RunConfig(model=AttentionConfig(dim=16, heads=2, base_vertices=16, shells=2, neighbours=4)),
    "resnet20": RunConfig(model=ResNet20Config(width=4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_resume_of_the_other_models(name: str, tmp_path: Path) -> None:
    """Running statistics of batch norm are part of the state too."""
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
    """G3: thirteen epochs of four steps, from every one of the 51 steps before the last."""
    config = short(epochs=13, patience=5)
    train(config, tmp_path / "run", reporter=Copies(tmp_path / "run", tmp_path / "copies"))
    trace = trace_of(tmp_path / "run")
    for copy in sorted((tmp_path / "copies").iterdir()):
        train(config, copy, RESUME)
        assert trace_of(copy) == trace, copy.name


DEATHS = [(point, nth) for point in FAILPOINTS for nth in (1, 2, 5, 14) if point != "before_metrics" or nth <= 2]
"""Two epochs write two lines of metrics, and many files."""


@pytest.mark.slow
@pytest.mark.parametrize(("point", "nth"), DEATHS)
def test_death_at_every_point_of_a_save(
    point: str, nth: int, undisturbed: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    """G2 in small: the n-th time the writer passes this point it is gone."""
    run = tmp_path / "run"
    assert command(short(), run, QUATSPHERE_FAILPOINT=f"{point}:{nth}").wait() == 137
    train(short(), run, RESUME)
    assert trace_of(run) == undisturbed[0]


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [40, 200])
def test_many_kills_change_nothing(wanted: int, tmp_path: Path) -> None:
    """G1: run after run until so many kills were made, every result the same."""
    config = short(epochs=6)
    begin = time.monotonic()
    assert command(config, tmp_path / "whole").wait() == 0
    life_time = time.monotonic() - begin
    kills, number = 0, 0
    while kills < wanted:
        run = tmp_path / f"run-{number}"
        kills += survive(10, config, run, 0.5 * life_time, random.Random(number))
        assert trace_of(run) == trace_of(tmp_path / "whole")
        number += 1


@pytest.mark.slow
def test_kills_of_the_installed_command(undisturbed: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    """The same with a new interpreter per life, as a user has it; killed once it has saved something new."""
    run = tmp_path / "run"
    words = [sys.executable, "-m", "quatsphere", *as_words(short(), run, "--resume")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for step in (1, 4, 6):
        life = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
        while life.poll() is None and not has_step(run, step)():
            time.sleep(0.01)
        life.kill()
        assert life.wait() == -signal.SIGKILL
    subprocess.run(words, env=environment, check=True)
    assert trace_of(run) == undisturbed[0]


@pytest.mark.slow
def test_threads_are_fixed_by_deterministic(tmp_path: Path) -> None:
    """A run begun with two threads goes on with two, also where the environment says one."""
    import torch

    config = change(short(), "train", threads=None)

    def begin() -> None:
        torch.set_num_threads(2)
        train(config, tmp_path / "run", reporter=StopWhileValidating(1))

    assert Process(begin, tmp_path / "log").wait() == 99
    seen: list[int] = []

    class Look(Reporter):
        def start(self, facts: dict[str, Any]) -> None:
            seen.append(facts["threads"])

    try:
        train(config, tmp_path / "run", RESUME, Look())
    finally:
        torch.set_num_threads(1)
    assert seen == [2]
