"""Runs that are killed, signalled, stopped by a full disk or given another time end as the uninterrupted run."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.disks import Filler, mounted_tmpfs
from helpers.failpoints import enable_failpoints
from helpers.teams import children_of, codes, newest_step, run_team, texts, torchrun
from helpers.tiny_runs import Copies, Process, as_words, command, run_with_kills, tiny_config, trace_of
from soak.promises import Trials, patience, promise, within

from quatsphere.cli import main
from quatsphere.config import RunConfig
from quatsphere.storage import atomic
from quatsphere.storage.checkpoint import load_last_good
from quatsphere.train import Progress, Reporter, ResumeOptions, checkpointing, train, trainer

RESUME = ResumeOptions(resume=True)
MODERATE = 15
"""Epochs of a run of 60 steps."""
enable_failpoints()


def short(**more: Any) -> RunConfig:
    """Two epochs of four steps; every step is saved."""
    return tiny_config(**{"epochs": 2, "checkpoint_steps": 1} | more)


def uninterrupted(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Trace of a run in this process, which also warms it up: its forks need neither imports nor data."""
    torch.set_num_threads(1)
    train(config, folder / "whole")
    return trace_of(folder / "whole")


def seconds_of(config: RunConfig, folder: Path) -> float:
    """Seconds that a forked run takes."""
    start = time.monotonic()
    assert command(config, folder / "timed").wait() == 0
    return time.monotonic() - start


@promise("A run killed with SIGKILL at a random time resumes and ends bit for bit as the uninterrupted run", 200, 200)
def random_kills(trials: Trials) -> None:
    config = short(epochs=MODERATE)
    whole, seconds = uninterrupted(config, trials.folder), seconds_of(config, trials.folder)
    for number in itertools.count():
        if trials.tried >= trials.count:
            return
        run, kills = trials.folder / f"run-{number}", min(10, trials.count - trials.tried)
        with trials.several(f"run {number}") as batch:
            batch.number = kills
            made = run_with_kills(kills, config, run, seconds / 3, random.Random(number))
            batch.number = made
            assert trace_of(run) == whole
            assert not list(run.rglob("*.tmp.*"))
        shutil.rmtree(run, ignore_errors=True)


@promise("A process that dies at a named point of a save (7 points, 40 times each) loses only that save", 280, 200)
def kills_inside_a_save(trials: Trials) -> None:
    whole = uninterrupted(short(), trials.folder)
    for number in range(trials.count):
        point = atomic.FAILPOINTS[number % len(atomic.FAILPOINTS)]
        passes = 2 if point == "before_metrics" else 14
        where = f"{point}:{1 + number // len(atomic.FAILPOINTS) % passes}"
        run = trials.folder / f"run-{number}"
        with trials.one(where):
            assert command(short(), run, QUATSPHERE_FAILPOINT=where).wait() == 137
            train(short(), run, RESUME)
            assert trace_of(run) == whole
            assert not list(run.rglob("*.tmp.*"))
        shutil.rmtree(run, ignore_errors=True)


@promise("A run of 52 steps resumes from each of its steps: losses, order, rates, best step equal as text", 50)
def resume_from_every_step(trials: Trials) -> None:
    epochs = 13 if trials.count > 7 else 2
    config, run = short(epochs=epochs, patience=5), trials.folder / "run"
    torch.set_num_threads(1)
    train(config, run, reporter=Copies(run, trials.folder / "copies"))
    whole = trace_of(run)
    for step in range(1, min(trials.count, 4 * epochs - 1) + 1):
        copy = trials.folder / "copies" / f"step-{step}"
        with trials.one(step):
            train(config, copy, RESUME)
            assert trace_of(copy) == whole
        shutil.rmtree(copy, ignore_errors=True)


SIGNALS = ((signal.SIGTERM,), (signal.SIGINT,), (signal.SIGINT, signal.SIGINT))


