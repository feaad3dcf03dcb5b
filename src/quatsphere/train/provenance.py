"""Whether a start is the same run as the folder it wants to go on with: settings, data, circumstances."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import safetensors
import torch

import quatsphere
from quatsphere.config import RunConfig, TrainConfig
from quatsphere.config.resolve import flat_settings, rename
from quatsphere.errors import CheckpointError, ConfigError
from quatsphere.storage.checkpoint import Checkpoint
from quatsphere.storage.run_folder import RunFolder
from quatsphere.storage.safe_yaml import read_yaml


@functools.cache
def commit() -> str | None:
    """The commit this package runs from, `+changes` if the tree differs; none outside a repository.

    Asked once, when the run starts: at its end the tree may be another one.
    """
    folder = Path(quatsphere.__file__).parent
    try:
        words = ["git", "-C", str(folder)]
        head = subprocess.run([*words, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
        dirty = subprocess.run(
            [*words, "status", "--porcelain", "--", str(folder)],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")


def versions() -> dict[str, str]:
    """What the numbers depend on."""
    found = {
        "quatsphere": quatsphere.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "safetensors": safetensors.__version__,
    }
    try:
        return {**found, "numba": importlib.metadata.version("numba")}
    except importlib.metadata.PackageNotFoundError:
        return found


def environment(device: torch.device, world: int) -> dict[str, Any]:
    """Machine, versions, commit and command of a run."""
    return {
        "commit": commit(),
        "versions": versions(),
        "command": sys.argv,
        "platform": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "processes": world,
    }


def circumstances(world: int) -> dict[str, Any]:
    """What decides the last bits of a number beside configuration and data."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processes": world,
        "processor": processor(),
    }


def processor() -> str:
    """The CPU's name, as well as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


MAY_CHANGE = {"data.root", "model.backend"} | {
    f"train.{name}"
    for name in (
        "device",
        "threads",
        "compile",
        "checkpoint_steps",
        "checkpoint_seconds",
        "keep_checkpoints",
        "tensorboard",
    )
}
"""Settings a resumed run may change without becoming another run."""
FROM_DATA = {"model.image_size", "model.in_channels", "model.num_classes"}
"""Settings that training takes from the data, whatever was asked for."""


def require_same_run(config: RunConfig, run: RunFolder, *, fitted: bool = False) -> None:
    """A resumed run must be the same run: any other difference is listed side by side.

    `fitted` says that the configuration knows the data already. A field younger than the run counts as its default.
    """
    stored, asked = stored_settings(run), flat_settings(config)
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
    return flat_settings(RunConfig(model=type(config.model)()))


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
    stored = stored_settings(run).get("train.threads") if resume and run.config.is_file() else None
    return dataclasses.replace(config, threads=stored or torch.get_num_threads())


def stored_settings(run: RunFolder) -> dict[str, Any]:
    """Settings in a run's `config.yaml` as `group.field` -> value; a value outside a group keeps its name."""
    stored = read_yaml(run.config)
    groups = {group: fields if isinstance(fields, dict) else {"": fields} for group, fields in stored.items()}
    return rename({f"{g}.{name}".rstrip("."): value for g, fields in groups.items() for name, value in fields.items()})
