"""Progress of a run, and the callbacks that report it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Progress:
    """State of a run, apart from its tensors, that a resume needs. Floats survive JSON bit for bit."""

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
    """Sums over the images of the current epoch: losses by name, `accuracy`, `images`."""
    seconds: float = 0.0
    """Training time over all starts, without the compilation of kernels."""
    epoch_start: float = 0.0
    """`seconds` at the start of the current epoch."""

    def begin_epoch(self) -> None:
        """Reset the sums for a new epoch."""
        self.sums, self.step_in_epoch, self.epoch_start = {}, 0, self.seconds

    def add(self, values: dict[str, float]) -> None:
        """Add one step's sums."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def means(self) -> dict[str, float]:
        """Means over the images of the epoch so far."""
        images = max(1.0, self.sums.get("images", 0.0))
        return {name: value / images for name, value in self.sums.items() if name != "images"}

    def improved(self, accuracy: float, min_delta: float) -> bool:
        """Count an epoch; True if its validation accuracy exceeds the best by more than `min_delta`."""
        better = self.best_accuracy is None or accuracy > self.best_accuracy + min_delta
        self.waited = 0 if better else self.waited + 1
        if better:
            self.best_accuracy, self.best_step, self.best_epoch = accuracy, self.step, self.epoch
        return better

    def to_json(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return asdict(self)


class Reporter:
    """Progress callbacks; the base class ignores them."""

    def plan(self, estimate: Callable[[], dict[str, Any]]) -> None:
        """Called before anything is written; `estimate()` measures memory and time of the run (`estimate_run`)."""

    def start(self, facts: dict[str, Any]) -> None:
        """Called before the first step with the run's identity, sizes and backend."""

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        """Called after each step; `steps` is the number of steps in an epoch."""

    def validating(self, done: int, total: int) -> None:
        """Called after each batch of validation images."""

    def epoch(self, record: dict[str, Any]) -> None:
        """Called after each epoch with its line of metrics."""

    def note(self, message: str) -> None:
        """Called with a message for the user."""

    def close(self) -> None:
        """Called once at the end."""


CALLBACKS = ("plan", "start", "step", "validating", "epoch", "note", "close")


class GuardedReporter(Reporter):
    """Forwards every callback; when the terminal or pipe behind it is gone, reporting ends and training does not."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        for name in CALLBACKS:
            setattr(self, name, functools.partial(self._call, name))

    def _call(self, name: str, *args: Any) -> None:
        try:
            getattr(self.reporter, name)(*args)
        except (OSError, SystemExit):  # rich exits on a broken pipe
            self.reporter = Reporter()
