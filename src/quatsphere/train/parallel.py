"""Several processes as one: gradients summed in one flat buffer, settings compared before the first step."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from quatsphere.errors import DistributedError

TIMEOUT = "QUATSPHERE_TIMEOUT"
"""Seconds after which a silent process counts as lost (default 600)."""


@dataclass(frozen=True)
class Team:
    """This process's place among all that train one model; alone it is rank 0 of 1 and every method is trivial."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0

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
        flat = torch.cat([g.reshape(-1) for g in gradients])
        self._reduce(flat)
        offset = 0
        for gradient in gradients:
            gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
            offset += gradient.numel()

    def sum(self, values: Tensor) -> Tensor:
        """The element-wise sum over processes."""
        if self.world > 1:
            self._reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is up in any process."""
        return bool(self.sum(torch.tensor([float(flag)]))[0] > 0) if self.world > 1 else flag

    def share_buffers(self, buffers: Iterable[Tensor]) -> None:
        """Give every process rank 0's buffers (running statistics)."""
        if self.world > 1:
            for buffer in buffers:
                dist.broadcast(buffer, 0)

    def agree(self, what: str, value: str) -> None:
        """Fail at the start, with both values, if the processes were given different settings or data."""
        if self.world == 1:
            return
        found: list[str | None] = [None] * self.world
        dist.all_gather_object(found, value)
        for rank, other in enumerate(found):
            if other != found[0]:
                raise DistributedError(
                    f"rank {rank} has another {what} than rank 0 ({other} against {found[0]}); "
                    "start every process with the same command and data"
                )

    @staticmethod
    def _reduce(values: Tensor) -> None:
        try:
            dist.all_reduce(values)
        except RuntimeError as error:
            raise DistributedError(
                f"another process is gone ({str(error).splitlines()[0][:120]}); start again with --resume"
            ) from error


@contextmanager
def join_team() -> Iterator[Team]:
    """The team torchrun describes in the environment; alone where it does not."""
    if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
        yield Team()
        return
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    seconds = float(os.environ.get(TIMEOUT, "600"))
    dist.init_process_group(
        "nccl" if torch.cuda.is_available() else "gloo", timeout=datetime.timedelta(seconds=seconds)
    )
    try:
        yield Team(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))
    finally:
        dist.destroy_process_group()
