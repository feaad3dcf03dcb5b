"""A polite end: the first SIGINT or SIGTERM finishes the step and saves, the second SIGINT stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from quatsphere.errors import QuatsphereError


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
