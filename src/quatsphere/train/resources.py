"""A polite end: the first SIGINT or SIGTERM finishes the step and saves, the second SIGINT stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from types import FrameType

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from quatsphere.errors import QuatsphereError, ResourceError
from quatsphere.models import Model
from quatsphere.models.lattice import LatticeModel


def estimate_bytes(model: Model, batch: int) -> int:
    """Parameters with gradients and moments, plus what the backward pass of `batch` images keeps.

    Saved tensors are counted with torch's own hooks on a forward pass of fake tensors, which have shapes and no
    values: nothing is computed and no kernel is compiled. Temporaries come on top.
    """
    config = model.config
    device = next(model.parameters()).device
    shape = (1, config.in_channels, config.image_size, config.image_size)
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage.nbytes()
        return tensor

    if isinstance(model, LatticeModel):
        model.layout.refresh()  # graphs follow from the values of positions, which fake tensors lack
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        # autograd saves some parameters as they are and others as their fakes
        own = [copy for tensor in _tensors(model) for copy in (tensor, mode.from_tensor(tensor))]
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(torch.zeros(shape, device=device))
    constant = {tensor.untyped_storage()._cdata for tensor in own}
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return 4 * weights + batch * sum(size for storage, size in saved.items() if storage not in constant)


def _tensors(model: Model) -> Iterator[Tensor]:
    """Parameters and buffers."""
    return chain(model.parameters(), model.buffers())


@contextmanager
def memory_errors(model: Model, batch: int) -> Iterator[None]:
    """Turn "out of memory", in whichever words it comes, into one line with the batch size and the estimate."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        words = str(error).lower()
        if not isinstance(error, MemoryError) and not any(w in words for w in ("memory", "bad_alloc")):
            raise
        raise ResourceError(
            f"out of memory at batch size {batch}{_estimate_text(model, batch)}; the last checkpoint is intact: "
            "use a smaller --train.batch_size in another run, or more memory"
        ) from error


def _estimate_text(model: Model, batch: int) -> str:
    try:
        return f" (a step takes about {estimate_bytes(model, batch) / 2**30:.2f} GiB)"
    except (MemoryError, RuntimeError):
        return ""


class Interrupted(QuatsphereError):
    """The user or the system asked the run to end; it was saved."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class _Leave(BaseException):
    """Raised out of whatever is going on; no `except Exception` of a library on the way may keep it."""

    def __init__(self, number: int) -> None:
        self.number = number


class StopSwitch:
    """Remembers the signal that asked for an end. As long as no work would be lost it does not wait: it raises."""

    def __init__(self) -> None:
        self.number = 0
        self.waits = False

    def wait_for_step(self) -> None:
        """From now on there is work to save: a signal waits until the loop asks for it."""
        self.waits = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """As a signal handler."""
        if not self.waits:
            raise _Leave(number)
        if self.number == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def stop_switch() -> Iterator[StopSwitch]:
    """A switch that listens to SIGINT and SIGTERM; a closed terminal (SIGHUP) does not end the run."""
    switch = StopSwitch()
    if threading.current_thread() is not threading.main_thread():
        yield switch
        return
    handlers = {signal.SIGINT: switch, signal.SIGTERM: switch}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    if hasattr(signal, "SIGHUP"):
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield switch
    except _Leave as leave:
        raise Interrupted(
            "stopped before the first step of this start, so nothing is lost; go on with --resume", leave.number
        ) from None
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)
