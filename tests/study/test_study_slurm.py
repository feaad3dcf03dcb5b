"""The SLURM launcher with submitit's own local executor, which runs, interrupts and queues jobs as SLURM does.

There is no SLURM on a test machine: `srun` and the options of sbatch are checked by submitit, not by a cluster.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quatsphere.errors import ConfigError
from quatsphere.study.clusters import SlurmLauncher
from quatsphere.study.plan import PLANS, plan_cells
from quatsphere.study.results import Results
from quatsphere.study.runner import LocalLauncher, StudyObserver, make_launcher, run_plan


def test_mistakes_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results(tmp_path)
    with pytest.raises(ConfigError, match="--slurm is for --launcher slurm: got --launcher local"):
        make_launcher("local", 1, 1, results, {"partition": "gpu"})
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "submitit", None)
        with pytest.raises(ConfigError, match=r"pip install 'quatsphere\[slurm\]'"):
            make_launcher("slurm", 1, 1, results)
    pytest.importorskip("submitit", reason="submitit is not installed (extra 'slurm')")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"SLURM cannot be used .*srun") as found:
        make_launcher("slurm", 1, 1, results)
    assert "\n" not in str(found.value)
    with pytest.raises(ConfigError, match="Unknown argument 'partitoin'"):
        SlurmLauncher(tmp_path / "jobs", options={"partitoin": "gpu"}, cluster="local")


class Interruption(StudyObserver):
    """Sends the signal of a time limit to the first job once its cell has finished an epoch."""

    def __init__(self, launcher: SlurmLauncher, results: Results) -> None:
        self.started_cells: list[str] = []
        self.results = results
        submit = launcher.executor.submit
        self.jobs: list[Any] = []

        def submit_and_keep(*args: Any) -> Any:
            self.jobs.append(submit(*args))
            return self.jobs[-1]

        launcher.executor.submit = submit_and_keep

    def started(self, cell: str) -> None:
        self.started_cells.append(cell)
        threading.Thread(target=self.interrupt, daemon=True).start()

    def interrupt(self) -> None:
        while not list(self.results.runs.glob("*/metrics.jsonl")):
            time.sleep(0.05)
        from submitit.local.local import LocalJobEnvironment

        controller = self.jobs[0]._process.pid  # it starts the job again; the signal is for the job, its child
        job = int(Path(f"/proc/{controller}/task/{controller}/children").read_text().split()[0])
        os.kill(job, LocalJobEnvironment._usr_sig())


@pytest.mark.slow
def test_an_interrupted_job_resumes_and_gives_the_same_record(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed (extra 'slurm')")
    cells = plan_cells(PLANS["smoke"], only=["full"], seeds=[1])
    rows = []

    def slurm(results: Results) -> tuple[Any, Any]:
        launcher = SlurmLauncher(tmp_path / "jobs", 2, {"partition": "gpu"}, cluster="local")
        launcher.executor.update_parameters(timeout_min=60)  # submitit's local executor has 5
        return launcher, Interruption(launcher, results)

    makers: dict[str, Callable[[Results], tuple[Any, Any]]] = {
        "slurm": slurm,
        "local": lambda _: (LocalLauncher(1), None),
    }
    for name, make in makers.items():
        results = Results(tmp_path / name)
        launcher, observer = make(results)
        assert not run_plan("smoke", cells, results, launcher, observer).failed
        row = json.loads(results.file(cells[0].id).read_text())
        rows.append((row["test_accuracy"], row["trajectory"]["train_loss"]))
        if observer is not None:
            assert observer.started_cells == [cells[0].id]
    assert rows[0] == rows[1]
    log = "".join(path.read_text() for path in (tmp_path / "jobs").glob("*_log.*"))
    assert "Requeued job" in log
