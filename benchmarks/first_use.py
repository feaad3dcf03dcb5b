"""CPU seconds of `quatsphere demo` from an empty cache of compiled code until its first training step has ended.

Usage: python benchmarks/first_use.py
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from typing import Any

with tempfile.TemporaryDirectory() as cache:
    os.environ["NUMBA_CACHE_DIR"] = cache
    from numba.core import event

    from quatsphere.cli import main
    from quatsphere.train.trainer import Trainer

    class Entries(event.Listener):
        """CPU seconds of every function that Python calls, inner ones included."""

        def __init__(self) -> None:
            self.started: list[float] = []
            self.seconds: dict[str, float] = {}
            self.functions = 0

        def on_start(self, event: Any) -> None:
            self.started.append(time.process_time())

        def on_end(self, event: Any) -> None:
            begun = self.started.pop()
            self.functions += 1
            if not self.started:
                self.seconds[event.data["dispatcher"].py_func.__name__] = time.process_time() - begun

    entries, train_step = Entries(), Trainer.train_step
    event.register("numba:compile", entries)

    def first_step(self: Trainer, step: int) -> None:
        before = time.process_time()
        train_step(self, step)
        print(f"{entries.functions} functions in {len(entries.seconds)} entries: ", end="")
        print(", ".join(f"{name} {seconds:.2f}" for name, seconds in entries.seconds.items()))
        now = time.process_time()
        print(f"before the step {before:.2f}, step {now - before:.2f}, sum {now:.2f} CPU s")
        sys.exit()

    Trainer.train_step = first_step
    with tempfile.TemporaryDirectory() as folder:
        main(["demo", "--run-dir", os.path.join(folder, "demo"), *sys.argv[1:]])