@promise(
    "SIGTERM or SIGINT at a random time saves and ends within 5 s, a second SIGINT within 1 s; resume is exact", 50
)
def random_signals(trials: Trials) -> None:
    config, dice = short(epochs=MODERATE), random.Random(0)
    whole, seconds = uninterrupted(config, trials.folder), seconds_of(config, trials.folder)
    for number in itertools.count():
        if trials.tried >= trials.count:
            return
        run, sent = trials.folder / f"run-{number}", 0
        while sent < 10 and trials.tried < trials.count:
            process = command(config, run, "--resume")
            time.sleep(dice.uniform(0, seconds / 3))
            chosen = dice.choice(SIGNALS)
            before = newest_step(run)
            for one in chosen[:-1]:
                process.send(one)
                time.sleep(0.05)
            start = time.monotonic()
            process.send(chosen[-1])
            code, taken = process.wait(), time.monotonic() - start
            if code == 0:
                break
            sent += 1
            with trials.one(f"run {number}, {chosen}"):
                assert code in (128 + chosen[-1], -chosen[-1]), process.text  # a signal before Python has a handler
                assert taken < (5 if len(chosen) == 1 else 1) * patience(), f"{taken:.1f} s"
                assert "Traceback" not in process.text
                assert before == 0 or load_last_good(run / "checkpoints", pytest.fail).step >= before
        end = command(config, run, "--resume")
        if end.wait() != 0 or trace_of(run) != whole:  # then none of the run's stops survived
            trials.survived -= min(sent, trials.survived)
            trials.failures.append(f"end of run {number}: {end.text[-500:]}")
        shutil.rmtree(run, ignore_errors=True)


def kill_self(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def stop_before_fit(patched: pytest.MonkeyPatch) -> None:
    fit = trainer.Trainer.fit
    patched.setattr(trainer.Trainer, "fit", lambda self: (kill_self(), fit(self)))


def stop_in_evaluation(name: str, moment: str, patched: pytest.MonkeyPatch) -> None:
    """Signal before, during or after a function of the trainer's module: `predict_logits` validates."""
    real = getattr(trainer, name)

    def evaluate(*words: Any, progress: Callable[..., None], **options: Any) -> Any:
        def on_batch(*numbers: int) -> None:
            if moment == "during":
                kill_self()
            progress(*numbers)

        if moment == "before":
            kill_self()
        made = real(*words, progress=on_batch, **options)
        if moment == "after":
            kill_self()
        return made

    patched.setattr(trainer, name, evaluate)


def stop_in_save(nth: int, patched: pytest.MonkeyPatch) -> None:
    passes = itertools.count(1)
    patched.setattr(
        atomic, "failpoint", lambda name: kill_self() if name == "half_written" and next(passes) == nth else None
    )


MOMENTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the first step": stop_before_fit,
    "before validation": lambda p: stop_in_evaluation("predict_logits", "before", p),
    "in validation": lambda p: stop_in_evaluation("predict_logits", "during", p),
    "before the test": lambda p: stop_in_evaluation("evaluate", "before", p),
    "in the test": lambda p: stop_in_evaluation("evaluate", "during", p),
    "after the test": lambda p: stop_in_evaluation("evaluate", "after", p),
    "in the first save": lambda p: stop_in_save(4, p),
    "in a later save": lambda p: stop_in_save(9, p),
}


@promise("SIGTERM before the first step, in a save, in validation or in the test evaluation loses nothing", 40, 120)
def signals_at_chosen_moments(trials: Trials) -> None:
    whole = uninterrupted(short(), trials.folder)
    for number, (moment, patch) in zip(range(trials.count), itertools.cycle(MOMENTS.items()), strict=False):
        run = trials.folder / f"run-{number}"

        def work(run: Path = run, patch: Callable[..., None] = patch) -> int:
            with pytest.MonkeyPatch.context() as patched:
                patch(patched)
                return main(as_words(short(), run))

        with trials.one(moment), within(5 + 5):  # the start of the run, and the stop
            process = Process(work, trials.folder / f"log-{number}")
            code = process.wait()
            assert code == 143 or (code == 0 and moment == "after the test"), (code, process.text)
            assert "Traceback" not in process.text
            train(short(), run, RESUME)
            assert trace_of(run) == whole


