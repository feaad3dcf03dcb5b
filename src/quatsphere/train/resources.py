"""External limits: memory that runs out, and signals that stop a run."""

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

# Memory.


def estimate_bytes(model: Model, batch: int) -> int:
    """Memory of a training step: parameters with gradients and moments, and the tensors saved for the backward pass.

    Saved tensors are counted with torch's hooks on a forward pass of fake tensors, which have shapes and no values:
    nothing is computed and no kernel is compiled. Temporary tensors are not included.
    """
    config = model.config
    device = next(model.parameters()).device
    shape = (1, config.in_channels, config.image_size, config.image_size)
    saved: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage.nbytes()
        return tensor

    if isinstance(model, LatticeModel):
        model.layout.refresh()  # graphs follow from the values of positions, which fake tensors lack
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        # autograd saves some parameters as they are and others as their fakes
        own = [copy for t in chain(model.parameters(), model.buffers()) for copy in (t, mode.from_tensor(t))]
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            model(torch.zeros(shape, device=device))
    constant = {tensor.untyped_storage()._cdata for tensor in own}
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return 4 * weights + batch * sum(size for storage, size in saved.items() if storage not in constant)


@contextmanager
def memory_errors(model: Model, batch: int) -> Iterator[None]:
    """Turn any out-of-memory error into one line with the batch size and the estimate."""
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


# Signals: the first SIGINT or SIGTERM finishes the step and saves, a second SIGINT stops at once.


class Interrupted(QuatsphereError):
    """The user or the system stopped the run; finished steps are saved."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class _StopNow(BaseException):
    """Raised by the signal handler; a BaseException, so that no library's `except Exception` swallows it."""

    def __init__(self, number: int) -> None:
        self.number = number


class StopSwitch:
    """Signal handler that raises at once as long as there is no work to save, and later stores the signal."""

    def __init__(self) -> None:
        self.signal_number = 0
        """Number of the signal to stop, 0 for none; the training loop reads it."""
        self.deferred = False

    def defer(self) -> None:
        """From now on store signals for the training loop: there is work to save."""
        self.deferred = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if not self.deferred:
            raise _StopNow(number)
        if self.signal_number == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.signal_number = number


@contextmanager
def stop_switch() -> Iterator[StopSwitch]:
    """Install a StopSwitch for SIGINT and SIGTERM and ignore SIGHUP, so that a closed terminal does not end the run."""
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
    except _StopNow as stop:
        raise Interrupted(
            "stopped before the first step of this start, so nothing is lost; continue with --resume", stop.number
        ) from None
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)
