"""Terminal output: progress bars, one line per epoch, tables, notes about compilation."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any, ClassVar, cast

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.spinner import Spinner
from rich.table import Table

from quatsphere.runtime import compilation, discard_stderr, working_time
from quatsphere.storage.run_folder import print_note as note
from quatsphere.train.reporting import Progress, Reporter
from quatsphere.train.resources import VALIDATION

if TYPE_CHECKING:
    from quatsphere.data import Dataset
    from quatsphere.train.load import TrainedModel

STEPS, SECONDS = 5, 10.0
"""Steps to time, or fewer if they take this long; the first step of a process is slower and does not count."""


class Forecast:
    """Estimate of the run's duration from its first steps; `images` has the sizes of the splits."""

    def __init__(self, total_steps: int, images: dict[str, int]) -> None:
        self.total = total_steps
        self.with_validation = 1 + VALIDATION * images["val"] / images["train"]
        self._first: tuple[int, float] | None = None
        self._done = False

    def line(self, progress: Progress, steps: int) -> str | None:
        """Return the estimate once, as soon as it is known, else None; `steps` is the number of steps in an epoch."""
        if self._done:
            return None
        if self._first is None:
            self._first = progress.step, progress.seconds
        timed, seconds = progress.step - self._first[0], progress.seconds - self._first[1]
        if timed == 0 or (timed < STEPS and seconds < SECONDS):
            return None
        self._done = True
        begun = self._first[0] > 1
        left = self.total - progress.step if begun else self.total
        epochs = -(-left // steps)
        scope = f"{epochs} {'epoch' if epochs == 1 else 'epochs'}{' left' if begun else ''}"
        return f"about {spell_duration(seconds / timed * left * self.with_validation)} for {scope}"


def spell_duration(seconds: float) -> str:
    """`42 s`, `12 min`, `2.5 h`, `3 days`."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{round(seconds / size, 1 if seconds < 10 * size and unit != 'min' else None)} {unit}"
    return f"{max(1, round(seconds))} s"


COMPILING = "compiling kernels, once, about 10 s"
COMPILE_PATIENCE = 2.0
"""Seconds after which a compilation is mentioned; small loops take less."""
QUIET_SECONDS = 60.0
"""Longest time between lines within an epoch if there is no bar."""


def counted(number: int, thing: str) -> str:
    """`1 thread`, `2 threads`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


class RobustStderr(io.TextIOBase):
    """stderr for a long run: output is discarded once the terminal or pipe is closed, instead of ending the run."""

    def __init__(self) -> None:
        self.stream = sys.stderr

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the stream."""
        return self.stream.encoding or "utf-8"

    def isatty(self) -> bool:
        """Return True on a terminal."""
        return self.stream.isatty()

    def fileno(self) -> int:
        """Descriptor, for the size of the terminal."""
        return self.stream.fileno()

    def write(self, text: str) -> int:
        """Write if the stream is open."""
        try:
            self.stream.write(text)
            self.stream.flush()
        except OSError:
            discard_stderr()
        return len(text)


class Bars(RichProgress):
    """Progress bars whose times exclude compilation; a spinner below them is shown while kernels are compiled."""

    shown: ClassVar[set[Bars]] = set()
    """Bars on the screen."""

    def __init__(self, *columns: ProgressColumn, console: Console) -> None:
        self.spinner = Spinner("dots")
        options: dict[str, Any] = {"transient": True, "disable": not console.is_terminal, "get_time": working_time}
        super().__init__(*columns, console=console, **options)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bars, and the spinner while kernels are compiled."""
        yield from super().get_renderables()
        if compilation.current >= COMPILE_PATIENCE:
            self.spinner.update(text=f"{COMPILING}: {compilation.seconds:.0f} s")
            yield self.spinner

    def start(self) -> None:
        """Show the bars."""
        super().start()
        if self.live.is_started:
            Bars.shown.add(self)

    def stop(self) -> None:
        """Remove the bars."""
        Bars.shown.discard(self)
        super().stop()


class CompileNotice:
    """Note about a long compilation: a spinner on a terminal, one line elsewhere; bars show their own spinner."""

    def __init__(self) -> None:
        self._said = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(COMPILE_PATIENCE, self._show)
        self._spinner: Any = None

    def __call__(self, begins: bool) -> None:
        """Start or end the note of a compilation."""
        if begins:
            self._timer = threading.Timer(COMPILE_PATIENCE, self._show)
            self._timer.daemon = True
            self._timer.start()
            return
        self._timer.cancel()
        with self._lock:
            if self._spinner is not None:
                self._spinner.stop()
            self._spinner = None

    def _show(self) -> None:
        console = Console(stderr=True)
        with self._lock:
            if not compilation.current:
                return
            if not console.is_terminal:
                if not self._said:
                    note(COMPILING)
                self._said = True
            elif not Bars.shown:
                self._spinner = console.status(COMPILING)
                self._spinner.start()


compile_notice = CompileNotice()


def remove_bars() -> None:
    """Remove all bars and spinners, which also shows the cursor again."""
    compile_notice(begins=False)
    for bars in list(Bars.shown):
        bars.stop()


class Ticker:
    """Progress bar of a countable task; call it with (done, total)."""

    def __init__(self, title: str) -> None:
        console = Console(stderr=True)
        self.bars = Bars(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(), console=console,
        )  # fmt: skip
        self.task = self.bars.add_task(title, total=None)

    def __call__(self, done: int, total: int) -> None:
        """Update the bar."""
        self.bars.update(self.task, completed=done, total=total)

    def __enter__(self) -> Ticker:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()


def read_dataset_of(trained: TrainedModel, root: str | None = None) -> Dataset:
    """Load the data of a run with a progress bar, from `root` if it has moved."""
    with Ticker("reading data") as ticker:
        return trained.dataset(root, progress=ticker)


class LiveReporter(Reporter):
    """Bar over all steps with loss, accuracy, images/s and time left; a closed terminal does not end the run.

    In a log file there is no bar, and one line per minute within an epoch.
    """

    def __init__(self) -> None:
        self.console = Console(file=cast("IO[str]", RobustStderr()), soft_wrap=True)
        self.bars = Bars(
            TextColumn("epoch {task.fields[epoch]}"), BarColumn(bar_width=24), TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[news]}"), TimeElapsedColumn(), TextColumn("eta"), TimeRemainingColumn(),
            console=self.console,
        )  # fmt: skip
        self.task = self.bars.add_task("train", total=None, epoch="", news="")
        self.speed = 0.0
        self.last_line = time.monotonic()

    def plan(self, estimate: Callable[[], dict[str, Any]]) -> None:
        """Print what the model samples of an image, and the memory and time that the run will need."""
        found = estimate()
        if found["vertices"]:
            self._print(
                f"images of {found['side']} x {found['side']}: {found['vertices']:,} vertices on the first of "
                f"{found['shells']} shells sample {found['samples']:,} points of {found['pixels']:,} pixels"
            )
        self._print(
            f"estimate: {found['bytes'] / 2**30:.2f} GiB of memory per step, "
            f"{spell_duration(found['seconds'])} for {counted(found['epochs'], 'epoch')} on this machine"
        )

    def start(self, facts: dict[str, Any]) -> None:
        """Print the model, the data and the machine."""
        images = facts["images"]
        self._print(
            f"{facts['model']} with {facts['parameters']:,} parameters on {facts['data']} "
            f"({images['train']:,} train, {images['val']:,} val, {images['test']:,} test images; "
            f"fingerprint {facts['fingerprint'][:12]})\n"
            f"{facts['device']}, {counted(facts['threads'], 'thread')}, kernel {facts['backend']}; "
            f"run folder {facts['run']}"
        )
        self.forecast = Forecast(facts["steps"], images)
        self.bars.update(self.task, total=facts["steps"])
        self.bars.start()

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        """Move the bar."""
        self.speed = images_per_second if not self.speed else 0.9 * self.speed + 0.1 * images_per_second
        means = progress.means()
        news = f"loss {means['loss']:.3f}  acc {means['accuracy']:.3f}  {self.speed:.0f} img/s"
        self.bars.update(self.task, completed=progress.step, epoch=f"{progress.epoch + 1}/{epochs}", news=news)
        forecast = self.forecast.line(progress, steps)
        if forecast is not None:
            self._print(forecast)
        if not self.console.is_terminal and time.monotonic() - self.last_line > QUIET_SECONDS:
            self._print(f"epoch {progress.epoch + 1}/{epochs}, step {progress.step_in_epoch}/{steps}  {news}")

    def epoch(self, record: dict[str, Any]) -> None:
        """Print one line per epoch."""
        train = record["train"]
        self._print(
            f"epoch {record['epoch']:>3}  loss {train['loss']:.4f}  train {train['accuracy']:.4f}  "
            f"val {record['val_accuracy']:.4f}  best {record['best_val_accuracy']:.4f}  "
            f"{record['images_per_second']:.0f} img/s"
        )

    def note(self, message: str) -> None:
        """Print a line above the bar."""
        self._print(f"quatsphere: note: {message}")

    def close(self) -> None:
        """Remove the bar."""
        self.bars.stop()

    def _print(self, text: str) -> None:
        self.last_line = time.monotonic()
        self.console.print(text, highlight=False, markup=False)


def evaluation_table(report: dict[str, Any], title: str) -> Table:
    """Accuracy per class with totals."""
    rows = [
        (escape(name), "-" if accuracy is None else f"{accuracy:.3f}", str(sum(row)))
        for (name, accuracy), row in zip(report["per_class"].items(), report["confusion"], strict=True)
    ]
    last = ("all", f"{report['accuracy']:.4f}", str(report["images"]))
    return number_table(title, ("class", "accuracy", "images"), rows, last)


def parameter_table(parts: dict[str, int], title: str, column: str = "part") -> Table:
    """Parameters by part with the total."""
    rows = [(part, f"{count:,}") for part, count in parts.items()]
    return number_table(title, (column, "parameters"), rows, ("all", f"{sum(parts.values()):,}"))


def number_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], last: Sequence[str] = (), justify: Any = "right"
) -> Table:
    """Table of strings; all columns but the first are justified, and the last row is set off by a line."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify=justify if index else "left")
    for row in rows:
        table.add_row(*row)
    if last:
        table.add_section()
        table.add_row(*last)
    return table
