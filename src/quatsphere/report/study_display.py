"""Progress of `quatsphere study run`: a live table with the remaining time, or lines if stdout is not a terminal."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table

from quatsphere.study.plan import Cell
from quatsphere.study.runner import Outcome, StudyObserver
from quatsphere.study.time_estimate import SpeedEstimator, format_seconds


class StudyDisplay(StudyObserver):
    """Running cells with their progress, counts, and the estimated remaining time."""

    def __init__(self, cells: Sequence[Cell], jobs: int, speeds: SpeedEstimator) -> None:
        self.cells = {cell.id: cell for cell in cells}
        self.waiting, self.total = dict(self.cells), len(cells)
        self.jobs, self.speeds = jobs, speeds
        self.running: dict[str, tuple[int, int, float]] = {}
        self.failed = 0
        self._lock = threading.Lock()
        self.console = Console(soft_wrap=True)
        self.live = Live(console=self.console, get_renderable=self.table, refresh_per_second=1, transient=True)

    def __enter__(self) -> StudyDisplay:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def started(self, cell: str) -> None:
        """Add the cell to the table."""
        with self._lock:
            self.running[cell] = (0, 0, 0.0)
        if not self.console.is_terminal:
            self.console.print(f"{cell}: started", highlight=False)

    def progress(self, cell: str, done: int, total: int, speed: float) -> None:
        """Update the table."""
        with self._lock:
            self.running[cell] = (done, total, speed)

    def ended(self, outcome: Outcome) -> None:
        """Print the outcome of the cell."""
        cell, record = self.cells[outcome.request.id], outcome.record
        with self._lock:
            self.running.pop(cell.id, None)
            self.waiting.pop(cell.id, None)
            self.failed += record is None
            if record is not None and record["trajectory"]["images_per_second"]:
                self.speeds.update(cell.variant, cell.config.model.name, record["trajectory"]["images_per_second"][-1])
        self.console.print(f"{cell.id}: {describe_outcome(outcome)}  [{self.summary()}]", highlight=False, markup=False)

    def summary(self) -> str:
        """`12 of 99, 1 failed, about 3 h 2 min left`."""
        failed = f", {self.failed} failed" if self.failed else ""
        seconds = self.seconds_left()
        left = "" if seconds is None else f", about {format_seconds(seconds)} left"
        return f"{self.total - len(self.waiting)} of {self.total}{failed}{left}"

    def seconds_left(self) -> float | None:
        """Estimated remaining time from the speeds measured so far."""
        with self._lock:
            running = dict(self.running)
        parts = [
            (self.speeds.seconds(self.cells[cell]) or 0.0) * done / total
            for cell, (done, total, _) in running.items()
            if total
        ]
        return self.speeds.remaining(list(self.waiting.values()), self.jobs, sum(parts))

    def table(self) -> Table:
        """Table of the running cells."""
        table = Table(title=self.summary(), title_justify="left")
        for column in ("cell", "steps", "done", "images/s", "left"):
            table.add_column(column, justify="left" if column == "cell" else "right")
        with self._lock:
            running = dict(self.running)
        for cell, (done, total, speed) in running.items():
            share = done / total if total else 0.0
            seconds = self.speeds.seconds(self.cells[cell])
            left = "" if seconds is None else format_seconds(seconds * (1 - share))
            table.add_row(cell, f"{done}/{total}", f"{share:.0%}", f"{speed:.0f}", left)
        return table


def describe_outcome(outcome: Outcome) -> str:
    """One line about the outcome of a cell."""
    record = outcome.record
    if record is None:
        return f"failed: {outcome.error}"
    if record["status"] == "diverged":
        return f"diverged: {record['reason']}"
    return f"test {record['test_accuracy']:.4f}, val {record['val_accuracy']:.4f}, {format_seconds(record['seconds'])}"
