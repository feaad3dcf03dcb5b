"""Run a plan: skip what is finished, go on with what was interrupted, keep one row per finished cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quatsphere.data import Dataset
from quatsphere.study.launch import Launcher, Outcome, Watcher
from quatsphere.study.plan import Cell, flat_settings
from quatsphere.study.results import Results, require_same_cell
from quatsphere.study.worker import Request
from quatsphere.train.run import load_data, require_trainable

KEEP = ("best", "all", "none")
"""Checkpoints of a finished cell that stay: the best one, so that it can be looked into later; all; or none."""


@dataclass(frozen=True)
class Summary:
    """How a start of the runner ended."""

    finished: int
    skipped: int
    failed: dict[str, str]


def unfinished(cells: Sequence[Cell], results: Results) -> list[Cell]:
    """Cells without a result; a result with other settings is an error, not a reason to skip."""
    todo = []
    for cell in cells:
        record = results.read(cell.id)
        if record is None:
            todo.append(cell)
        else:
            require_same_cell(record, cell)
    return todo


def require_ready(cells: Sequence[Cell]) -> None:
    """Load every data set of the cells once: a missing file or package is one error, not one for each cell."""
    loaded: dict[tuple[str, str | None], Dataset] = {}
    for config in (cell.config for cell in cells):
        source = config.data.name, config.data.root
        if source not in loaded:
            loaded[source] = load_data(config.data, note=lambda text: None)
        require_trainable(config.train, loaded[source])


def run_plan(
    name: str,
    cells: Sequence[Cell],
    results: Results,
    launcher: Launcher,
    watcher: Watcher | None = None,
    *,
    keep_weights: str = "best",
) -> Summary:
    """Train all unfinished cells; a failing one is reported and does not stop the others."""
    watcher = watcher or Watcher()
    with results.open():
        todo = unfinished(cells, results)
        results.remember(name, cells)
        for cell in cells:
            if cell not in todo:
                results.drop_weights(cell.id, keep_weights)
        requests = [request_of(cell, results) for cell in todo]
        failed: dict[str, str] = {}
        for outcome in launcher.run(requests, watcher):
            keep(outcome, results, keep_weights)
            if outcome.record is None:
                failed[outcome.request.id] = outcome.error
            watcher.ended(outcome)
        return Summary(len(todo) - len(failed), len(cells) - len(todo), failed)


def keep(outcome: Outcome, results: Results, keep_weights: str) -> None:
    """Write the row of a finished cell, then let go of checkpoints nobody needs."""
    if outcome.record is not None:
        results.write(outcome.request.id, outcome.record)
        results.drop_weights(outcome.request.id, keep_weights)


def request_of(cell: Cell, results: Results) -> Request:
    """What a worker is asked."""
    run = str(results.run(cell.id).path.absolute())
    return Request(cell.id, cell.dataset, cell.variant, cell.seed, flat_settings(cell.config), run)
