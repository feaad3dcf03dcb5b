"""Forward pass, losses and backward pass recorded as a CUDA graph, which the host launches as one operation.

Switched on by `train.cuda_graph`. No GPU has run it yet: tests check its results and its use of memory with a stand-in
for torch's CUDA graphs. A graph has fixed addresses, so inputs are copied to those of the recording, and
gradients and results are those of the recording. A recording that fails is reported once, and the steps run eagerly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

Results = TypeVar("Results")
WARM_UP = 3
"""Calls with inputs of one kind that run eagerly before one is recorded; torch needs some on a stream of their own."""
_log = logging.getLogger("quatsphere")


class Recorder(Protocol):
    """Interface of a recorder."""

    def warm_up_context(self) -> AbstractContextManager[None]:
        """Return the context of an eager call before a recording."""

    def record(self, run: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        """Return a function that repeats the operations of `run`, and its results; nothing is computed yet."""


class CudaRecorder:
    """CUDA graphs of torch."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)

    @contextmanager
    def warm_up_context(self) -> Iterator[None]:
        """Run on another stream, as torch's documentation demands before a recording."""
        here, other = torch.cuda.current_stream(self.stream.device), self.stream
        other.wait_stream(here)
        with torch.cuda.stream(other):
            yield
        here.wait_stream(other)

    def record(self, run: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        """Record a CUDA graph on the stream of this device; other threads may prepare batches meanwhile."""
        graph, stream = torch.cuda.CUDAGraph(), self.stream
        with (
            torch.cuda.device(stream.device),
            torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
        ):
            results = run()
        return graph.replay, results


class Recording(Generic[Results]):
    """Operations of a pass with the tensors that they read and write."""

    def __init__(
        self,
        recorder: Recorder,
        compute: Callable[..., Results],
        inputs: Sequence[Tensor],
        batch_size: int,
        parameters: Sequence[Tensor],
    ) -> None:
        self.inputs = [tensor.clone() for tensor in inputs]
        self.replay, self.results = recorder.record(lambda: compute(*self.inputs, batch_size))
        self.gradients = [(parameter, parameter.grad) for parameter in parameters]

    def __call__(self, inputs: Sequence[Tensor]) -> Results:
        """Repeat the pass with other values of the inputs; parameters get the gradients of the recording."""
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return self.results


class RecordedPass(Generic[Results]):
    """A function of (tensors, batch size) that sets gradients; recorded after WARM_UP consecutive calls of one kind.

    Calls are of one kind if their inputs have the same shapes and types, their batch sizes are equal, and `state()`,
    the object that the function reads besides inputs and parameters, is the same. Gradients must be None before a call.
    """

    def __init__(
        self,
        compute: Callable[..., Results],
        parameters: Sequence[Tensor],
        state: Callable[[], object],
        recorder: Recorder,
    ) -> None:
        self.compute, self.parameters, self.state, self.recorder = compute, parameters, state, recorder
        self.recording: Recording[Results] | None = None
        self._kind: tuple[Any, ...] = ()
        self._recorded: tuple[Any, ...] | None = None
        self._calls, self._failed = 0, False

    def __call__(self, *inputs: Tensor, batch_size: int) -> Results:
        """Replay, record or run eagerly."""
        kind = (batch_size, *((x.shape, x.dtype, x.device) for x in inputs)), self.state()
        if self.recording is not None and _same(kind, self._recorded):
            return self.recording(inputs)
        if self._recorded is not None and kind[1] is not self._recorded[1]:
            self.recording = self._recorded = None  # it cannot be used again: free its memory
        self._calls = self._calls + 1 if _same(kind, self._kind) else 1
        self._kind = kind
        if self._calls > WARM_UP and not self._failed and self._record(inputs, batch_size):
            assert self.recording is not None
            return self.recording(inputs)
        if self._failed:
            return self.compute(*inputs, batch_size)
        with self.recorder.warm_up_context():
            return self.compute(*inputs, batch_size)

    def _record(self, inputs: Sequence[Tensor], batch_size: int) -> bool:
        """Record the pass; False, with a warning, if that fails."""
        self.recording = None  # its memory can be used again
        try:
            self.recording = Recording(self.recorder, self.compute, inputs, batch_size, self.parameters)
        except RuntimeError as error:  # of the driver, or of an operation that cannot be recorded
            reason = (str(error).strip().splitlines() or ["no message"])[0]
            _log.warning("quatsphere: warning: no CUDA graph was recorded (%s); steps run eagerly", reason[:200])
            self._failed = True
            for parameter in self.parameters:
                parameter.grad = None
            return False
        self._recorded = self._kind
        return True


def _same(kind: tuple[Any, ...], other: tuple[Any, ...] | None) -> bool:
    """True if shapes, types and batch size are equal and the state is the same object."""
    return bool(other) and kind[0] == other[0] and kind[1] is other[1]  # type: ignore[index]
