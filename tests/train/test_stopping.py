"""Signals: the first saves the run and prints how to resume it, a second SIGINT stops at once."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny_runs import Process, as_words, command, has_step, tiny_config, trace_of

from quatsphere import runtime
from quatsphere.cli import main
from quatsphere.config import RunConfig
from quatsphere.errors import QuatsphereError
from quatsphere.models import build_model
from quatsphere.storage.checkpoint import load_last_good
from quatsphere.storage.run_folder import RunFolder
from quatsphere.train import Progress, Reporter, ResumeOptions, resources, train, trainer
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
    folder = tmp_path_factory.mktemp("uninterrupted")
    train(config(), folder / "run")
    return trace_of(folder / "run")


class PausingReporter(Reporter):
    """Pauses at one moment of the run; creates the file `sign` before the pause and another after it."""

    def __init__(self, moment: str, sign: Path, seconds: float = 60.0) -> None:
        self.moment, self.sign, self.seconds = moment, sign, seconds

    def pause(self, moment: str) -> None:
        if moment == self.moment and not self.sign.exists():
            self.sign.touch()
            end = time.monotonic() + self.seconds
            while time.monotonic() < end:
                time.sleep(0.01)
            self.sign.with_suffix(".through").touch()

    def start(self, facts: dict[str, Any]) -> None:
        self.pause("start")

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        self.pause(f"step {progress.step}")

    def validating(self, done: int, total: int) -> None:
        self.pause("validating")


def exit_code(work: Callable[[], object]) -> int:
    """Exit code of the command after `work`."""
    try:
        work()
    except QuatsphereError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def paused_run(run: Path, moment: str, seconds: float = 60.0) -> Process:
    """Start a run that pauses at a moment, and return when it does."""
    sign = run.with_name(f"{run.name}.sign")
    reporter = PausingReporter(moment, sign, seconds)
    process = Process(lambda: exit_code(lambda: train(config(), run, reporter=reporter)), run.with_name("log"))
    process.wait_until(sign.exists)
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_saves_and_prints_how_to_resume(number: int, code: int, trace: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "with a space"
    process = command(config(), run)
    process.wait_until(has_step(run, 2))
    process.send(number)
    assert process.wait() == code, process.text
    assert f"quatsphere train --run-dir '{run}' --resume" in process.text
    assert "Traceback" not in process.text
    stopped = load_last_good(run / "checkpoints", print)
    assert stopped is not None
    assert f"stopped at step {stopped.step}, saved" in process.text
    assert main(["train", f"--run-dir={run}", "--resume"]) == 0
    assert trace_of(run) == trace


@pytest.mark.parametrize("moment", ["step 3", "validating"])
def test_second_sigint_stops_at_once(moment: str, trace: dict[str, Any], tmp_path: Path) -> None:
    process = paused_run(tmp_path / "run", moment)
    process.send(signal.SIGINT)
    time.sleep(0.2)
    process.send(signal.SIGINT)
    assert process.wait() == 130, process.text
    assert not (tmp_path / "run.through").exists()
    train(config(), tmp_path / "run", ResumeOptions(resume=True))
    assert trace_of(tmp_path / "run") == trace


def test_signal_before_the_first_step_stops_at_once(tmp_path: Path) -> None:
    """Loading data or compiling may take minutes, and there is no work to save."""
    process = paused_run(tmp_path / "run", "start")
    process.send(signal.SIGTERM)
    assert process.wait() == 143, process.text
    assert not (tmp_path / "run.through").exists()
    assert "nothing is lost" in process.text
    train(config(epochs=2), tmp_path / "run", ResumeOptions(resume=True))


def test_sigstop_and_sighup_change_nothing(trace: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = command(config(), run)
    process.wait_until(has_step(run, 1))
    process.send(signal.SIGHUP)
    process.send(signal.SIGSTOP)
    time.sleep(0.3)
    process.send(signal.SIGCONT)
    assert process.wait() == 0, process.text
    assert trace_of(run) == trace


def test_closed_terminal_does_not_end_the_run(trace: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"

    def work() -> int:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 2)
        sys.stderr = open(2, "w", buffering=1)  # noqa: SIM115 - as long as the process
        return main(as_words(config(), run))

    process = Process(work, tmp_path / "log")
    assert process.wait() == 0
    assert trace_of(run) == trace


@pytest.mark.parametrize("stream", ["closed", "/dev/full"])
def test_missing_stderr_does_not_end_the_run(stream: str, trace: dict[str, Any], tmp_path: Path) -> None:
    """Stderr is closed under `2>&-` and in daemons; its number must not go to a file of the run."""
    run, found = tmp_path / "run", tmp_path / "found"

    def work() -> int:
        os.close(2)
        sys.stderr = None if stream == "closed" else open(stream, "w")  # type: ignore[assignment]  # noqa: SIM115
        code = main(as_words(config(), run, "--data-root=null"))  # an old spelling, which is noted
        found.write_text(os.readlink("/proc/self/fd/2"))
        return code

    process = Process(work, tmp_path / "log")
    assert process.wait() == 0
    assert found.read_text() == "/dev/null"
    assert trace_of(run) == trace


def test_run_folder_whose_name_is_not_utf8(trace: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / os.fsdecode(b"r_\xff\xfe")

    def work() -> int:
        sys.argv = ["quatsphere", *as_words(config(), run)]  # environment.json holds the command
        return main(sys.argv[1:])

    process = Process(work, tmp_path / "log")
    assert process.wait() == 0, process.text
    assert trace_of(run) == trace
    assert command(config(), run, "--resume").wait() == 0


def test_second_process_in_a_run_folder_is_refused(tmp_path: Path) -> None:
    first = paused_run(tmp_path / "run", "step 2", seconds=3)
    second = command(config(), tmp_path / "run", "--resume")
    assert second.wait() == 4, second.text
    assert f"locked by pid {first.pid} on host" in second.text
    assert first.wait() == 0, first.text


def test_signal_while_testing_saves_nothing(tmp_path: Path) -> None:
    """While testing the model has the best weights, not the last, so they must not be saved."""
    train(config(epochs=1), tmp_path / "run")
    before = trace_of(tmp_path / "run")
    settings = config(epochs=1)
    dataset = load_data(settings.data, print)
    settings = fit_to_data(settings, dataset)
    stop = StopSwitch()
    context = RunContext(RunFolder(tmp_path / "run"), Team(), torch.device("cpu"), Reporter(), stop)
    stopped_trainer = Trainer(settings, dataset, build_model(settings.model, seed=5), context)
    stop.signal_number = signal.SIGTERM
    with pytest.raises(Interrupted) as stopped:
        stopped_trainer.test()
    assert stopped.value.exit_code == 143
    assert trace_of(tmp_path / "run") == before


def test_signal_handlers_are_restored() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]

    def work() -> None:
        with stop_switch() as stop:
            assert signal.getsignal(signal.SIGTERM) is stop
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="nothing is lost"):
        work()
    assert [signal.getsignal(number) for number in numbers] == before


def test_libraries_cannot_swallow_a_signal() -> None:
    """A compiler that converts every exception must not convert the stop."""

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


class Dropped:
    """Object whose finaliser gets a signal: Python drops what is raised there."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def in_a_finaliser() -> None:
    Dropped()
    time.sleep(60)


