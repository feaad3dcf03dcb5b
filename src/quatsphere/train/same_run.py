"""Whether a start is the same run as the folder it wants to go on with: settings, data, circumstances."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from quatsphere.config import RunConfig, TrainConfig
from quatsphere.errors import CheckpointError, ConfigError
from quatsphere.files.checkpoint import Checkpoint
from quatsphere.files.run_folder import RunFolder
from quatsphere.files.safe_yaml import read_yaml
from quatsphere.train.identity import circumstances, config_to_dict

MAY_CHANGE = {"data.root", "model.backend"} | {
    f"train.{name}"
    for name in ("device", "threads", "compile", "checkpoint_steps", "checkpoint_seconds", "keep", "tensorboard")
}
"""Settings a resumed run may change without becoming another run."""
FROM_DATA = {"model.image_size", "model.in_channels", "model.num_classes"}
"""Settings that training takes from the data, whatever was asked for."""


def require_same_run(config: RunConfig, run: RunFolder, *, fitted: bool = False) -> None:
    """A resumed run must be the same run: any other difference is listed side by side.

    `fitted` says that the configuration knows the data already. A field younger than the run counts as its default.
    """
    stored, asked = flatten(read_yaml(run.config)), flatten(config_to_dict(config))
    if stored.get("model.name") == config.model.name:
        stored = {**_defaults(config), **stored}
    free = MAY_CHANGE if fitted else MAY_CHANGE | FROM_DATA
    differing = [
        f"{key}: {stored.get(key)!r} in the run, {asked.get(key)!r} now"
        for key in {**stored, **asked}
        if key not in free and stored.get(key) != asked.get(key)
    ]
    if differing:
        more = f" and {len(differing) - 10} more" if len(differing) > 10 else ""
        raise ConfigError(
            f"run '{run.name}' has other settings ({'; '.join(differing[:10])}{more}); use another --run-dir"
        )


def _defaults(config: RunConfig) -> dict[str, Any]:
    """Default value of every setting: what a run that is older than a setting was trained with."""
    return flatten(config_to_dict(RunConfig(model=type(config.model)())))


def require_same_data(checkpoint: Checkpoint, fingerprint: str, *, accept_change: bool) -> None:
    """The data must be what the run was trained on so far, unless the user knows better."""
    stored = checkpoint.meta["fingerprint"]
    if stored != fingerprint and not accept_change:
        raise CheckpointError(
            f"the data changed since this run started ({stored[:12]} -> {fingerprint[:12]}); "
            "restore it, or go on with --accept-data-change"
        )


def say_what_changed(checkpoint: Checkpoint, world: int, say: Callable[[str], None]) -> None:
    """One line if something that decides the last bits is not as it was."""
    stored, now = checkpoint.meta.get("circumstances", {}), circumstances(world)
    changed = [f"{key} {stored.get(key)} -> {value}" for key, value in now.items() if stored.get(key) != value]
    if changed:
        say(f"bit-identity is not promised, the checkpoint was written elsewhere ({', '.join(changed)})")


def fix_threads(config: TrainConfig, run: RunFolder, *, resume: bool) -> TrainConfig:
    """With `deterministic` the thread count is a setting: that of the run, or today's where it begins."""
    if not config.deterministic or config.threads is not None:
        return config
    stored = flatten(read_yaml(run.config)).get("train.threads") if resume and run.config.is_file() else None
    return dataclasses.replace(config, threads=stored or torch.get_num_threads())


def flatten(groups: dict[str, Any]) -> dict[str, Any]:
    """{'a': {'b': 1}} -> {'a.b': 1}; what is no group counts as a setting of that name."""
    named = {group: fields if isinstance(fields, dict) else {"": fields} for group, fields in groups.items()}
    return {f"{group}.{key}".rstrip("."): value for group, fields in named.items() for key, value in fields.items()}
