"""Memory and time of a run, estimated before it starts; memory that runs out; signals that stop a run."""

from __future__ import annotations

import copy
import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from quatsphere import runtime
from quatsphere.errors import QuatsphereError, ResourceError
from quatsphere.models import Model
from quatsphere.models.lattice import LatticeModel
from quatsphere.torch_operators import OPERATORS
from quatsphere.train.step import BrokenNumber, OptimisationStep

if TYPE_CHECKING:
    from quatsphere.train.trainer import Trainer

TIMED_STEPS = 2
"""Steps that are timed; one before them compiles kernels and is not counted."""
VALIDATION = 1 / 3
"""Cost of a validation image relative to a training image: a forward pass without its gradient."""
PIXEL_SAMPLES = 25
"""Points that a vertex samples of the image."""

# Memory and time.


def estimate_bytes(model: Model, batch: int) -> int:
    """Memory of a training step: parameters with gradients and moments, and the tensors saved for the backward pass.

    Saved tensors are counted with torch's hooks on a forward pass of one image in which the fused kernels compute
    nothing and are not compiled. Temporary tensors are not included.
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
        model.layout.refresh()  # a graph that is made during the pass would count
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}  # statistics of batches change
    own = [*model.parameters(), *buffers.values()]
    with _EmptyResults(), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        torch.func.functional_call(model, buffers, torch.zeros(shape, device=device))
    constant = {tensor.untyped_storage()._cdata for tensor in own}
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return 4 * weights + batch * sum(size for storage, size in saved.items() if storage not in constant)


class _EmptyResults(TorchDispatchMode):
    """Operators of this package return uninitialised tensors of the right shapes.

    `FakeTensorMode` does so for all operators, but imports torch's compiler, which takes longer than everything else.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True imports the compiler, too

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operator = OPERATORS.get(func.name())
        return func(*args, **(kwargs or {})) if operator is None else operator.fake(*args)


def estimate_run(trainer: Trainer) -> dict[str, Any]:
    """`bytes` of a step, `seconds` of the run (all epochs with validation), `samples` and `pixels` of an image.

    A copy of the model takes three steps on the first batch; the trainer and torch's generators are left as they are.
    """
    config, dataset = trainer.config, trainer.dataset
    model: Any = config.model
    images = trainer.dataset.train.images
    share = len(dataset.val) / max(1, len(dataset.train))
    return {
        "bytes": estimate_bytes(trainer.model, config.train.batch_size),
        "seconds": _step_seconds(trainer) * trainer.total_steps * (1 + VALIDATION * share),
        "epochs": config.train.epochs,
        "side": images.shape[-1],
        "samples": PIXEL_SAMPLES * getattr(model, "base_vertices", 0),
        "vertices": getattr(model, "base_vertices", 0),
        "shells": getattr(model, "shells", 0),
        "pixels": images.shape[-1] * images.shape[-2],
    }


def _step_seconds(trainer: Trainer) -> float:
    """Mean time of a step, augmentation included."""
    config, device = trainer.config, trainer.context.device
    with torch.random.fork_rng(devices=[]):
        step = OptimisationStep(
            copy.deepcopy(trainer.model).train(),
            dataclasses.replace(config.train, cuda_graph=False),  # too few steps to record one
            config.optim,
            trainer.total_steps,
            device=device,
        )
        times = []
        for number in range(1 + TIMED_STEPS):
            start = runtime.working_time()
            with suppress(BrokenNumber):  # the run itself stops at it and reports it
                step(trainer.batches.batch(0, 0, device), config.train.batch_size, number)
            times.append(runtime.working_time() - start)
    return sum(times[1:]) / TIMED_STEPS


