"""Training of one cell in a separate process: `python -m quatsphere.study.worker`.

The process reads a request as one line of JSON from stdin and answers with lines of JSON on the pipe that it finds as
stdout: progress, then `record` or `error`. Stdout itself becomes the log, because libraries print on it. Stdin stays
open as long as the parent runs; when it closes for any reason, the training saves and stops, so that no cell is
ever trained by two processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from filelock import lock_descriptor

from quatsphere.config import RunConfig
from quatsphere.errors import CheckpointError, NumericsError, QuatsphereError
from quatsphere.runtime import disable_malloc_trimming, load_plugins
from quatsphere.storage.run_folder import RunFolder
from quatsphere.study.plan import make_config
from quatsphere.study.record import diagnose_run, diverged_record, finished_record
from quatsphere.train import Progress, Reporter, ResumeOptions, train

LOCK_TIMEOUT = 60.0
"""Seconds to wait for an earlier worker of the same cell that is still saving."""
PROGRESS_SECONDS = 1.0
_replies: TextIO | None = None


@dataclass(frozen=True)
class CellRequest:
    """A cell to train: its identity, its settings as `group.field` -> value, and its run folder."""

    id: str
    dataset: str
    variant: str
    seed: int
    settings: dict[str, Any]
    run: str

    @property
    def identity(self) -> dict[str, Any]:
        """First fields of the record."""
        return {"cell": self.id, "dataset": self.dataset, "variant": self.variant, "seed": self.seed}


class WorkerReporter(Reporter):
    """Sends progress to the parent process about once a second, and notes to the log."""

    def __init__(self) -> None:
        self.last_sent = 0.0
        self.speed = 0.0

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        """Send the steps done, the total, and the smoothed speed."""
        self.speed = images_per_second if not self.speed else 0.95 * self.speed + 0.05 * images_per_second
        if time.monotonic() - self.last_sent >= PROGRESS_SECONDS:
            self.last_sent = time.monotonic()
            send({"done": progress.step, "total": steps * epochs, "speed": round(self.speed, 1)})

    def note(self, message: str) -> None:
        """Write to the log."""
        print(message, file=sys.stderr, flush=True)


def claim_stdout() -> TextIO:
    """Return the pipe to the parent process, and redirect stdout, including that of C libraries, to the log."""
    pipe = os.fdopen(os.dup(1), "w")
    pipe.write("\n")  # ends a line that a library began while it was imported
    sys.stdout = sys.stderr
    os.dup2(2, 1)
    return pipe


def send(message: dict[str, Any]) -> None:
    """Write one line to the parent process, if it still exists."""
    with contextlib.suppress(OSError):
        print(json.dumps(message), file=_replies, flush=True)


def train_cell(request: CellRequest, reporter: Reporter | None = None) -> dict[str, Any]:
    """Train or resume a cell, or find it finished, and return its record."""
    config = make_config(request.settings)
    run = RunFolder(request.run)
    Path(request.run).parent.mkdir(parents=True, exist_ok=True)
    with exclusive(Path(f"{request.run}.lock")):
        try:
            result = train(config, request.run, ResumeOptions(resume=True), reporter)
        except NumericsError as error:
            return diverged_record(request.identity, config, run, str(error))
        return {**finished_record(request.identity, config, run, result), "diagnostics": _diagnostics(run, config)}


def _diagnostics(run: RunFolder, config: RunConfig) -> dict[str, Any]:
    """Diagnostics of the trained model; a failure is logged and does not affect the rest of the record."""
    try:
        return diagnose_run(run, config)
    except Exception:
        traceback.print_exc()
        return {}


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Lock a cell; an earlier worker whose runner was killed may still be saving."""
    until = time.monotonic() + LOCK_TIMEOUT
    with open(path, "a") as file:
        while not lock_descriptor(file.fileno(), blocking=False):
            if time.monotonic() > until:
                raise CheckpointError(f"another worker holds {path}; end it first")
            time.sleep(0.1)
        yield


def stop_with_parent() -> None:
    """Send SIGTERM to this process when stdin closes."""

    def wait() -> None:
        while sys.stdin.readline():
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def serve_request() -> int:
    """Serve one request: progress, then `record` or `error`."""
    global _replies
    _replies = claim_stdout()
    disable_malloc_trimming()
    if hasattr(signal, "SIGUSR2"):  # SLURM warns all processes of a job before its time limit; the parent answers
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    request = CellRequest(**json.loads(sys.stdin.readline()))
    stop_with_parent()
    try:
        load_plugins()
        send({"record": train_cell(request, WorkerReporter())})
        return 0
    except QuatsphereError as error:
        send({"error": " ".join(str(error).split())})
        return error.exit_code
    except Exception as error:
        traceback.print_exc()
        send({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"})
        return 1


if __name__ == "__main__":
    sys.exit(serve_request())
