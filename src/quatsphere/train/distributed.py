"""Data-parallel training in several processes: sums of gradients, checks that settings agree, detection of hangs."""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from quatsphere.errors import ConfigError, DistributedError, QuatsphereError

TIMEOUT = "QUATSPHERE_TIMEOUT"
"""Environment variable: seconds after which a silent process counts as lost (default 600)."""
T = TypeVar("T")


class HangWatchdog:
    """Prints this process's stacks on stderr, once, if it has exchanged nothing with the others for `seconds`.

    A separate thread keeps the time, so that not only the waiting processes but also the one that hangs prints a stack.
    """

    def __init__(self, rank: int, seconds: float) -> None:
        self.rank, self.seconds = rank, seconds
        self._last_exchange = time.monotonic()
        self._closed = threading.Event()
        self._printed = threading.Lock()
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def reset(self) -> None:
        """Restart the clock after a successful exchange."""
        self._last_exchange = time.monotonic()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()

    def print_stacks(self) -> None:
        """Print the stack of every thread, unless that was done before."""
        if self._printed.acquire(blocking=False):
            text = f"quatsphere: note: rank {self.rank} has exchanged nothing for {self.seconds:g} s; its stacks:\n"
            with contextlib.suppress(OSError):
                os.write(2, text.encode())
                faulthandler.dump_traceback(2)

    def _run(self) -> None:
        while not self._closed.wait(max(0.01, self._last_exchange + self.seconds - time.monotonic())):
            if time.monotonic() - self._last_exchange >= self.seconds:
                self.print_stacks()
                return


@dataclass(frozen=True)
class Team:
    """Processes that train one model, seen from one of them; a single process is rank 0 of 1."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    watchdog: HangWatchdog | None = None

    @property
    def is_rank_zero(self) -> bool:
        """True in the process that writes files and reports."""
        return self.rank == 0

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Sum the gradients of all processes in place, as one flat buffer.

        The model alone determines which parameters have gradients, so they are the same in every process.
        """
        if self.world == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = self.sum(torch.cat([g.reshape(-1) for g in gradients]))
        for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))

    def sum(self, values: Tensor) -> Tensor:
        """Sum a tensor over processes, in place."""
        if self.world > 1:
            with self._exchange():
                dist.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """True if the flag is set in any process."""
        return bool(self.sum(torch.tensor([float(flag)]))[0] > 0)

    def broadcast_buffers(self, buffers: Iterable[Tensor]) -> None:
        """Copy rank 0's buffers (running statistics) to every process."""
        if self.world > 1:
            with self._exchange():
                for buffer in buffers:
                    dist.broadcast(buffer, 0)

    def assert_same(self, what: str, value: str) -> None:
        """Raise DistributedError, with both values, if a process has another value than rank 0."""
        found: list[str | None] = [value] * self.world
        if self.world > 1:
            with self._exchange():
                dist.all_gather_object(found, value)
        for rank, other in enumerate(found):
            if other != found[0]:
                raise DistributedError(
                    f"rank {rank} has another {what} than rank 0 ({other} against {found[0]}); "
                    "start every process with the same command and data"
                )

    def on_rank_zero(self, action: Callable[[], T]) -> T:
        """Run `action` in rank 0 and return its result in every process; its failure is raised in all of them."""
        if self.world == 1:
            return action()
        box: list[Any] = [None, None]
        failure: QuatsphereError | None = None
        if self.is_rank_zero:
            try:
                box[0] = action()
            except QuatsphereError as error:
                failure, box[1] = error, str(error)
        with self._exchange():
            dist.broadcast_object_list(box, 0)
        if box[1] is not None:
            raise failure or DistributedError(f"rank 0 stopped: {box[1]}")
        result: T = box[0]
        return result

    def close(self) -> None:
        """Stop the watchdog: no exchange follows."""
        if self.watchdog is not None:
            self.watchdog.close()

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """Turn torch's errors about a lost or silent process into one line; print the stacks if it is silent."""
        try:
            yield
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0][:120]
            silent = "timed out" in reason.lower()
            if silent and self.watchdog is not None:
                self.watchdog.print_stacks()
            what = "another process does not answer" if silent else "another process is gone"
            raise DistributedError(f"{what} ({reason}); start again with --resume") from error
        if self.watchdog is not None:
            self.watchdog.reset()


@contextmanager
def join_team() -> Iterator[Team]:
    """Join the processes that torchrun describes in the environment; without torchrun, a team of one."""
    world = _number("WORLD_SIZE", 1, 1)
    if world == 1:
        yield Team()
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(f"WORLD_SIZE is set but {', '.join(missing)} is not; start the processes with torchrun")
    rank, local_rank, timeout = _number("RANK", 0, 0, world - 1), _number("LOCAL_RANK", 0, 0), _timeout()
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
    _init_process_group(rank, world, datetime.timedelta(seconds=timeout))
    team = Team(rank, world, local_rank, HangWatchdog(rank, timeout))
    try:
        yield team
    finally:
        team.close()
        dist.destroy_process_group()


def _init_process_group(rank: int, world: int, timeout: datetime.timedelta) -> None:
    """Start torch's process group; a busy port, an unknown host or a missing process is one line."""
    port = _number("MASTER_PORT", 0, 0, 65535)
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            timeout=timeout,
            store=_restart_store(timeout),
            rank=rank,
            world_size=world,
        )
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0][:120]
        raise DistributedError(
            f"the {world} processes cannot meet at {os.environ['MASTER_ADDR']}:{port} ({reason}); "
            "start all of them, with a port that is free"
        ) from error


def _restart_store(timeout: datetime.timedelta) -> dist.Store | None:
    """Under torchrun, its store with the number of this restart as prefix; else None, torch's default.

    torchrun keeps one store over all its restarts, which still holds the addresses of processes that are gone.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timeout)
    return dist.PrefixStore(f"quatsphere/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _number(name: str, default: int, minimum: int, maximum: int = 2**31 - 1) -> int:
    """Whole number from the environment."""
    text = os.environ.get(name, str(default))
    if not (text.isascii() and text.isdigit() and minimum <= int(text) <= maximum):
        raise ConfigError(f"{name} must be a whole number in {minimum}..{maximum}: got {text!r:.40}; use torchrun")
    return int(text)


def _timeout() -> float:
    text = os.environ.get(TIMEOUT, "600")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ConfigError(f"{TIMEOUT} must be a number of seconds > 0: got {text!r}")
    return seconds
