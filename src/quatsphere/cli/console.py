"""What a watching user sees: a live bar while a run goes on, one line per epoch, tables at the end."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from quatsphere.train.progress import Progress, Reporter


def note(message: str) -> None:
    """A line on stderr that is not an error."""
    print(f"quatsphere: note: {message}", file=sys.stderr, flush=True)


class Ticker:
    """A bar for anything countable that may take longer than two seconds; call it with (done, total)."""

    def __init__(self, title: str) -> None:
        self.bars = Bars(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(), console=Console(stderr=True), transient=True,
        )  # fmt: skip
        self.task = self.bars.add_task(title, total=None)

    def __call__(self, done: int, total: int) -> None:
        """Show the state."""
        self.bars.update(self.task, completed=done, total=total)

    def __enter__(self) -> Ticker:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()


class LiveReporter(Reporter):
    """A bar over all steps with loss, accuracy, images/s and time left; a closed terminal does not end the run."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, soft_wrap=True)
        self.bars = Bars(
            TextColumn("epoch {task.fields[epoch]}"), BarColumn(bar_width=24), TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[news]}"), TimeElapsedColumn(), TextColumn("eta"), TimeRemainingColumn(),
            console=self.console, transient=True,
        )  # fmt: skip
        self.task = self.bars.add_task("train", total=None, epoch="", news="")
        self.speed = 0.0

    def start(self, facts: dict[str, Any]) -> None:
        """The identity of the run."""
        images = facts["images"]
        self._print(
            f"{facts['model']} with {facts['parameters']:,} parameters on {facts['data']} "
            f"({images['train']:,} train, {images['val']:,} val, {images['test']:,} test images; "
            f"fingerprint {facts['fingerprint'][:12]})\n"
            f"{facts['device']}, {facts['threads']} threads, kernel {facts['backend']}; run folder {facts['run']}"
        )
        self.bars.update(self.task, total=facts["steps"])
        self.bars.start()

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        """Move the bar."""
        self.speed = images_per_second if not self.speed else 0.9 * self.speed + 0.1 * images_per_second
        means = progress.means()
        news = f"loss {means['loss']:.3f}  acc {means['accuracy']:.3f}  {self.speed:.0f} img/s"
        self.bars.update(self.task, completed=progress.step, epoch=f"{progress.epoch + 1}/{epochs}", news=news)

    def epoch(self, record: dict[str, Any]) -> None:
        """One line per epoch."""
        train = record["train"]
        self._print(
            f"epoch {record['epoch']:>3}  loss {train['loss']:.4f}  train {train['accuracy']:.4f}  "
            f"val {record['val_accuracy']:.4f}  best {record['best_val_accuracy']:.4f}  "
            f"{record['images_per_second']:.0f} img/s"
        )

    def note(self, message: str) -> None:
        """A line above the bar."""
        self._print(f"quatsphere: note: {message}")

    def close(self) -> None:
        """Take the bar away."""
        self.bars.stop()

    def _print(self, text: str) -> None:
        try:
            self.console.print(text, highlight=False, markup=False)
        except BrokenPipeError:
            self.console = Console(quiet=True)


def evaluation_table(report: dict[str, Any], title: str) -> Table:
    """Accuracy per class with totals."""
    table = Table(title=title, title_justify="left")
    table.add_column("class")
    table.add_column("accuracy", justify="right")
    table.add_column("images", justify="right")
    for (name, accuracy), row in zip(report["per_class"].items(), report["confusion"], strict=True):
        table.add_row(name, "-" if accuracy is None else f"{accuracy:.3f}", str(sum(row)))
    table.add_section()
    table.add_row("all", f"{report['accuracy']:.4f}", str(report["images"]))
    return table


def parameter_table(parts: dict[str, int], title: str) -> Table:
    """Parameters by part with the total."""
    table = Table(title=title, title_justify="left")
    table.add_column("part")
    table.add_column("parameters", justify="right")
    for part, count in parts.items():
        table.add_row(part, f"{count:,}")
    table.add_section()
    table.add_row("all", f"{sum(parts.values()):,}")
    return table
