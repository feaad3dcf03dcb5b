"""Progress of a run, the callbacks that report it, and trackers of its metrics.

`train.track` chooses TensorBoard, Weights & Biases or MLflow. Each is an extra (`track`, `track-wandb`, `track-mlflow`)
and is imported only when it is chosen. If a tracker fails, the run continues without it: `metrics.jsonl` has the same
numbers.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any

from quatsphere.config import RunConfig
from quatsphere.config.resolve import flat_settings
from quatsphere.errors import ConfigError
from quatsphere.storage.atomic import write_json
from quatsphere.storage.run_folder import RunFolder

PROJECT = "quatsphere"
"""Project of Weights & Biases and experiment of MLflow, unless WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME is set."""
IDENTITY = "tracking.json"
"""File of a run folder with the run's name at the tracker, which a resumed run continues."""
MLFLOW_BATCH = 1000
"""Number of metrics that MLflow accepts in one call."""


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


# Trackers: each writer returns the functions `write(step, scalars)` and `close()`.

Write = Callable[[int, dict[str, float]], None]
Writer = tuple[Write, Callable[[], None]]


def write_tensorboard(config: RunConfig, run: RunFolder, step: int) -> Writer:
    """Event files in the folder `events` of the run; events after `step`, of an abandoned continuation, are removed."""
    events: Any = import_module("torch.utils.tensorboard").SummaryWriter(str(run.path / "events"), purge_step=step + 1)

    def write(step: int, scalars: dict[str, float]) -> None:
        for name, value in scalars.items():
            events.add_scalar(name, value, step)
        events.flush()

    return write, events.close


def write_wandb(config: RunConfig, run: RunFolder, step: int) -> Writer:
    """A run of Weights & Biases, kept in the folder `wandb` of the run; WANDB_MODE=offline sends nothing."""
    wandb = import_module("wandb")
    opened: Any = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        dir=str(run.path),
        name=run.name,
        id=_identity(run, step, "wandb"),
        resume="allow",
        config=flat_settings(config),
        settings=wandb.Settings(silent=True, console="off"),
    )
    write_json(run.path / IDENTITY, {"wandb": opened.id})
    opened.define_metric("*", step_metric="step")  # a resumed run may repeat steps
    return lambda step, scalars: opened.log({**scalars, "step": step}), opened.finish


def write_mlflow(config: RunConfig, run: RunFolder, step: int) -> Writer:
    """A run of MLflow at MLFLOW_TRACKING_URI, or in the folder `mlruns` of the run, with all settings as parameters."""
    entities: Any = import_module("mlflow.entities")
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        uri = (run.path.absolute() / "mlruns").as_uri()
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow prefers a database and refuses otherwise
    client: Any = import_module("mlflow.tracking").MlflowClient(tracking_uri=uri)
    identity = _identity(run, step, "mlflow")
    if identity is None:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else client.create_experiment(name)
        identity = client.create_run(experiment, run_name=run.name).info.run_id
        settings = [entities.Param(key, str(value)) for key, value in flat_settings(config).items()]
        client.log_batch(identity, params=settings)
    write_json(run.path / IDENTITY, {"mlflow": identity})

    def write(step: int, scalars: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [entities.Metric(name, value, now, step) for name, value in scalars.items()]
        for start in range(0, len(metrics), MLFLOW_BATCH):
            client.log_batch(identity, metrics[start : start + MLFLOW_BATCH])

    return write, lambda: client.set_terminated(identity)


WRITERS: dict[str, Callable[[RunConfig, RunFolder, int], Writer]] = {
    "tensorboard": write_tensorboard,
    "wandb": write_wandb,
    "mlflow": write_mlflow,
}
PACKAGES = {
    "tensorboard": ("torch.utils.tensorboard", "TensorBoard", "track"),
    "wandb": ("wandb", "Weights & Biases", "track-wandb"),
    "mlflow": ("mlflow.tracking", "MLflow", "track-mlflow"),
}
"""Tracker -> module, name, extra."""


@dataclass
class Tracker:
    """Passes the record of each epoch to a writer, if there is one; its first error is noted, and none ends the run."""

    name: str = "none"
    writer: Writer | None = None
    note: Callable[[str], None] = print
    _failed: bool = False

    def log(self, record: Mapping[str, Any]) -> None:
        """Write every number of the record as a scalar, lists by index."""
        if self.writer is not None:
            self._try(self.writer[0], record["step"], dict(_scalars("", record)))

    def close(self) -> None:
        """Close the writer."""
        if self.writer is not None:
            self._try(self.writer[1])

    def _try(self, call: Callable[..., None], *args: Any) -> None:
        try:
            call(*args)
        except Exception as error:
            if not self._failed:
                self.note(f"{self.name} failed ({_one_line(error)}); training continues, metrics.jsonl has the numbers")
            self._failed = True


def require_tracker(name: str) -> None:
    """Raise ConfigError if the package of a tracker is not installed."""
    if name == "none":
        return
    module, title, extra = PACKAGES[name]
    try:
        import_module(module)
    except ImportError as error:
        raise ConfigError(f"train.track={name} needs {title}; pip install 'quatsphere[{extra}]'") from error


def open_tracker(config: RunConfig, run: RunFolder, step: int, note: Callable[[str], None]) -> Tracker:
    """Tracker of a run that begins or continues at `step`; ConfigError if it cannot be opened."""
    name = config.train.track
    if name == "none":
        return Tracker()
    try:
        return Tracker(name, WRITERS[name](config, run, step), note)
    except Exception as error:
        hint = "; log in with 'wandb login', or set WANDB_MODE=offline" if name == "wandb" else "; or leave it out"
        raise ConfigError(f"train.track={name} cannot start ({_one_line(error)}){hint}") from error


def _identity(run: RunFolder, step: int, name: str) -> str | None:
    """Identity that a continued run has at a tracker; None for a run that begins."""
    try:
        known = json.loads((run.path / IDENTITY).read_text()) if step else {}
    except (OSError, ValueError):
        return None
    identity = known.get(name) if isinstance(known, dict) else None
    return identity if isinstance(identity, str) else None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _scalars(prefix: str, value: Any) -> list[tuple[str, float]]:
    if isinstance(value, Mapping):
        return [pair for key, inner in value.items() for pair in _scalars(f"{prefix}/{key}".strip("/"), inner)]
    if isinstance(value, list):
        return [pair for index, inner in enumerate(value) for pair in _scalars(f"{prefix}/{index}", inner)]
    return [(prefix, float(value))] if isinstance(value, (int, float)) else []
