"""Who trains the cells: here, in processes side by side. Each cell is a fresh process with its own few threads."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from quatsphere.study.worker import Request

WORKER = (sys.executable, "-m", "quatsphere.study.worker")
"""The command of a worker process."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: with a record, or with one line that says why not."""

    request: Request
    record: dict[str, Any] | None
    error: str = ""


class Watcher:
    """Who is told how the cells go; this one tells nobody. Called from several threads."""

    def started(self, cell: str) -> None:
        """A cell begins or goes on."""

    def news(self, cell: str, done: int, total: int, speed: float) -> None:
        """Steps done, steps in all, images per second."""

    def ended(self, outcome: Outcome) -> None:
        """A cell is through."""


class Launcher(Protocol):
    """Trains cells and yields their outcomes as they come."""

    jobs: int
    """Cells side by side."""

    def run(self, requests: Sequence[Request], watcher: Watcher) -> Iterator[Outcome]:
        """All of them, in this order as far as there is room."""


class Workers:
    """The processes that are at work; once stopped, those that come later are stopped at once."""

    def __init__(self) -> None:
        self.running: set[subprocess.Popen[str]] = set()
        self.stopping = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def have(self, worker: subprocess.Popen[str]) -> Iterator[None]:
        """Count it as long as it works."""
        with self._lock:
            self.running.add(worker)
            if self.stopping:
                _ask_to_stop(worker)
        try:
            yield
        finally:
            with self._lock:
                self.running.discard(worker)

    def stop(self) -> None:
        """Close the workers' stdin: they save and end."""
        with self._lock:
            self.stopping = True
            for worker in self.running:
                _ask_to_stop(worker)


def _ask_to_stop(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    with contextlib.suppress(OSError):
        worker.stdin.close()


class LocalLauncher:
    """`jobs` processes at a time on this machine, GPUs in turn where there are some."""

    def __init__(self, jobs: int, gpus: int = 0) -> None:
        self.jobs, self.gpus = jobs, gpus
        self.slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.workers = Workers()

    def run(self, requests: Sequence[Request], watcher: Watcher) -> Iterator[Outcome]:
        """Yield outcomes; leaving early makes the running cells save and stop."""
        for slot in range(self.jobs):
            self.slots.put(slot)
        with ThreadPoolExecutor(self.jobs) as pool:
            waiting = {pool.submit(self.work, request, watcher) for request in requests}
            try:
                while waiting:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            finally:
                for future in waiting:
                    future.cancel()
                self.workers.stop()

    def work(self, request: Request, watcher: Watcher) -> Outcome:
        """One cell on a free slot."""
        slot = self.slots.get()
        watcher.started(request.id)
        gpu = {"CUDA_VISIBLE_DEVICES": str(slot % self.gpus)} if self.gpus else {}
        try:
            return run_worker(request, lambda *news: watcher.news(request.id, *news), gpu, self.workers)
        finally:
            self.slots.put(slot)


def run_worker(
    request: Request,
    tell: Callable[[int, int, float], None],
    environment: dict[str, str] | None = None,
    workers: Workers | None = None,
) -> Outcome:
    """Train one cell in a fresh process and wait for its answer; what it prints beside is in `<run folder>.log`."""
    threads = request.settings.get("train.threads")
    limits = {} if threads is None else dict.fromkeys(THREADS, str(threads))
    log = Path(f"{request.run}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as errors:
        worker = subprocess.Popen(
            WORKER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **limits, **(environment or {})},
            start_new_session=True,
        )
    with (workers or Workers()).have(worker):
        return _listen(worker, request, tell, log)


def _listen(
    worker: subprocess.Popen[str], request: Request, tell: Callable[[int, int, float], None], log: Path
) -> Outcome:
    assert worker.stdin is not None
    assert worker.stdout is not None
    answer: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):  # closed: it is asked to stop
        worker.stdin.write(request.to_line())
        worker.stdin.flush()
    for line in worker.stdout:
        answer = json.loads(line)
        if "done" in answer:
            tell(answer["done"], answer["total"], answer["speed"])
    code = worker.wait()
    if "record" in answer:
        return Outcome(request, answer["record"])
    return Outcome(request, None, answer.get("error") or f"its process ended with code {code}; see {log}")