@contextmanager
def memory_errors(model: Model, batch: int) -> Iterator[None]:
    """Turn any out-of-memory error into one line with the batch size and the estimate."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        words = str(error).lower()
        if not isinstance(error, MemoryError) and not any(w in words for w in ("memory", "bad_alloc")):
            raise
        try:
            estimate = f" (a step takes about {estimate_bytes(model, batch) / 2**30:.2f} GiB)"
        except (MemoryError, RuntimeError):
            estimate = ""
        raise ResourceError(
            f"out of memory at batch size {batch}{estimate}; the last checkpoint is intact: "
            "use a smaller --train.batch_size in another run, or more memory"
        ) from error


# Signals: the first SIGINT or SIGTERM finishes the step and saves, a second SIGINT stops at once.

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
FORCE_SECONDS = 3.0
"""Seconds after a signal until another thread ends the process, if the main thread has not reacted."""


class Interrupted(QuatsphereError):
    """The user or the system stopped the run; finished steps are saved."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class StopNow(BaseException):
    """Raised by the signal handler; a BaseException, so that no library's `except Exception` swallows it."""

    def __init__(self, number: int) -> None:
        self.number = number


class StopSwitch:
    """Signal handler that stores the signal for the training loop and, where no state can be torn, raises at once."""

    def __init__(self) -> None:
        self.signal_number = 0
        """Number of the signal to stop, 0 for none; the training loop reads it."""
        self.raises = True
        """True if a signal raises StopNow: while there is no work to save, and in `interruptible`."""
        self.has_work = False
        """True if a step has been taken, which must be saved before the process ends."""

    def defer(self) -> None:
        """Store signals for the training loop from now on: there is work to save."""
        self.raises, self.has_work = False, True

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raise StopNow at once in this block, which changes nothing that is saved but may compile kernels."""
        before, self.raises = self.raises, True
        try:
            yield
        finally:
            self.raises = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        again = self.signal_number == signal.SIGINT == number
        self.signal_number = number
        if again and self.has_work:
            raise KeyboardInterrupt
        if self.raises:
            raise StopNow(number)


@contextmanager
def stop_switch() -> Iterator[StopSwitch]:
    """Install a StopSwitch for SIGINT and SIGTERM and ignore SIGHUP, so that a closed terminal does not end the run."""
    switch = StopSwitch()
    if threading.current_thread() is not threading.main_thread():
        yield switch
        return
    handlers = {number: signal.signal(number, switch) for number in STOP_SIGNALS}
    if hasattr(signal, "SIGHUP"):
        handlers[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    report_dropped, sys.unraisablehook = sys.unraisablehook, _omit_stops(sys.unraisablehook)
    try:
        with _enforced(switch):
            yield switch
    except (StopNow, Exception) as error:  # a callback of the compiler drops a StopNow, and the compiler then fails
        if isinstance(error, Interrupted) or switch.has_work or not switch.signal_number:
            raise
        raise _nothing_lost(switch.signal_number) from None
    finally:
        sys.unraisablehook = report_dropped
        for number, old in handlers.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


def _omit_stops(report: Callable[[Any], object]) -> Callable[[Any], object]:
    """Report of exceptions that a finaliser or callback drops, without those that stop a run: the signal is stored."""
    return lambda dropped: None if issubclass(dropped.exc_type, StopNow) else report(dropped)


def _nothing_lost(number: int) -> Interrupted:
    return Interrupted(
        "stopped before the first step of this start, so nothing is lost; continue with --resume", number
    )


@contextmanager
def _enforced(switch: StopSwitch) -> Iterator[None]:
    """End the process if a signal has had no effect after `FORCE_SECONDS` and there is no work to save.

    Python calls a handler in the main thread between two instructions: not before a call into the compiler returns,
    and if that is inside a finaliser, what the handler raises is dropped. The number of a signal is therefore also
    written to a pipe, by Python's part in C at once, and read by another thread. Processes that belong to a caller
    of `train` are never ended.
    """
    end_process = runtime.end_process
    if end_process is None or os.name != "posix":
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    obeyed = threading.Event()

    def watch() -> None:
        with open(reader, "rb", buffering=0) as numbers:
            while number := numbers.read(1):
                if number[0] in STOP_SIGNALS and not obeyed.wait(FORCE_SECONDS) and not switch.has_work:
                    end_process(_nothing_lost(number[0]))

    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: obeyed.is_set() or signal.set_wakeup_fd(-1))  # its signals are not ours
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        obeyed.set()
        signal.set_wakeup_fd(before)
        os.close(writer)
