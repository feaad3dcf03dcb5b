"""Full disks and memory: the run waits or ends with a reason, and saved checkpoints stay."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.disks import Filler, mounted_tmpfs
from helpers.tiny_runs import Process, tiny_config, trace_of

from quatsphere.config import RunConfig
from quatsphere.errors import QuatsphereError, ResourceError
from quatsphere.storage import atomic
from quatsphere.storage.checkpoint import load_last_good
from quatsphere.train import Progress, Reporter, ResumeOptions, checkpointing, train

pytestmark = pytest.mark.usefixtures("unchecked")
SMALL_FILE = 20_000
"""Bytes: more than a line of metrics or a manifest, less than the tensors."""


def config(**more: Any) -> RunConfig:
    return tiny_config(**{"epochs": 2, "checkpoint_steps": 1} | more)


@pytest.fixture(scope="module")
def trace(unchecked: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    train(config(), folder / "run")
    return trace_of(folder / "run")


def limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


class FullDisk(Reporter):
    """Reporter that makes the disk full for tensors from a step on, and frees it after some notes."""

    def __init__(self, step: int, notes: int) -> None:
        self.at, self.notes = step, notes

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        if progress.step == self.at:
            limit_files(SMALL_FILE)

    def note(self, message: str) -> None:
        print(message)
        self.notes -= 1
        if self.notes == 0:
            limit_files(resource.RLIM_INFINITY)


def run_process(run: Path, reporter: Reporter, retry: float) -> Process:
    """Run with this reporter in a separate process, which has its own limits."""

    def work() -> int:
        checkpointing.RETRY_SECONDS = retry
        try:
            train(config(), run, reporter=reporter)
        except QuatsphereError as error:
            print(error)
            return error.exit_code
        return 0

    return Process(work, run.with_name("log"))


@pytest.mark.parametrize("step", [1, 4, 6])
def test_full_disk_pauses_the_run(step: int, trace: dict[str, Any], tmp_path: Path) -> None:
    process = run_process(tmp_path / "run", FullDisk(step, 3), retry=0.05)
    assert process.wait() == 0, process.text
    messages = process.text.splitlines()
    assert len(messages) == 3
    kept = "" if step == 1 else f"step {step - 1} kept; "
    assert " free on " in messages[0]
    assert messages[0].startswith("checkpoint needs ")
    assert messages[0].endswith(f"; {kept}free some space; training paused, retrying every 0.05 s (Ctrl-C to stop)")
    assert trace_of(tmp_path / "run") == trace


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_the_pause(number: int, code: int, trace: dict[str, Any], tmp_path: Path) -> None:
    process = run_process(tmp_path / "run", FullDisk(6, -1), retry=60)
    process.wait_until(lambda: process.log.exists() and "training paused" in process.text)
    process.send(number)
    assert process.wait() == code, process.text
    assert process.text.count("training paused") == 1
    last = load_last_good(tmp_path / "run" / "checkpoints", pytest.fail)
    assert last is not None
    assert last.step == 5
    train(config(), tmp_path / "run", ResumeOptions(resume=True))
    assert trace_of(tmp_path / "run") == trace


class Unwritable(Reporter):
    """After a step something makes the checkpoints unwritable."""

    def __init__(self, step: int, spoil: Callable[[], None]) -> None:
        self.at, self.spoil = step, spoil
        self.messages: list[str] = []

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        if progress.step == self.at:
            self.spoil()

    def note(self, message: str) -> None:
        self.messages.append(message)


def test_a_file_in_place_of_the_checkpoints_ends_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    reporter = Unwritable(1, folder.touch)
    with pytest.raises(ResourceError, match=r"^cannot write checkpoint \(File exists in .*; check the disk and its"):
        train(config(), tmp_path / "run", reporter=reporter)
    assert reporter.messages == []


@pytest.mark.parametrize(
    ("number", "pauses"), [(errno.EACCES, 0), (errno.EROFS, 0), (errno.ENOTDIR, 0), (errno.EPERM, 0), (errno.EIO, 3)]
)
def test_errors_that_do_not_heal_end_the_run(
    number: int, pauses: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(checkpointing, "RETRY_SECONDS", 0.01)
    reporter = Unwritable(2, lambda: monkeypatch.setattr(atomic, "write_durable", refuse))
    with pytest.raises(ResourceError, match=re.escape(os.strerror(number))) as stopped:
        train(config(), tmp_path / "run", reporter=reporter)
    assert stopped.value.exit_code == 6
    assert len([message for message in reporter.messages if "training paused" in message]) == pauses
    monkeypatch.undo()
    last = load_last_good(tmp_path / "run" / "checkpoints", pytest.fail)
    assert last is not None
    assert last.step == 1


class OutOfMemory(Reporter):
    """Limits the memory of the process at the start of the run to little more than it has."""

    def start(self, facts: dict[str, Any]) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        more = pages * resource.getpagesize() + (64 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (more, more))


def test_out_of_memory_states_the_memory_of_a_step(tmp_path: Path) -> None:
    big = config(model={"dim": 128, "base_vertices": 256, "neighbours": 16}, batch_size=64, checkpoint_steps=None)

    def work() -> int:
        try:
            train(big, tmp_path / "run", reporter=OutOfMemory())
        except ResourceError as error:
            print(error)
            return error.exit_code
        return 0

    process = Process(work, tmp_path / "log")
    assert process.wait() == 6, process.text
    assert "out of memory at batch size 64" in process.text
    assert "the last checkpoint is intact" in process.text


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """File system of 4 MiB."""
    with mounted_tmpfs(tmp_path / "disk", "4m") as disk:
        yield disk


@pytest.mark.slow
def test_thirty_levels_of_a_full_disk(
    trace: dict[str, Any], small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of thirty levels of free space the previous checkpoint loads and the result is the same."""
    monkeypatch.setattr(checkpointing, "RETRY_SECONDS", 0.05)
    paused = 0
    for level in range(30):
        filler = Filler(small_disk, 5, level * 16_384)
        run = small_disk / f"run-{level}"
        train(config(), run, reporter=filler)
        found = trace_of(run)
        if any("no space for metrics" in message for message in filler.messages):
            assert len(found["metrics"]) == 1
            found["metrics"] = trace["metrics"]
        assert found == trace
        paused += any("training paused" in message for message in filler.messages)
        subprocess.run(["rm", "-rf", run], check=True)
        (small_disk / "filler").unlink(missing_ok=True)
    assert paused > 10


@pytest.mark.slow
def test_disk_without_space_for_checkpoints_is_refused_at_the_start(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(3_900_000))
    with pytest.raises(ResourceError, match="no space for 4 checkpoints"):
        train(config(), small_disk / "run")
