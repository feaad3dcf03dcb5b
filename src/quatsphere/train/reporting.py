"""TensorBoard events beside `metrics.jsonl`, for those who like to watch there (extra `track`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from quatsphere.errors import ConfigError


@dataclass
class Progress:
    """Everything a resume needs that is not a tensor. Floats survive JSON bit for bit."""

    epoch: int = 0
    """Epochs finished."""
    step_in_epoch: int = 0
    """Steps taken in the current epoch."""
    step: int = 0
    """Optimiser steps taken in all."""
    best_accuracy: float | None = None
    """Best validation accuracy so far."""
    best_step: int | None = None
    best_epoch: int | None = None
    waited: int = 0
    """Epochs since the last improvement."""
    sums: dict[str, float] = field(default_factory=dict)
    """Sums over the images of the current epoch: losses by name, `correct`, `images`."""
    seconds: float = 0.0
    """Time spent training, over all starts; compiling kernels does not count."""
    epoch_start: float = 0.0
    """`seconds` when the current epoch began."""

    def begin_epoch(self) -> None:
        """Forget the sums of the epoch that ended."""
        self.sums, self.step_in_epoch, self.epoch_start = {}, 0, self.seconds

    def add(self, values: dict[str, float]) -> None:
        """Add one step's sums."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def means(self) -> dict[str, float]:
        """The epoch's means so far."""
        images = max(1.0, self.sums.get("images", 0.0))
        return {name: value / images for name, value in self.sums.items() if name != "images"}

    def improved(self, accuracy: float, min_delta: float) -> bool:
        """Whether an epoch's validation accuracy beats the best by more than `min_delta`; updates the count."""
        better = self.best_accuracy is None or accuracy > self.best_accuracy + min_delta
        self.waited = 0 if better else self.waited + 1
        if better:
            self.best_accuracy, self.best_step, self.best_epoch = accuracy, self.step, self.epoch
        return better

    def to_json(self) -> dict[str, Any]:
        """As a checkpoint stores it."""
        return asdict(self)


class Reporter:
    """Who is told how a run goes; this one tells nobody."""

    def start(self, facts: dict[str, Any]) -> None:
        """The run is set up: identity, sizes, backend."""

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        """A step was taken."""

    def validating(self, done: int, total: int) -> None:
        """So many of the validation images are through."""

    def epoch(self, record: dict[str, Any]) -> None:
        """An epoch ended with this record."""

    def note(self, message: str) -> None:
        """Something the user should know."""

    def close(self) -> None:
        """No more news."""


class Relay(Reporter):
    """Passes all news on; if the listener's terminal or pipe is gone the run goes on unheard."""

    def __init__(self, inner: Reporter) -> None:
        self.inner = inner

    def start(self, facts: dict[str, Any]) -> None:
        """Pass on."""
        self.tell(lambda: self.inner.start(facts))

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        """Pass on."""
        self.tell(lambda: self.inner.step(progress, steps, epochs, images_per_second))

    def validating(self, done: int, total: int) -> None:
        """Pass on."""
        self.tell(lambda: self.inner.validating(done, total))

    def epoch(self, record: dict[str, Any]) -> None:
        """Pass on."""
        self.tell(lambda: self.inner.epoch(record))

    def note(self, message: str) -> None:
        """Pass on."""
        self.tell(lambda: self.inner.note(message))

    def close(self) -> None:
        """Pass on."""
        self.tell(self.inner.close)

    def tell(self, news: Callable[[], None]) -> None:
        """Once a listener is lost nobody is told any more; rich answers a broken pipe with SystemExit."""
        try:
            news()
        except (OSError, SystemExit):
            self.inner = Reporter()


class EventLog(Relay):
    """Passes all news on and writes each epoch's numbers as events; a full disk costs events, not the run."""

    def __init__(self, inner: Reporter, folder: Path, step: int = 0) -> None:
        """Events after `step`, of a life that was given up, are taken back."""
        super().__init__(inner)
        self.writer: Any = writer_class()(str(folder / "events"), purge_step=step + 1)

    def epoch(self, record: dict[str, Any]) -> None:
        """Every number of the record as a scalar, lists by index."""
        for name, value in _scalars("", record):
            self.writer.add_scalar(name, value, record["step"])
        self.writer.flush()
        super().epoch(record)

    def close(self) -> None:
        """Close the file."""
        self.writer.close()
        super().close()


def writer_class() -> Any:
    """TensorBoard's writer; ask before a run writes anything."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("train.tensorboard needs TensorBoard; pip install 'quatsphere[track]'") from error
    return SummaryWriter


def _scalars(prefix: str, value: Any) -> list[tuple[str, float]]:
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in _scalars(f"{prefix}/{key}".strip("/"), inner)]
    if isinstance(value, list):
        return [pair for index, inner in enumerate(value) for pair in _scalars(f"{prefix}/{index}", inner)]
    return [(prefix, float(value))] if isinstance(value, (int, float)) else []
