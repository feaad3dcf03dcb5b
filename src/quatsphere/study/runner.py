"""Run a plan: train its unfinished cells, each in a separate process, on this machine or on a cluster.

Only the runner writes results.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from quatsphere.config.resolve import flat_settings
from quatsphere.data import Dataset
from quatsphere.errors import ConfigError
from quatsphere.study.plan import Cell
from quatsphere.study.results import Results
from quatsphere.study.worker import CellRequest
from quatsphere.train.provenance import differing_settings
from quatsphere.train.run import load_data, require_trainable

WORKER_COMMAND = (sys.executable, "-m", "quatsphere.study.worker")
"""Command of a worker process."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Outcome:
    """Result of a cell: a record, or the reason for its failure in one line."""

    request: CellRequest
    record: dict[str, Any] | None
    error: str = ""


class StudyObserver:
    """Progress callbacks, called from several threads; the base class ignores them."""

    def started(self, cell: str) -> None:
        """Called when a cell starts or resumes."""

    def progress(self, cell: str, done: int, total: int, speed: float) -> None:
        """Called with the steps done, the total number of steps, and images per second."""

    def ended(self, outcome: Outcome) -> None:
        """Called when a cell has finished or failed."""


class Launcher(Protocol):
    """Trains cells and yields their outcomes as they finish."""

    jobs: int
    """Number of cells trained at a time."""

    def run(self, requests: Sequence[CellRequest], observer: StudyObserver) -> Iterator[Outcome]:
        """Train all cells, in this order as far as resources allow."""


@dataclass(frozen=True)
class Summary:
    """Result of running a plan."""

    finished: int
    skipped: int
    failed: dict[str, str]


def run_plan(
    name: str,
    cells: Sequence[Cell],
    results: Results,
    launcher: Launcher,
    observer: StudyObserver | None = None,
    *,
    keep_weights: str = "best",
) -> Summary:
    """Train all unfinished cells; a failing cell is reported and does not stop the others.

    `keep_weights` selects the checkpoints of finished cells that are kept: `best`, `all` or `none`.
    """
    observer = observer or StudyObserver()
    with results.open():
        todo = unfinished(cells, results)
        results.add_to_plan(name, [cell.id for cell in cells])
        for cell in cells:
            if cell not in todo:
                results.drop_weights(cell.id, keep_weights)
        failed: dict[str, str] = {}
        for outcome in launcher.run([make_request(cell, results) for cell in todo], observer):
            if outcome.record is None:
                failed[outcome.request.id] = outcome.error
            else:
                results.write(outcome.request.id, outcome.record)
                results.drop_weights(outcome.request.id, keep_weights)
            observer.ended(outcome)
        return Summary(len(todo) - len(failed), len(cells) - len(todo), failed)


def unfinished(cells: Sequence[Cell], results: Results) -> list[Cell]:
    """Cells without a record; ConfigError if a record has other settings than its cell."""
    todo = []
    for cell in cells:
        record = results.read(cell.id)
        if record is None:
            todo.append(cell)
        elif differing := differing_settings(record["config"], cell.config):
            raise ConfigError(
                f"cell {cell.id} was finished with other settings ({'; '.join(differing[:6])}); "
                "use another --results, or delete its file to train it again"
            )
    return todo


def require_data(cells: Sequence[Cell]) -> None:
    """Load every data set of the cells, so that a missing file or package is reported once and before training."""
    loaded: dict[tuple[str, str | None], Dataset] = {}
    for config in (cell.config for cell in cells):
        source = config.data.name, config.data.root
        if source not in loaded:
            loaded[source] = load_data(config.data, note=lambda text: None)
        require_trainable(config.train, loaded[source])


def make_request(cell: Cell, results: Results) -> CellRequest:
    """Request to a worker process."""
    run = str(results.run(cell.id).path.absolute())
    return CellRequest(cell.id, cell.dataset, cell.variant, cell.seed, flat_settings(cell.config), run)


