"""Who ran what where: the facts that make a number worth believing."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import safetensors
import torch

import quatsphere
from quatsphere.config import RunConfig


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


def config_to_dict(config: RunConfig) -> dict[str, Any]:
    """Groups and fields as plain values, in the order of the dataclasses; the model's name comes first."""
    plain = dataclasses.asdict(config)
    plain["model"] = {"name": config.model.name, **plain["model"]}
    return plain
