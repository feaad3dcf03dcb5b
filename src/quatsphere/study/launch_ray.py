"""Cells over a Ray cluster (extra `cluster`): one task per cell, tried again elsewhere when its node dies.

The results folder should lie on a disk that all nodes see, under the same path: a cell that moves then goes on where it
stopped, otherwise it starts again. Either way its row comes back to the runner, which alone writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from quatsphere.errors import ConfigError
from quatsphere.study.launch import Outcome, Watcher, run_worker
from quatsphere.study.worker import Request

RETRIES = 5
"""How often a cell is tried again after its node died."""


def import_ray() -> Any:
    """Ray, or a line that says what to install."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError("--launcher ray needs Ray; pip install 'quatsphere[cluster]'") from error
    return ray


class RayLauncher:
    """As many cells at a time as the cluster has CPUs (or GPUs) for; RAY_ADDRESS names a running cluster."""

    def __init__(self) -> None:
        self.ray = import_ray()
        if not self.ray.is_initialized():
            self.ray.init(log_to_driver=False)
        resources = self.ray.cluster_resources()
        self.gpus = int(resources.get("GPU", 0))
        self.jobs = self.gpus or max(1, int(resources.get("CPU", 1)))

    def run(self, requests: Sequence[Request], watcher: Watcher) -> Iterator[Outcome]:
        """Yield outcomes as they come; leaving early cancels what is left."""
        waiting = {self.submit(request): request for request in requests}
        try:
            while waiting:
                done, _ = self.ray.wait(list(waiting), num_returns=1)
                yield self.collect(done[0], waiting.pop(done[0]))
        finally:
            for task in waiting:
                self.ray.cancel(task, force=True)

    def submit(self, request: Request) -> Any:
        """Queue one cell with the threads it wants."""
        cpus = request.settings.get("train.threads") or 1
        task = self.ray.remote(num_cpus=cpus, num_gpus=1 if self.gpus else 0, max_retries=RETRIES)(train_cell)
        return task.remote(asdict(request))

    def collect(self, task: Any, request: Request) -> Outcome:
        """A finished task's outcome; a node that died too often is an outcome too."""
        try:
            record, error = self.ray.get(task)
        except self.ray.exceptions.RayError as lost:
            return Outcome(request, None, " ".join(str(lost).split())[:200])
        return Outcome(request, record, error)


def train_cell(request: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """On a node: the same worker process as everywhere, so that it ends when Ray's own process does."""
    outcome = run_worker(Request(**request), lambda done, total, speed: None)
    return outcome.record, outcome.error