def cpu_seconds(pid: int) -> float:
    """Processor time that a running process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_cpu_seconds() -> float:
    """Processor time of all child processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


@promise("SIGTERM while kernels are compiled ends the process within 5 s with code 143", 5, 32)
def signals_while_compiling(trials: Trials) -> None:
    config, dice = short(model={"backend": "auto"}), random.Random(0)
    for number in range(trials.count):
        cache, before = trials.folder / f"cache-{number}", children_cpu_seconds()
        with trials.one(number):
            words = [sys.executable, "-m", "quatsphere", *as_words(config, trials.folder / f"run-{number}")]
            process = subprocess.Popen(
                words, env={**os.environ, "NUMBA_CACHE_DIR": str(cache)}, stderr=subprocess.PIPE, text=True
            )
            while not cache.exists() and process.poll() is None:
                time.sleep(0.05)
            time.sleep(dice.uniform(0, 5))
            used, start = cpu_seconds(process.pid), time.monotonic()
            process.send_signal(signal.SIGTERM)
            _, messages = process.communicate()
            wall, work = time.monotonic() - start, children_cpu_seconds() - before - used
            assert min(wall, work) <= 5, f"took {wall:.1f} s, {work:.1f} s of them on a processor"
            assert process.returncode == 143, messages
            assert "Traceback" not in messages


@promise("A disk that is full at a level of free space keeps the previous checkpoint; after freeing, exact", 30)
def full_disks(trials: Trials) -> None:
    whole = uninterrupted(short(), trials.folder)
    checkpointing.RETRY_SECONDS = 0.05
    paused = 0
    with mounted_tmpfs(trials.folder / "disk", "4m") as disk:
        for level in range(trials.count):
            run, filler = disk / f"run-{level}", Filler(disk, 5, level * 16_384)
            with trials.one(f"{level * 16} kB"):
                train(short(), run, reporter=filler)
                found, said = trace_of(run), " ".join(filler.messages)
                if "no space for metrics" in said:
                    assert len(found["metrics"]) == 1, said
                    found["metrics"] = whole["metrics"]
                assert found == whole, said
                if "training paused" in said:
                    assert "checkpoint needs " in said, said
                    assert " free on " in said, said
                    paused += 1
            shutil.rmtree(run)
            (disk / "filler").unlink(missing_ok=True)
    if trials.full:
        assert paused > 10, f"only {paused} levels filled the disk"


@promise("A number that is not finite, in input, weight or gradient, stops before the update with code 5", 21, 19)
def bad_numbers(trials: Trials) -> None:
    trials.tests("tests/train/test_bad_numbers.py", "-k", "run_stops_before_the_update")


class JumpingClock(Reporter):
    """Sets the wall clock years or seconds back or forward after every step."""

    def __init__(self, seed: int) -> None:
        self.dice, self.clock = random.Random(seed), ctypes.CDLL(None).soak_set_clock

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        jump = self.dice.choice([-1, 1]) * 10 ** self.dice.uniform(0, 9)
        self.clock(ctypes.c_longlong(round(jump)))

    def validating(self, done: int, total: int) -> None:
        self.clock(ctypes.c_longlong(-(10**9)))


@promise("A wall clock that jumps back and forth by seconds to decades during a run changes nothing", 20, 21)
def clock_jumps(trials: Trials) -> None:
    """The clock is replaced inside the process by a preloaded library; the machine's own clock is not touched."""
    library = trials.folder / "clock.so"
    if "soak" not in os.environ.get("LD_PRELOAD", ""):
        source = Path(__file__).with_name("clock.c")
        if shutil.which("cc") is None:
            pytest.skip("no C compiler")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "LD_PRELOAD": str(library)})
    whole = uninterrupted(short(), trials.folder)
    for number in range(trials.count):
        run = trials.folder / f"run-{number}"

        def work(run: Path = run, number: int = number) -> None:
            before = time.time()
            train(short(), run, reporter=JumpingClock(number))
            assert abs(time.time() - before) > 10**8, "the clock did not jump"

        with trials.one(number):
            process = Process(work, trials.folder / f"log-{number}")
            assert process.wait() == 0, process.text
            assert trace_of(run) == whole
            records = [line["seconds"] for line in _lines(run)]
            assert records == sorted(records)
            assert 0 < records[-1] < 600


