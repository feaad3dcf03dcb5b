"""One cell in a process of its own: `python -m quatsphere.study.worker`, asked and answering in lines of JSON.

The first line on stdin is the request. After it stdin stays open as long as whoever asked lives: its end, by whatever
death, makes the training save and stop, so no cell is ever trained by two.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quatsphere.config import RunConfig
from quatsphere.errors import CheckpointError, NumericsError, QuatsphereError
from quatsphere.runtime import disable_malloc_trimming
from quatsphere.storage.run_folder import RunFolder
from quatsphere.study.measure import measure_run
from quatsphere.study.plan import make_config
from quatsphere.study.record import diverged_record, finished_record
from quatsphere.train import Progress, Reporter, ResumeOptions, train

PATIENCE = 60.0
"""Seconds to wait for a predecessor that is still saving."""
NEWS_SECONDS = 1.0


@dataclass(frozen=True)
class Request:
    """A cell to train: its identity, its settings as `group.field` -> value, and its run folder."""

    id: str
    dataset: str
    variant: str
    seed: int
    settings: dict[str, Any]
    run: str

    @property
    def identity(self) -> dict[str, Any]:
        """What a record starts with."""
        return {"cell": self.id, "dataset": self.dataset, "variant": self.variant, "seed": self.seed}

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self)) + "\n"


class News(Reporter):
    """Tells the asking process about steps, about once a second, and everything else to the log."""

    def __init__(self) -> None:
        self.told = 0.0
        self.speed = 0.0

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        """Steps done and to do, and the speed as it has been lately."""
        self.speed = images_per_second if not self.speed else 0.95 * self.speed + 0.05 * images_per_second
        if time.monotonic() - self.told >= NEWS_SECONDS:
            self.told = time.monotonic()
            say({"done": progress.step, "total": steps * epochs, "speed": round(self.speed, 1)})

    def note(self, message: str) -> None:
        """To the log."""
        print(message, file=sys.stderr, flush=True)


def say(message: dict[str, Any]) -> None:
    """One line to the asking process, if it still listens."""
    with contextlib.suppress(OSError):
        print(json.dumps(message), file=sys.__stdout__, flush=True)


def make_cell(request: Request, reporter: Reporter | None = None) -> dict[str, Any]:
    """Train the cell, or go on with it, or find it finished; its record."""
    config = make_config(request.settings)
    run = RunFolder(request.run)
    Path(request.run).parent.mkdir(parents=True, exist_ok=True)
    with alone(Path(f"{request.run}.lock")):
        try:
            result = train(config, request.run, ResumeOptions(resume=True), reporter)
        except NumericsError as error:
            return diverged_record(request.identity, config, run, str(error))
        return {**finished_record(request.identity, config, run, result), "diagnostics": look(run, config)}


def look(run: RunFolder, config: RunConfig) -> dict[str, Any]:
    """The inside of the trained model; a failure here is logged and costs these numbers, never the cell."""
    try:
        return measure_run(run, config)
    except Exception:
        traceback.print_exc()
        return {}


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait until no other worker has this cell: a predecessor whose runner was killed may still be saving."""
    until = time.monotonic() + PATIENCE
    with open(path, "a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise CheckpointError(f"another worker does not let go of {path}; end it first") from None
                time.sleep(0.1)
        yield


def stop_with_parent() -> None:
    """Stop politely when stdin ends: the asking process is gone or wants us gone."""

    def wait() -> None:
        while sys.stdin.readline():
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def main() -> int:
    """Answer one request: news, then `record` or `error`."""
    disable_malloc_trimming()
    request = Request(**json.loads(sys.stdin.readline()))
    sys.stdout = sys.stderr  # what a library prints belongs in the log
    stop_with_parent()
    try:
        say({"record": make_cell(request, News())})
        return 0
    except QuatsphereError as error:
        say({"error": " ".join(str(error).split())})
        return error.exit_code
    except Exception as error:
        traceback.print_exc()
        say({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"})
        return 1


if __name__ == "__main__":
    sys.exit(main())
