"""The Ray launcher on a real cluster of two nodes on this machine, one of which is killed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quatsphere.study.clusters import RayLauncher
from quatsphere.study.plan import PLANS, plan_cells
from quatsphere.study.results import Results
from quatsphere.study.runner import LocalLauncher, Outcome, StudyObserver, run_plan

ray = pytest.importorskip("ray", reason="Ray is not installed (extra 'cluster')")
pytestmark = pytest.mark.slow


class OutcomeList(StudyObserver):
    """Collects every outcome that reaches the runner."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def ended(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


@pytest.fixture
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, connect=False, head_node_args={"num_cpus": 1})
    yield made
    ray.shutdown()
    made.shutdown()


def test_every_cell_finishes_once_when_a_node_dies(tmp_path: Path, cluster: Any) -> None:
    doomed = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    results, observer = Results(tmp_path / "results"), OutcomeList()
    cells = plan_cells(PLANS["smoke"], only=["full", "both_off"], seeds=[1, 2])
    launcher = RayLauncher()
    assert launcher.jobs == 2
    killer = threading.Thread(target=kill_at_work, args=(cluster, doomed, results))
    killer.start()
    summary = run_plan("smoke", cells, results, launcher, observer)
    killer.join()
    assert not summary.failed
    assert sorted(outcome.request.id for outcome in observer.outcomes) == sorted(cell.id for cell in cells)
    assert sorted(path.stem for path in results.cells.glob("*.json")) == sorted(cell.id for cell in cells)
    assert len([node for node in ray.nodes() if node["Alive"]]) == 1


def kill_at_work(cluster: Any, node: Any, results: Results) -> None:
    """Kill the node when two cells, one of them on this node, have begun to train."""
    while len(list(results.runs.glob("*/metrics.jsonl"))) < 2:
        time.sleep(0.05)
    cluster.remove_node(node, allow_graceful=False)


def test_ray_and_local_records_are_equal(tmp_path: Path, cluster: Any) -> None:
    ray.init(address=cluster.address, log_to_driver=False)
    cells = plan_cells(PLANS["smoke"], only=["full"], seeds=[1])
    rows = []
    for name, launcher in (("ray", RayLauncher()), ("local", LocalLauncher(1))):
        results = Results(tmp_path / name)
        assert not run_plan("smoke", cells, results, launcher).failed
        row = json.loads(results.file(cells[0].id).read_text())
        rows.append((row["test_accuracy"], row["trajectory"]["train_loss"]))
    assert rows[0] == rows[1]