def _lines(run: Path) -> list[dict[str, Any]]:
    import json

    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@promise("One of two processes under torchrun is killed: both restart within 15 s, and the result is exact", 20, 250)
def rank_kills(trials: Trials) -> None:
    config = tiny_config(epochs=trials.count // 2 + 2, checkpoint_steps=1)
    uninterrupted(short(), trials.folder)
    whole = run_team(config, trials.folder / "two")
    assert codes(whole) == [0, 0], texts(whole)
    run, killed_at, taken = trials.folder / "run", 0, []
    launcher = torchrun(config, run, f"--max-restarts={trials.count + 5}")
    killed_time = time.monotonic()
    try:
        for kill in range(trials.count + 1):
            while newest_step(run) <= killed_at:
                assert launcher.poll() is None
                time.sleep(0.02)
            taken.append(time.monotonic() - killed_time)
            if kill < trials.count:
                workers = children_of(launcher.pid)
                os.kill(workers[kill % len(workers)], signal.SIGKILL)
                killed_time = time.monotonic()
                time.sleep(0.5)
                killed_at = newest_step(run)
        _, messages = launcher.communicate(timeout=400)
        same = launcher.returncode == 0 and trace_of(run) == trace_of(trials.folder / "two")
    finally:
        launcher.kill()
    for kill, seconds in enumerate(taken[1:]):
        with trials.one(f"kill {kill}"):
            assert same, messages
            assert seconds < 15 * patience(), f"{seconds:.1f} s"


@promise("Two processes compute the gradients and steps of one (float32 to 1e-6, 20 steps in float64 to 1e-9)", 2, 120)
def two_processes_compute_the_same(trials: Trials) -> None:
    trials.tests("tests/train/test_two_processes.py", "-k", "compute_the_same_as_one")


@promise("Five runs with the same seed and thread count have one hash", 5, 41)
def repeated_runs(trials: Trials) -> None:
    config = short(model={"backend": "auto"}, epochs=3)
    whole = uninterrupted(config, trials.folder)
    for number in range(trials.count):
        with trials.one(number):
            assert command(config, trials.folder / f"run-{number}").wait() == 0
            assert trace_of(trials.folder / f"run-{number}") == whole


@promise(
    "2,000 steps of the default kernel: memory grows less than 1 MB per 1,000 steps, files and threads stay", 2000, 60
)
def long_run(trials: Trials) -> None:
    """Each step is an attempt; all survive or none."""
    import threading

    seen: list[tuple[int, int, int, int]] = []

    class Monitor(Reporter):
        def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
            if progress.step % 20 == 0:
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                facts = (len(os.listdir("/proc/self/fd")), threading.active_count())
                seen.append((progress.step, pages * os.sysconf("SC_PAGE_SIZE"), *facts))

    config = tiny_config(
        data={"max_train_images": 160}, model={"backend": "auto"}, epochs=max(4, trials.count // 10),
        checkpoint_steps=50,
    )  # fmt: skip
    train(config, trials.folder / "run", reporter=Monitor())
    settled = seen[len(seen) // 4 :]
    with trials.several() as batch:
        batch.number = seen[-1][0]
        steps, memory, files, threads = zip(*settled, strict=True)
        middle = sum(steps) / len(steps)
        slope = sum((s - middle) * m for s, m in zip(steps, memory, strict=True))
        slope /= sum((s - middle) ** 2 for s in steps)
        assert len(set(files)) == len(set(threads)) == 1
        assert not trials.full or 1000 * slope < 1e6, f"{slope / 1e3:.2f} MB per 1,000 steps"
