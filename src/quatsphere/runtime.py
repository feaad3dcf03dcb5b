"""Process-wide state: standard streams, memory allocator, exit, time spent compiling kernels, plugins."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from quatsphere.errors import ConfigError, QuatsphereError

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
"""Parameters of `mallopt`, from glibc's malloc.h."""


def disable_malloc_trimming() -> bool:
    """Make malloc keep freed memory instead of returning it to the system; False if the C library cannot.

    By default glibc maps every large block again, and the system zeroes each page when it is first touched, which takes
    a tenth of a training step. Only commands and their workers call this, never an import: it affects the process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    settings = ((MMAP_MAX, 0), (TRIM_THRESHOLD, -1), (TOP_PAD, 64 * 2**20))
    return all(mallopt(name, value) == 1 for name, value in settings)


def open_streams() -> None:
    """Connect standard streams that are closed, as for daemons, to the null device.

    Otherwise a checkpoint could get the number of stderr, on which libraries in C print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))  # the lowest number that is free


def print_stderr(text: str) -> None:
    """Print a line on stderr; if its terminal, pipe or disk is gone, it and all later ones are discarded."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        discard_stderr()


def discard_stderr() -> None:
    """Connect stderr to the null device, so that flushing its buffer cannot fail again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


end_process: Callable[[QuatsphereError], None] | None = None
"""Prints an error and ends the process at once, from any thread; None where the process is not the command's."""


class Compilation:
    """Stopwatch of compilations, nested ones counted once, loads from the disk cache not counted.

    `watch` is called with True when a compilation starts and with False when it ends.
    """

    def __init__(self) -> None:
        self.watch: Callable[[bool], None] = lambda begins: None
        self._depth = 0
        self._begun = self._finished = 0.0

    def begin(self) -> None:
        """Note the start of a compilation."""
        self._depth += 1
        if self._depth == 1:
            self._begun = time.monotonic()
            self.watch(True)

    def end(self) -> None:
        """Note the end of a compilation."""
        self._depth -= 1
        if self._depth == 0:
            self._finished += time.monotonic() - self._begun
            self.watch(False)

    @property
    def current(self) -> float:
        """Seconds since the current compilation began, 0 if there is none."""
        return time.monotonic() - self._begun if self._depth else 0.0

    @property
    def seconds(self) -> float:
        """Seconds of all compilations, including the current one."""
        return self._finished + self.current


compilation = Compilation()


def working_time() -> float:
    """Monotonic clock in seconds that stands still during compilations."""
    return time.monotonic() - compilation.seconds


PLUGINS = "QUATSPHERE_PLUGINS"
"""Environment variable with the plugins of this command, for the worker processes it starts."""
_loaded: set[Path] = set()


def load_plugins(paths: Iterable[str] | None = None) -> None:
    """Import Python files of the user, once each, so that they can register what they add; errors are one line.

    Worker processes call this without paths and load the plugins of the command that started them.
    """
    inherited = filter(None, os.environ.get(PLUGINS, "").split(os.pathsep))
    for path in inherited if paths is None else paths:
        file = Path(path).absolute()
        if file in _loaded:
            continue
        name = f"quatsphere_plugin_{len(_loaded)}_{file.stem}"
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None or not file.is_file():
            raise ConfigError(f"no Python file {str(path)!r:.120} for --plugin; name a file that ends in .py")
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            line = [frame.lineno for frame in frames if frame.filename == str(file)] or [getattr(error, "lineno", 1)]
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise ConfigError(f"plugin {path} fails at line {line[-1]} ({reason}); correct the file") from error
        _loaded.add(file)
        os.environ[PLUGINS] = os.pathsep.join(map(str, sorted(_loaded)))
