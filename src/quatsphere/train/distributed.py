"""Several processes as one: gradients summed in one flat buffer, settings compared before the first step."""

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
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from quatsphere.errors import ConfigError, DistributedError, QuatsphereError


class Watch:
    """Prints this process's stack on stderr, once, when it has exchanged nothing with the others for `seconds`.

    A thread of its own looks, so that a process that hangs shows where; those that wait for it show that they wait.
    """

    def __init__(self, rank: int, seconds: float) -> None:
        self.rank, self.seconds = rank, seconds
        self._heard = time.monotonic()
        self._over = threading.Event()
        self._shown = threading.Lock()
        threading.Thread(target=self._look, name="watch", daemon=True).start()

    def heard(self) -> None:
        """An exchange with the others succeeded."""
        self._heard = time.monotonic()

    def end(self) -> None:
        """Look no more."""
        self._over.set()

    def show(self) -> None:
        """Print the stack of every thread, unless that was done before."""
        if self._shown.acquire(blocking=False):
            text = f"quatsphere: note: rank {self.rank} has exchanged nothing for {self.seconds:g} s; it stands at\n"
            with contextlib.suppress(OSError):
                os.write(2, text.encode())
                faulthandler.dump_traceback(2)

    def _look(self) -> None:
        while not self._over.wait(max(0.01, self._heard + self.seconds - time.monotonic())):
            if time.monotonic() - self._heard >= self.seconds:
                self.show()
                return


TIMEOUT = "QUATSPHERE_TIMEOUT"
"""Seconds after which a silent process counts as lost (default 600)."""
T = TypeVar("T")


@dataclass(frozen=True)
class Team:
    """This process's place among all that train one model; alone it is rank 0 of 1 and every method is trivial."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    watch: Watch | None = None

    @property
    def leads(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Add up the gradients of all processes, in place.

        A parameter without a gradient here has none anywhere: which ones get a gradient depends on the model alone.
        """
        if self.world == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = self.sum(torch.cat([g.reshape(-1) for g in gradients]))
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def sum(self, values: Tensor) -> Tensor:
        """The element-wise sum over processes."""
        if self.world > 1:
            with self._exchange():
                dist.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is up in any process."""
        return bool(self.sum(torch.tensor([float(flag)]))[0] > 0)

    def share_buffers(self, buffers: Iterable[Tensor]) -> None:
        """Give every process rank 0's buffers (running statistics)."""
        if self.world > 1:
            with self._exchange():
                for buffer in buffers:
                    dist.broadcast(buffer, 0)

    def agree(self, what: str, value: str) -> None:
        """Fail at the start, with both values, if the processes were given different settings or data."""
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

    def lead(self, action: Callable[[], T]) -> T:
        """Do something in rank 0 alone and give every process its result; a failure there is a failure of all."""
        if self.world == 1:
            return action()
        box: list[T | str | None] = [None, None]
        failure: QuatsphereError | None = None
        if self.leads:
            try:
                box[0] = action()
            except QuatsphereError as error:
                failure, box[1] = error, str(error)
        with self._exchange():
            dist.broadcast_object_list(box, 0)
        if box[1] is not None:
            raise failure or DistributedError(f"rank 0 stopped: {box[1]}")
        return box[0]  # type: ignore[return-value]

    def part(self) -> None:
        """No exchange comes after this one: silence is no hang any more."""
        if self.watch is not None:
            self.watch.end()

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """What torch raises when another process is gone or silent, in one line; of a hang also the stack."""
        try:
            yield
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0][:120]
            silent = "timed out" in reason.lower()
            if silent and self.watch is not None:
                self.watch.show()
            what = "another process does not answer" if silent else "another process is gone"
            raise DistributedError(f"{what} ({reason}); start again with --resume") from error
        if self.watch is not None:
            self.watch.heard()


@contextmanager
def join_team() -> Iterator[Team]:
    """The team torchrun describes in the environment; alone where it does not."""
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
    _meet(rank, world, datetime.timedelta(seconds=timeout))
    team = Team(rank, world, local_rank, Watch(rank, timeout))
    try:
        yield team
    finally:
        team.part()
        dist.destroy_process_group()


def _meet(rank: int, world: int, timeout: datetime.timedelta) -> None:
    """Make the process group; a busy port, an unknown host or a process that never comes is one line."""
    port = _number("MASTER_PORT", 0, 0, 65535)
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            timeout=timeout,
            store=_attempt_store(timeout),
            rank=rank,
            world_size=world,
        )
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0][:120]
        raise DistributedError(
            f"the {world} processes cannot meet at {os.environ['MASTER_ADDR']}:{port} ({reason}); "
            "start all of them, with a port that is free"
        ) from error


def _attempt_store(timeout: datetime.timedelta) -> dist.Store | None:
    """Where processes find each other: in torchrun's store, under the number of this attempt; else torch's choice.

    torchrun keeps one store over all its restarts, with addresses in it of processes that are gone.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timeout)
    return dist.PrefixStore(f"quatsphere/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _number(name: str, default: int, minimum: int, maximum: int = 2**31 - 1) -> int:
    """A whole number of the environment."""
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
