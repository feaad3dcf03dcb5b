"""Where every process of a team stands when the team hangs."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
import time


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
