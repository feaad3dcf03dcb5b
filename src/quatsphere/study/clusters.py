"""Launchers that train the cells of a plan on a Ray cluster (extra `cluster`) or by SLURM (extra `slurm`).

The results folder should be on a file system that all nodes mount at the same path: a cell that moves to another node
then resumes, otherwise it starts again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quatsphere.errors import ConfigError
from quatsphere.study.runner import Outcome, StudyObserver, run_in_process
from quatsphere.study.worker import CellRequest

RETRIES = 5
"""Number of retries of a cell on a Ray cluster after its node died."""
SLURM_JOBS = 32
"""Jobs of a study that SLURM may run at a time, unless --jobs says otherwise."""
SLURM_MINUTES = 240
"""Time limit of a SLURM job, unless --slurm time=N says otherwise; a cell that needs longer is queued again."""
SLURM_REQUEUES = 100
POLL_SECONDS = 1.0


class RayLauncher:
    """Runs as many cells at a time as the cluster has GPUs or CPUs for; RAY_ADDRESS names a running cluster."""

    def __init__(self) -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigError("--launcher ray needs Ray; pip install 'quatsphere[cluster]'") from error
        self.ray: Any = ray
        if not self.ray.is_initialized():
            self.ray.init(log_to_driver=False)
        resources = self.ray.cluster_resources()
        self.gpus = int(resources.get("GPU", 0))
        self.jobs = self.gpus or max(1, int(resources.get("CPU", 1)))

    def run(self, requests: Sequence[CellRequest], observer: StudyObserver) -> Iterator[Outcome]:
        """Yield outcomes; closing the generator cancels the remaining tasks."""
        waiting = {self._submit(request): request for request in requests}
        try:
            while waiting:
                done, _ = self.ray.wait(list(waiting), num_returns=1)
                yield self._collect(done[0], waiting.pop(done[0]))
        finally:
            for task in waiting:
                self.ray.cancel(task, force=True)

    def _submit(self, request: CellRequest) -> Any:
        """Queue one cell with the number of threads it needs."""
        cpus = request.settings.get("train.threads") or 1
        task = self.ray.remote(num_cpus=cpus, num_gpus=1 if self.gpus else 0, max_retries=RETRIES)(run_on_node)
        return task.remote(asdict(request))

    def _collect(self, task: Any, request: CellRequest) -> Outcome:
        """Outcome of a finished task, or of one whose node died too often."""
        try:
            record, error = self.ray.get(task)
        except self.ray.exceptions.RayError as lost:
            return Outcome(request, None, " ".join(str(lost).split())[:200])
        return Outcome(request, record, error)


class SlurmLauncher:
    """Submits every cell as a job by submitit; a job that meets its time limit is queued again and resumes.

    Args:
        folder: folder for the files of submitit, on a file system that all nodes mount.
        jobs: number of jobs at a time.
        options: parameters of sbatch, for example partition, time (minutes), gpus_per_node.
        cluster: `slurm`, or `local` for processes on this machine.
    """

    def __init__(
        self, folder: Path, jobs: int | None = None, options: Mapping[str, Any] | None = None, cluster: str = "slurm"
    ) -> None:
        try:
            import submitit
        except ImportError as error:
            raise ConfigError("--launcher slurm needs submitit; pip install 'quatsphere[slurm]'") from error
        self.jobs = jobs or SLURM_JOBS
        settings = {"array_parallelism": self.jobs, "time": SLURM_MINUTES, "job_name": "quatsphere", **(options or {})}
        try:
            self.executor: Any = submitit.AutoExecutor(folder, cluster=cluster, slurm_max_num_timeout=SLURM_REQUEUES)
            self.executor.update_parameters(**{f"slurm_{name}": value for name, value in settings.items()})
        except Exception as error:  # submitit raises many kinds
            raise ConfigError(f"SLURM cannot be used ({' '.join(str(error).split())[:300]}); see --slurm") from error

    def run(self, requests: Sequence[CellRequest], observer: StudyObserver) -> Iterator[Outcome]:
        """Yield outcomes; closing the generator cancels the remaining jobs, whose cells save and stop."""
        threads = max((request.settings.get("train.threads") or 1 for request in requests), default=1)
        self.executor.update_parameters(cpus_per_task=threads)
        with self.executor.batch():
            jobs = [self.executor.submit(ResumableCell(), asdict(request)) for request in requests]
        waiting = {request.id: (request, job) for request, job in zip(requests, jobs, strict=True)}
        queued = set(waiting)
        try:
            while waiting:
                done = [name for name, (_, job) in waiting.items() if job.done()]
                for name in [name for name in queued if name in done or waiting[name][1].state == "RUNNING"]:
                    queued.remove(name)
                    observer.started(name)
                yield from (self._collect(*waiting.pop(name)) for name in done)
                if not done:
                    time.sleep(POLL_SECONDS)
        finally:
            for _, job in waiting.values():
                job.cancel(check=False)

    def _collect(self, request: CellRequest, job: Any) -> Outcome:
        """Outcome of a finished job, or of one that was lost."""
        failure = job.exception()
        if failure is not None:
            return Outcome(request, None, f"{' '.join(str(failure).split())[:200]}; see {job.paths.stderr}")
        record, error = job.result()
        return Outcome(request, record, error)


class ResumableCell:
    """Training of a cell as a job; when SLURM interrupts it, submitit queues it again and it resumes."""

    def __call__(self, request: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
        """Train the cell."""
        return run_on_node(request)

    def checkpoint(self, request: dict[str, Any]) -> Any:
        """Return the submission that continues the cell; its process saves when this one ends."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, request)


def run_on_node(request: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Run the usual worker process on a node; it ends when the process that calls this does."""
    outcome = run_in_process(CellRequest(**request), lambda done, total, speed: None)
    return outcome.record, outcome.error
