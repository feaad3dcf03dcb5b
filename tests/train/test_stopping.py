"""Signals: a polite one saves and says how to go on, an impatient one stops at once, none loses a saved step."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import Process, as_words, command, has_step, tiny_config, trace_of

from quatsphere.cli import main
from quatsphere.config import RunConfig
from quatsphere.errors import QuatsphereError
from quatsphere.models import build_model
from quatsphere.storage.checkpoint import load_last_good
from quatsphere.storage.run_folder import RunFolder
from quatsphere.train import Progress, Reporter, ResumeOptions, train
from quatsphere.train.checkpointing import RunContext
from quatsphere.train.distributed import Team
from quatsphere.train.resources import Interrupted, StopSwitch, stop_switch
from quatsphere.train.run import fit_to_data, load_data
from quatsphere.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("unchecked")


def config(**more: Any) -> RunConfig:
    return tiny_config(**{"epochs": 2, "checkpoint_steps": 1} | more)


@pytest.fixture(scope="module")
def trace(unchecked: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    train(config(), folder / "run")
    return trace_of(folder / "run")


class Slow(Reporter):
    """Stands still at one moment of the run, and leaves a file there so that others know, and another afterwards."""

    def __init__(self, moment: str, sign: Path, seconds: float = 60.0) -> None:
        self.moment, self.sign, self.seconds = moment, sign, seconds

    def stand_still(self, moment: str) -> None:
        if moment == self.moment and not self.sign.exists():
            self.sign.touch()
            end = time.monotonic() + self.seconds
            while time.monotonic() < end:
                time.sleep(0.01)
            self.sign.with_suffix(".through").touch()

    def start(self, facts: dict[str, Any]) -> None:
        self.stand_still("start")

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        self.stand_still(f"step {progress.step}")

    def validating(self, done: int, total: int) -> None:
        self.stand_still("validating")


def exit_code(work: Callable[[], object]) -> int:
    """What the command makes of an error."""
    try:
        work()
    except QuatsphereError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def slow_run(run: Path, moment: str, seconds: float = 60.0) -> Process:
    """A run that stands still at a moment; returns when it does."""
    sign = run.with_name(f"{run.name}.sign")
    reporter = Slow(moment, sign, seconds)
    life = Process(lambda: exit_code(lambda: train(config(), run, reporter=reporter)), run.with_name("log"))
    life.wait_until(sign.exists)
    return life


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_says_how_to_go_on(number: int, code: int, trace: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "with a space"
    life = command(config(), run)
    life.wait_until(has_step(run, 2))
    life.send(number)
    assert life.wait() == code, life.text
    assert f"quatsphere train --run-dir '{run}' --resume" in life.text
    assert "Traceback" not in life.text
    stopped = load_last_good(run / "checkpoints", print)
    assert stopped is not None
    assert f"stopped at step {stopped.step}, saved" in life.text
    assert main(["train", f"--run-dir={run}", "--resume"]) == 0
    assert trace_of(run) == trace


@pytest.mark.parametrize("moment", ["step 3", "validating"])
def test_the_second_sigint_stops_at_once(moment: str, trace: dict[str, Any], tmp_path: Path) -> None:
    life = slow_run(tmp_path / "run", moment)
    life.send(signal.SIGINT)
    time.sleep(0.2)
    life.send(signal.SIGINT)
    assert life.wait() == 130, life.text
    assert not (tmp_path / "run.through").exists()
    train(config(), tmp_path / "run", ResumeOptions(resume=True))
    assert trace_of(tmp_path / "run") == trace


def test_before_the_first_step_a_signal_does_not_wait(tmp_path: Path) -> None:
    """Reading data or compiling may take minutes and holds no work worth saving."""
    life = slow_run(tmp_path / "run", "start")
    life.send(signal.SIGTERM)
    assert life.wait() == 143, life.text
    assert not (tmp_path / "run.through").exists()
    assert "nothing is lost" in life.text
    train(config(epochs=2), tmp_path / "run", ResumeOptions(resume=True))


def test_stopping_and_hanging_up_change_nothing(trace: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    life = command(config(), run)
    life.wait_until(has_step(run, 1))
    life.send(signal.SIGHUP)
    life.send(signal.SIGSTOP)
    time.sleep(0.3)
    life.send(signal.SIGCONT)
    assert life.wait() == 0, life.text
    assert trace_of(run) == trace


def test_a_closed_terminal_does_not_end_the_run(trace: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"

    def work() -> int:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 2)
        sys.stderr = open(2, "w", buffering=1)  # noqa: SIM115 - as long as the process
        return main(as_words(config(), run))

    life = Process(work, tmp_path / "log")
    assert life.wait() == 0
    assert trace_of(run) == trace


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    first = slow_run(tmp_path / "run", "step 2", seconds=3)
    second = command(config(), tmp_path / "run", "--resume")
    assert second.wait() == 4, second.text
    assert f"locked by pid {first.pid} on host" in second.text
    assert first.wait() == 0, first.text


def test_a_stop_while_testing_saves_nothing(tmp_path: Path) -> None:
    """The model then holds the best weights, not the last: a checkpoint of them would be a lie."""
    train(config(epochs=1), tmp_path / "run")
    before = trace_of(tmp_path / "run")
    settings = config(epochs=1)
    dataset = load_data(settings.data, print)
    settings = fit_to_data(settings, dataset)
    stop = StopSwitch()
    context = RunContext(RunFolder(tmp_path / "run"), Team(), torch.device("cpu"), Reporter(), stop)
    trainer = Trainer(settings, dataset, build_model(settings.model, seed=5), context)
    stop.signal_number = signal.SIGTERM
    with pytest.raises(Interrupted) as stopped:
        trainer.test()
    assert stopped.value.exit_code == 143
    assert trace_of(tmp_path / "run") == before


def test_handlers_are_put_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]

    def work() -> None:
        with stop_switch() as stop:
            assert signal.getsignal(signal.SIGTERM) is stop
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="nothing is lost"):
        work()
    assert [signal.getsignal(number) for number in numbers] == before


def test_no_library_on_the_way_can_swallow_a_signal() -> None:
    """A compiler that turns every exception into its own must not turn this one."""

    def compile_something() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        except Exception as error:
            raise RuntimeError from error

    def work() -> None:
        with stop_switch():
            compile_something()

    with pytest.raises(Interrupted):
        work()


@pytest.mark.slow
def test_many_signals_at_random_times(trace: dict[str, Any], tmp_path: Path) -> None:
    """G4: 50 signals, each ends its life with its code, and all lives together are one run."""
    import random

    generator = random.Random(0)
    settings, number, signals = config(), 0, 0
    while signals < 50:
        run = tmp_path / f"run-{number}"
        ended = False
        while not ended and signals < 50:
            chosen = generator.choice([signal.SIGTERM, signal.SIGINT])
            life = command(settings, run, "--resume")
            time.sleep(generator.uniform(0.1, 1.5))
            life.send(chosen)
            code = life.wait()
            assert code in (0, 128 + chosen, -chosen), life.text
            ended, signals = code == 0, signals + 1
        if ended:
            assert trace_of(run) == trace
        number += 1