def in_a_long_call() -> None:
    """Stand in for the compiler: one call in C, without the interpreter's lock, during which no handler runs."""
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000_000)


def in_a_long_sleep() -> None:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    time.sleep(60)


def in_a_callback() -> None:
    """Stand in for the compiler, which fails because its callback did not return what it should."""
    ctypes.CFUNCTYPE(None)(lambda: os.kill(os.getpid(), signal.SIGTERM))()
    raise RuntimeError("no compiled object")


@pytest.mark.parametrize("compile_kernels", [in_a_finaliser, in_a_long_call, in_a_callback])
def test_compiler_cannot_keep_a_command_alive(compile_kernels: Callable[[], None], tmp_path: Path) -> None:
    """Compilations before the first step have nothing to save; the command ends without the main thread."""

    def work() -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "fit", lambda self: compile_kernels())
            patch.setattr(resources, "FORCE_SECONDS", 0.5)
            patch.setattr(sys, "argv", ["quatsphere", *as_words(config(), tmp_path / "run")])
            return main()

    start = time.monotonic()
    process = Process(work, tmp_path / "log")
    assert process.wait() == 143, process.text
    assert time.monotonic() - start < 30
    assert "nothing is lost" in process.text
    assert "Traceback" not in process.text
    assert command(config(), tmp_path / "run", "--resume").wait() == 0


@pytest.mark.parametrize("compile_kernels", [in_a_long_sleep, in_a_callback])
def test_compiler_in_validation_cannot_delay_a_stop(
    compile_kernels: Callable[[], None], trace: dict[str, Any], tmp_path: Path
) -> None:
    """The first trace of a model compiles kernels; the steps of the epoch are saved first."""
    run = tmp_path / "run"

    def work() -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer, "measure_routing", lambda *_: compile_kernels())
            return main(as_words(config(), run))

    start = time.monotonic()
    process = Process(work, tmp_path / "log")
    assert process.wait() == 143, process.text
    assert time.monotonic() - start < 30
    assert "stopped at step 4, saved; continue with" in process.text
    assert "Traceback" not in process.text
    assert main(["train", f"--run-dir={run}", "--resume"]) == 0
    assert trace_of(run) == trace


def test_signal_of_a_forked_child_does_not_end_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child inherits the handlers and the pipe of the parent."""
    ended: list[QuatsphereError] = []
    monkeypatch.setattr(runtime, "end_process", ended.append)
    monkeypatch.setattr(resources, "FORCE_SECONDS", 0.1)
    with stop_switch():
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        time.sleep(0.5)
    assert not ended


@pytest.mark.slow
def test_many_signals_at_random_times(trace: dict[str, Any], tmp_path: Path) -> None:
    """Send 50 signals; each ends a process with its exit code, and the resumed runs have the same result."""
    import random

    generator = random.Random(0)
    settings, number, signals = config(), 0, 0
    while signals < 50:
        run = tmp_path / f"run-{number}"
        ended = False
        while not ended and signals < 50:
            chosen = generator.choice([signal.SIGTERM, signal.SIGINT])
            process = command(settings, run, "--resume")
            time.sleep(generator.uniform(0.1, 1.5))
            process.send(chosen)
            code = process.wait()
            assert code in (0, 128 + chosen, -chosen), process.text
            ended, signals = code == 0, signals + 1
        if ended:
            assert trace_of(run) == trace
        number += 1
