"""Each epoch's metrics in TensorBoard, Weights & Biases or MLflow, chosen by `train.track`.

Every writer is an extra (`track`, `track-wandb`, `track-mlflow`) and is imported only when it is chosen. A writer that
fails costs its curves, not the run: `metrics.jsonl` has the same numbers.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol

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


class Tracker:
    """Receives the record of each epoch; the base class ignores it."""

    def log(self, record: Mapping[str, Any]) -> None:
        """Log every number of an epoch's record."""

    def close(self) -> None:
        """Called once at the end."""


class Writer(Protocol):
    """A tracker's own interface: scalars by name, at a step."""

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Write the scalars of one step."""

    def close(self) -> None:
        """Flush and close."""


class GuardedTracker(Tracker):
    """Passes scalars to a writer; the first error is reported, and none ends the run."""

    def __init__(self, name: str, writer: Writer, note: Callable[[str], None]) -> None:
        self.name, self.writer, self.note = name, writer, note
        self._failed = False

    def log(self, record: Mapping[str, Any]) -> None:
        """Write every number of the record as a scalar, lists by index."""
        self._try(lambda: self.writer.write(record["step"], dict(_scalars("", record))))

    def close(self) -> None:
        """Close the writer."""
        self._try(self.writer.close)

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            if not self._failed:
                self.note(f"{self.name} failed ({_one_line(error)}); training continues, metrics.jsonl has the numbers")
            self._failed = True


class TensorBoardWriter:
    """Event files in the folder `events` of the run."""

    def __init__(self, config: RunConfig, run: RunFolder, step: int) -> None:
        """Open the log; events after `step`, of an abandoned continuation, are removed."""
        module = import_module("torch.utils.tensorboard")
        self.events: Any = module.SummaryWriter(str(run.path / "events"), purge_step=step + 1)

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Write one event per scalar."""
        for name, value in scalars.items():
            self.events.add_scalar(name, value, step)
        self.events.flush()

    def close(self) -> None:
        """Close the file."""
        self.events.close()


class WandbWriter:
    """A run of Weights & Biases, kept in the folder `wandb` of the run; WANDB_MODE=offline sends nothing."""

    def __init__(self, config: RunConfig, run: RunFolder, step: int) -> None:
        wandb = import_module("wandb")
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=str(run.path),
            name=run.name,
            id=_identity(run, step, "wandb"),
            resume="allow",
            config=flat_settings(config),
            settings=wandb.Settings(silent=True, console="off"),
        )
        _remember(run, "wandb", self.run.id)
        self.run.define_metric("*", step_metric="step")  # a resumed run may repeat steps

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Log the scalars; one of them is `step`."""
        self.run.log({**scalars, "step": step})

    def close(self) -> None:
        """Finish the run."""
        self.run.finish()


class MlflowWriter:
    """A run of MLflow at MLFLOW_TRACKING_URI, or in the folder `mlruns` of the run."""

    def __init__(self, config: RunConfig, run: RunFolder, step: int) -> None:
        entities = import_module("mlflow.entities")
        self.metric: Any = entities.Metric
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            uri = (run.path.absolute() / "mlruns").as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow prefers a database and refuses otherwise
        self.client: Any = import_module("mlflow.tracking").MlflowClient(tracking_uri=uri)
        self.id = _identity(run, step, "mlflow") or self._create(config, run.name, entities.Param)
        _remember(run, "mlflow", self.id)

    def _create(self, config: RunConfig, name: str, param: Any) -> str:
        """Create a run with all settings as parameters and return its id."""
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self.client.get_experiment_by_name(experiment)
        experiment_id = found.experiment_id if found else self.client.create_experiment(experiment)
        created: str = self.client.create_run(experiment_id, run_name=name).info.run_id
        self.client.log_batch(created, params=[param(key, str(value)) for key, value in flat_settings(config).items()])
        return created

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Log the scalars in one call or a few."""
        now = int(time.time() * 1000)
        metrics = [self.metric(name, value, now, step) for name, value in scalars.items()]
        for start in range(0, len(metrics), MLFLOW_BATCH):
            self.client.log_batch(self.id, metrics[start : start + MLFLOW_BATCH])

    def close(self) -> None:
        """Mark the run as finished."""
        self.client.set_terminated(self.id)


WRITERS: dict[str, Callable[[RunConfig, RunFolder, int], Writer]] = {
    "tensorboard": TensorBoardWriter,
    "wandb": WandbWriter,
    "mlflow": MlflowWriter,
}
PACKAGES = {
    "tensorboard": ("torch.utils.tensorboard", "TensorBoard", "track"),
    "wandb": ("wandb", "Weights & Biases", "track-wandb"),
    "mlflow": ("mlflow.tracking", "MLflow", "track-mlflow"),
}
"""Tracker -> module, name, extra."""


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
        return GuardedTracker(name, WRITERS[name](config, run, step), note)
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


def _remember(run: RunFolder, name: str, identity: str) -> None:
    write_json(run.path / IDENTITY, {name: identity})


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _scalars(prefix: str, value: Any) -> list[tuple[str, float]]:
    if isinstance(value, Mapping):
        return [pair for key, inner in value.items() for pair in _scalars(f"{prefix}/{key}".strip("/"), inner)]
    if isinstance(value, list):
        return [pair for index, inner in enumerate(value) for pair in _scalars(f"{prefix}/{index}", inner)]
    return [(prefix, float(value))] if isinstance(value, (int, float)) else []
