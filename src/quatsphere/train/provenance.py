"""Identity of a run: commit, versions, machine; and checks that a resumed run has the same settings and data."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
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
    """Commit of this package, with `+changes` if the tree differs; None outside a repository.

    Cached from the start of the run: the tree may change before its end.
    """
    folder = str(Path(quatsphere.__file__).parent)

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", folder) else "")
    except (OSError, subprocess.SubprocessError):
        return None


def versions() -> dict[str, str]:
    """Versions of the packages that the numbers depend on."""
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


def numeric_environment(world: int) -> dict[str, Any]:
    """Facts, beside configuration and data, that determine the last bits of a number."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processes": world,
        "processor": processor(),
    }


def processor() -> str:
    """Name of the CPU."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


MAY_CHANGE = {
    *(
        "data.root",
        "model.backend",
        "train.device",
        "train.threads",
        "train.compile",
        "train.cuda_graph",
        "train.track",
    ),
    *("train.checkpoint_steps", "train.checkpoint_seconds", "train.keep_checkpoints"),
}
"""Settings that may differ in a resumed run."""
FROM_DATA = {"model.image_size", "model.in_channels", "model.num_classes"}
"""Settings that training takes from the data."""


def differing_settings(
    stored: Mapping[str, Any], config: RunConfig, free: Collection[str] = MAY_CHANGE, where: str = "there"
) -> list[str]:
    """Settings that differ from stored ones, except `free` ones; one that is newer than these has its default."""
    if stored.get("model.name") == config.model.name:
        stored = {**flat_settings(RunConfig(model=type(config.model)())), **stored}
    requested = flat_settings(config)
    return [
        f"{key}: {stored.get(key)!r} {where}, {requested.get(key)!r} now"
        for key in {**stored, **requested}
        if key not in free and stored.get(key) != requested.get(key)
    ]


def require_same_run(config: RunConfig, run: RunFolder, *, fitted: bool = False) -> None:
    """Raise ConfigError, listing the differences, unless a run has the settings of `config`.

    `fitted` states that the configuration has the sizes of the data.
    """
    free = MAY_CHANGE if fitted else MAY_CHANGE | FROM_DATA
    differing = differing_settings(stored_settings(run), config, free, "in the run")
    if differing:
        more = f" and {len(differing) - 10} more" if len(differing) > 10 else ""
        raise ConfigError(
            f"run '{run.name}' has other settings ({'; '.join(differing[:10])}{more}); use another --run-dir"
        )


def require_same_data(checkpoint: Checkpoint, fingerprint: str, *, accept_change: bool) -> None:
    """Raise CheckpointError unless the data is what the run was trained on, or the user accepts the change."""
    stored = checkpoint.meta["fingerprint"]
    if stored != fingerprint and not accept_change:
        raise CheckpointError(
            f"the data changed since this run started ({stored[:12]} -> {fingerprint[:12]}); "
            "restore it, or continue with --accept-data-change"
        )


def note_environment_change(checkpoint: Checkpoint, world: int, note: Callable[[str], None]) -> None:
    """Note in one line if something that determines the last bits has changed since the checkpoint was written."""
    stored, now = checkpoint.meta.get("circumstances", {}), numeric_environment(world)
    changed = [f"{key} {stored.get(key)} -> {value}" for key, value in now.items() if stored.get(key) != value]
    if changed:
        note(f"last bits may differ: the checkpoint is from another environment ({', '.join(changed)})")


def resolve_threads(config: TrainConfig, run: RunFolder, *, resume: bool) -> TrainConfig:
    """With `deterministic`, set the number of threads: the run's when it is resumed, else the current one."""
    if not config.deterministic or config.threads is not None:
        return config
    stored = stored_settings(run).get("train.threads") if resume and run.config.is_file() else None
    return dataclasses.replace(config, threads=stored or torch.get_num_threads())


def stored_settings(run: RunFolder) -> dict[str, Any]:
    """Settings in a run's `config.yaml` as `group.field` -> value; a value outside a group keeps its name."""
    stored = read_yaml(run.config)
    groups = {group: fields if isinstance(fields, dict) else {"": fields} for group, fields in stored.items()}
    return rename({f"{g}.{name}".rstrip("."): value for g, fields in groups.items() for name, value in fields.items()})
