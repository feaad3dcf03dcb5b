"""Runs of two gloo processes, forked from this one or started by torchrun."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from helpers.tiny_runs import Process, as_words

from quatsphere.cli import main
from quatsphere.config import RunConfig


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def start_team(work: Callable[[int], int | None], folder: Path, **environment: str) -> list[Process]:
    """Start `work(rank)` in two processes with the environment variables of torchrun."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    environment = {"QUATSPHERE_TIMEOUT": "300", **place, **environment}

    def begin(rank: int) -> Process:
        own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        return Process(lambda: work(rank), folder / f"rank-{rank}.log", **own)

    return [begin(rank) for rank in (0, 1)]


def run_team(settings: RunConfig, run: Path, *more: str, **environment: str) -> list[Process]:
    """Start `quatsphere train` as torchrun does."""
    return start_team(lambda rank: main(as_words(settings, run, *more)), run.parent, **environment)


def codes(team: list[Process]) -> list[int]:
    return [process.wait() for process in team]


def texts(team: list[Process]) -> str:
    return "\n".join(process.text for process in team)


def torchrun(settings: RunConfig, run: Path, *options: str) -> subprocess.Popen[str]:
    """Start torchrun."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port", str(free_port())]
    return subprocess.Popen(
        [*words, *options, "-m", "quatsphere", *as_words(settings, run, "--resume")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


def children_of(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(word) for word in listed.stdout.split()]


def newest_step(run: Path) -> int:
    return max((int(path.name.split("-")[1]) for path in run.glob("checkpoints/step-??????")), default=0)
