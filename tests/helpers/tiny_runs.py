"""Tiny training runs for tests: a small QSV on 64 digits, in this process or in a separate one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import shutil
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from quatsphere.cli import main
from quatsphere.config import DataConfig, OptimConfig, QSVConfig, RunConfig, TrainConfig
from quatsphere.config.resolve import config_to_dict
from quatsphere.train import Progress, Reporter, train

TIMES = ("seconds", "images_per_second", "epoch_start", "commit", "sha256")
"""Fields that may differ between equal runs; the commit may change while a test runs, the checksum covers the times."""


def tiny_config(
    data: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    optim: dict[str, Any] | None = None,
    **train: Any,
) -> RunConfig:
    """Configuration with three epochs of four steps of 16 images; every group can be changed."""
    return RunConfig(
        DataConfig(
            **{"name": "digits", "max_train_images": 64, "val_fraction": 0.05, "test_fraction": 0.05, "crop_pad": 1}
            | (data or {})
        ),
        QSVConfig(
            **{"dim": 32, "heads": 4, "base_vertices": 16, "shells": 2, "neighbours": 4, "rounds": 1}
            | {"backend": "factored"}
            | (model or {})
        ),
        OptimConfig(**{"repulsion_every": 2} | (optim or {})),
        TrainConfig(
            **{"epochs": 3, "batch_size": 16, "patience": None, "deterministic": True, "threads": 1} | train,
        ),
    )


def as_words(config: RunConfig, run: Path, *more: str) -> list[str]:
    """Arguments of the command for a configuration."""
    words = [
        f"--{group}.{name}={'null' if value is None else value}"
        for group, fields in config_to_dict(config).items()
        for name, value in fields.items()
    ]
    return ["train", *words, f"--run-dir={run}", *more]


def write_idx(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Write training images and labels as IDX files: a data set that a test can change."""
    folder.mkdir(exist_ok=True)
    for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
        head = struct.pack(">BBBB", 0, 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
        (folder / f"train-{kind}-ubyte").write_bytes(head + values.astype(np.uint8).tobytes())


class Copies(Reporter):
    """Copies the run folder after every step, under the step's number."""

    def __init__(self, run: Path, copies: Path) -> None:
        self.run, self.copies = run, copies

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        """Copy the folder, whose newest checkpoint is that of the previous step."""
        if (self.run / "checkpoints").is_dir():
            self.keep(f"step-{progress.step - 1}")

    def keep(self, name: str) -> None:
        """Copy the folder, without its lock."""
        shutil.copytree(self.run, self.copies / name, ignore=shutil.ignore_patterns(".lock"))


def trace_of(run: Path) -> dict[str, Any]:
    """Everything in a run that repeats bit for bit: hashes of all tensors, metrics and result without times."""
    last = run / "checkpoints" / (run / "checkpoints" / "last").read_text().strip()
    manifest = json.loads((last / "manifest.json").read_text())
    progress = without_times(manifest["meta"]["progress"])
    lines = (run / "metrics.jsonl").read_text().splitlines()
    result = run / "result.json"
    return {
        "weights": sha256(last / "weights.safetensors"),
        "state": sha256(last / "state.safetensors"),
        "best": (run / "checkpoints" / "best").read_text(),
        "progress": progress,
        "metrics": [without_times(json.loads(line)) for line in lines],
        "result": without_times(json.loads(result.read_text())) if result.is_file() else None,
    }


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    """A record without the fields that differ between equal runs."""
    return {key: value for key, value in record.items() if key not in TIMES}


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Process:
    """`work()` in a forked process, because importing torch again would take seconds; its output goes to `log`."""

    def __init__(self, work: Callable[[], int | None], log: Path, **environment: str) -> None:
        self.log = log
        self.pid = os.fork()
        if self.pid == 0:
            self._run(work, environment)

    def _run(self, work: Callable[[], int | None], environment: dict[str, str]) -> None:
        code = 99
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.update(environment)
            sys.stdout = sys.stderr = open(self.log, "w", buffering=1)  # noqa: SIM115 - as long as the process
            os.dup2(sys.stderr.fileno(), 2)
            code = work() or 0
        except BaseException:
            traceback.print_exc()
        finally:  # the child must never continue as a second pytest
            try:
                sys.stdout.flush()
            finally:
                os._exit(code)

    def wait(self) -> int:
        """Wait for the end and return the exit code, negative for a signal that killed it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def send(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def wait_until(self, condition: Callable[[], bool], seconds: float = 300.0) -> None:
        """Wait until the condition holds; an early end of the process is a failure."""
        end = time.monotonic() + seconds
        while not condition():
            done, status = os.waitpid(self.pid, os.WNOHANG)
            assert not done, f"ended early ({status}): {self.text}"
            assert time.monotonic() < end, f"not in time: {self.text}"
            time.sleep(0.01)

    @property
    def text(self) -> str:
        """Output so far."""
        return self.log.read_text()


def command(config: RunConfig, run: Path, *more: str, **environment: str) -> Process:
    """Start `quatsphere train` with this configuration in a separate process; the log is beside the run folder."""
    log = run.with_name(f"{run.name}-{time.monotonic_ns()}.log")
    return Process(lambda: main(as_words(config, run, *more)), log, **environment)


def run_with_kills(kills: int, config: RunConfig, run: Path, duration: float, generator: random.Random) -> int:
    """Start or resume a run and kill it at a random time, `kills` times, then let it finish; return the kills."""
    for count in range(kills):
        process = command(config, run, "--resume")
        time.sleep(generator.uniform(0, duration))
        process.send(signal.SIGKILL)
        if process.wait() == 0:
            return count
    end = command(config, run, "--resume")
    assert end.wait() == 0, end.text
    return kills


def has_step(run: Path, step: int) -> Callable[[], bool]:
    """Condition that a checkpoint of this step or a later one exists."""

    def check() -> bool:
        return any(int(path.name.split("-")[1]) >= step for path in run.glob("checkpoints/step-??????"))

    return check


def tiny_run(run: Path, config: RunConfig | None = None, **train_settings: Any) -> dict[str, Any]:
    """Train in this process."""
    return train(config or tiny_config(**train_settings), run)


def change(config: RunConfig, group: str, **fields: Any) -> RunConfig:
    """Return the configuration with other fields in one group."""
    return dataclasses.replace(config, **{group: dataclasses.replace(getattr(config, group), **fields)})