def make_launcher(
    name: str, jobs: int | None, threads: int | None, results: Results, slurm: Mapping[str, Any] | None = None
) -> Launcher:
    """`ray`, `slurm`, or `local` with a number of jobs (default: one per GPU, or as many as the cores can run)."""
    from quatsphere.study.clusters import RayLauncher, SlurmLauncher

    if slurm and name != "slurm":
        raise ConfigError(f"--slurm is for --launcher slurm: got --launcher {name}; leave it out")
    if name == "ray":
        return RayLauncher()
    if name == "slurm":
        return SlurmLauncher(results.runs / "slurm", jobs, slurm or {})
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = torch.cuda.device_count()
    return LocalLauncher(jobs or gpus or (1 if threads is None else max(1, cores // threads)), gpus)


class LocalLauncher:
    """Runs `jobs` processes at a time on this machine, assigned to its GPUs in turn."""

    def __init__(self, jobs: int, gpus: int = 0) -> None:
        self.jobs, self.gpus = jobs, gpus
        self.slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.workers = WorkerPool()

    def run(self, requests: Sequence[CellRequest], observer: StudyObserver) -> Iterator[Outcome]:
        """Yield outcomes; closing the generator makes the running cells save and stop."""
        for slot in range(self.jobs):
            self.slots.put(slot)
        with ThreadPoolExecutor(self.jobs) as pool:
            waiting = {pool.submit(self._run_cell, request, observer) for request in requests}
            try:
                while waiting:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            finally:
                for future in waiting:
                    future.cancel()
                self.workers.stop()

    def _run_cell(self, request: CellRequest, observer: StudyObserver) -> Outcome:
        """Train one cell on a free slot."""
        slot = self.slots.get()
        observer.started(request.id)
        gpu = {"CUDA_VISIBLE_DEVICES": str(slot % self.gpus)} if self.gpus else {}
        try:
            return run_in_process(request, lambda *values: observer.progress(request.id, *values), gpu, self.workers)
        finally:
            self.slots.put(slot)


class WorkerPool:
    """Running worker processes; after `stop`, processes that are added later are stopped at once."""

    def __init__(self) -> None:
        self.running: set[subprocess.Popen[str]] = set()
        self.stopping = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def registered(self, worker: subprocess.Popen[str]) -> Iterator[None]:
        """Register a process while it runs."""
        with self._lock:
            self.running.add(worker)
            if self.stopping:
                _close_stdin(worker)
        try:
            yield
        finally:
            with self._lock:
                self.running.discard(worker)

    def stop(self) -> None:
        """Close stdin of all workers, which makes them save and exit."""
        with self._lock:
            self.stopping = True
            for worker in self.running:
                _close_stdin(worker)


def _close_stdin(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    with contextlib.suppress(OSError):
        worker.stdin.close()


def run_in_process(
    request: CellRequest,
    progress: Callable[[int, int, float], None],
    environment: dict[str, str] | None = None,
    workers: WorkerPool | None = None,
) -> Outcome:
    """Train one cell in a new process and wait for it; its stderr is appended to `<run folder>.log`."""
    threads = request.settings.get("train.threads")
    limits = {} if threads is None else dict.fromkeys(THREADS, str(threads))
    log = Path(f"{request.run}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as errors:
        worker = subprocess.Popen(
            WORKER_COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="backslashreplace",
            env={**os.environ, **limits, **(environment or {})},
            start_new_session=True,
        )
    answer: dict[str, Any] = {}
    with (workers or WorkerPool()).registered(worker):
        assert worker.stdin is not None
        assert worker.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # stdin is closed if the pool is stopping
            worker.stdin.write(json.dumps(asdict(request)) + "\n")
            worker.stdin.flush()
        for line in worker.stdout:
            message = _parse_message(line)
            if message is None:
                with log.open("a") as file:
                    file.write(line)
            elif "done" in message:
                progress(message["done"], message["total"], message["speed"])
            else:
                answer = message
        code = worker.wait()
    if "record" in answer:
        return Outcome(request, answer["record"])
    return Outcome(request, None, answer.get("error") or f"its process ended with code {code}; see {log}")


def _parse_message(line: str) -> dict[str, Any] | None:
    """Message of a worker, or None for a line that a library printed before the worker could redirect it."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and message.keys() & {"done", "record", "error"} else None
