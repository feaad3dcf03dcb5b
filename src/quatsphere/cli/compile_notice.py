"""What is said while kernels are compiled: a spinner on a terminal, one line elsewhere, nothing from a warm cache."""

from __future__ import annotations

import threading
from typing import Any

from quatsphere.runtime import compilation

TEXT = "compiling kernels, once, about 40 s"
PATIENCE = 2.0
"""Seconds after which a compilation is mentioned; the small loops take less."""


class CompileNotice:
    """Watches the compilations of a command; a bar that is on the screen shows its own spinner instead."""

    def __init__(self) -> None:
        self._said = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(PATIENCE, self._show)
        self._spinner: Any = None

    def __call__(self, begins: bool) -> None:
        """A compilation begins or ends."""
        if begins:
            self._timer = threading.Timer(PATIENCE, self._show)
            self._timer.daemon = True
            self._timer.start()
            return
        self._timer.cancel()
        with self._lock:
            if self._spinner is not None:
                self._spinner.stop()
            self._spinner = None

    def _show(self) -> None:
        from rich.console import Console

        from quatsphere.cli.console import Bars, note

        console = Console(stderr=True)
        with self._lock:
            if not compilation.current:
                return
            if not console.is_terminal:
                if not self._said:
                    note(TEXT)
                self._said = True
            elif not Bars.shown:
                self._spinner = console.status(TEXT)
                self._spinner.start()
