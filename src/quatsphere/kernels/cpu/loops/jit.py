"""Numba decorators and the on-disk cache of compiled code."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import config
from numba.core import event as events
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

from quatsphere.runtime import compilation

INTERNAL: dict[str, Any] = {
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "error_model": "numpy",
    "_nrt": False,
}
"""Options of functions without a Python entry point, which halves the time to compile."""


def has_avx512() -> bool:
    """Return True if Numba's target processor, which NUMBA_CPU_FEATURES may override, has 32 registers of 16 floats."""
    features = getattr(config, "CPU_FEATURES", None)
    return "+avx512f" in (get_host_cpu_features() if features is None else features)


def inlined(function: Callable[..., Any]) -> Any:
    """Decorator for functions that only compiled code calls, always inlined.

    `inspect.unwrap` removes the wrapper that jaxtyping adds under pytest.
    """
    return numba.njit(**INTERNAL, forceinline=True)(inspect.unwrap(function))


def not_inlined(function: Callable[..., Any]) -> Any:
    """Decorator like `inlined` that keeps the call: large loops optimise best when compiled separately."""
    return numba.njit(**INTERNAL)(inspect.unwrap(function))


def instruction(function: Callable[..., Any]) -> Any:
    """Decorator for functions that emit LLVM code."""
    return intrinsic(inspect.unwrap(function))


class _CompileListener(events.Listener):
    """Forwards Numba's compile events; loading from the disk cache does not trigger them."""

    def on_start(self, event: Any) -> None:
        compilation.begin()

    def on_end(self, event: Any) -> None:
        compilation.end()


events.register("numba:compile", _CompileListener())


def compiled(function: Callable[..., None]) -> Any:
    """Decorator for functions that Python calls: compiled without the GIL and cached on disk.

    Numba's cache only notices changes of the file that defines the function. All files of this package are therefore
    added to the version that it compares before it unpickles classes that may no longer exist. Without a writable
    cache folder every process compiles anew.
    """
    bare = inspect.unwrap(function)
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
    try:
        dispatcher: Any = numba.njit(bare, cache=True, **options)
    except RuntimeError:
        return numba.njit(bare, **options)
    files = sorted(Path(__file__).parent.glob("*.py"))
    stamp = tuple((file.name, file.stat().st_mtime, file.stat().st_size) for file in files)
    cache = dispatcher._cache._cache_file
    cache._version = cache._version, stamp
    return dispatcher
