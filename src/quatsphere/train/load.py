"""A finished or interrupted run, opened for reading: configuration, weights, classes, normalisation."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from quatsphere.cli.console import Ticker, note
from quatsphere.config import RunConfig
from quatsphere.config.resolve import config_from_dict
from quatsphere.data import Dataset
from quatsphere.errors import CheckpointError, ConfigError
from quatsphere.models import Model, build_model
from quatsphere.storage.checkpoint import Checkpoint, load_checkpoint, load_last_good, read_pointer
from quatsphere.storage.run_folder import RunFolder, nearest_run
from quatsphere.storage.safe_yaml import read_yaml
from quatsphere.storage.step_folder import DamagedCheckpoint, step_name, step_of, steps_in, title
from quatsphere.train.checkpointing import restore_weights
from quatsphere.train.run import load_data


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a run folder gives back."""

    run: RunFolder
    config: RunConfig
    model: Model
    step: int
    meta: dict[str, Any]


def open_run(path: str, which: str = "best") -> Trained:
    """The model of a run at a checkpoint: the best (or the last, if none is best yet), the last, or one by its step."""
    run = RunFolder(path, note)
    if not run.config.is_file():
        near = nearest_run(Path(path))
        hint = "name the folder of a run" if near is None else f"did you mean {near}?"
        raise CheckpointError(f"no run in {Path(path)} (looked for config.yaml); {hint}")
    config = stored_config(run.config)
    checkpoint = _checkpoint(run, which)
    model = build_model(config.model, seed=config.train.seed)
    restore_weights(model, checkpoint.weights, say=note)
    model.eval()
    return Trained(run, config, model, checkpoint.step, checkpoint.meta)


def data_of(trained: Trained, root: str | None = None) -> Dataset:
    """The data a run was trained on, from another place if need be; any other data is refused."""
    with Ticker("reading data") as ticker:
        config = trained.config.data if root is None else dataclasses.replace(trained.config.data, root=root)
        dataset = load_data(config, note, ticker)
    if dataset.fingerprint != trained.meta["fingerprint"]:
        raise CheckpointError(
            f"the data is not what the run was trained on ({dataset.fingerprint[:12]} instead of "
            f"{trained.meta['fingerprint'][:12]}); name the right files with --data.root"
        )
    return dataset


def stored_config(path: Path) -> RunConfig:
    """The configuration in a run's `config.yaml`."""
    stored = read_yaml(path)
    try:
        return config_from_dict(stored)
    except ConfigError as error:
        raise CheckpointError(f"not the settings of a run ({path}: {error}); restore the file") from error


def _checkpoint(run: RunFolder, which: str) -> Checkpoint:
    """The checkpoint asked for; an error names those that can be asked for instead."""
    paths = steps_in(run.checkpoints)
    best = read_pointer(run.checkpoints, "best")
    if not paths or (which == "best" and best is None):
        return _last(run)
    path = {"best": best, "last": paths[0]}.get(which) or run.checkpoints / step_name(int(which))
    others = ", ".join(str(step_of(other.name)) for other in paths if other != path)
    if path not in paths:
        raise CheckpointError(f"run '{run.name}' has no checkpoint {title(path)}; --checkpoint takes {others}")
    try:
        return load_checkpoint(path)
    except DamagedCheckpoint as damage:
        cure = f"load another checkpoint with --checkpoint {others}" if others else "no other is left, train it again"
        raise CheckpointError(f"{str(damage).rpartition('; ')[0]}; {cure}") from damage


def _last(run: RunFolder) -> Checkpoint:
    checkpoint = load_last_good(run.checkpoints, note) if run.checkpoints.is_dir() else None
    if checkpoint is None:
        raise CheckpointError(f"run '{run.name}' has no checkpoint yet; train it first")
    return checkpoint
