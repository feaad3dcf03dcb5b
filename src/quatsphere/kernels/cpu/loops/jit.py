"""Numba decorators and the on-disk cache of compiled code."""

import contextlib
import gc
import hashlib
import inspect
import os
import pickle
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import config
from numba.core import event as events
from numba.core.caching import IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary, get_host_cpu_features
from numba.core.codegen import ll as llvm
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import PassManager
from numba.extending import intrinsic, overload

from quatsphere.runtime import compilation

CODE = __file__
"""This file, whose owner and permissions the compiled code must have too."""


class _InnerLibrary(JITCodeLibrary):
    """Code of an inner function, which is linked, optimised and translated only as part of its entry points.

    Numba does all this for every function by itself, with all that it calls, and again in each caller; only the
    outermost result is ever called.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        """Leave the module as it is."""
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        """Return the module with all that it calls, for entry points of Numba's own kind."""
        if self._shared_module is None:
            libraries: dict[Any, None] = {}
            _add_callees_first(self, libraries)
            module = self._final_module.clone()
            for library in reversed([each for each in libraries if each is not self]):
                inner = isinstance(library, _InnerLibrary)
                module.link_in(library._final_module if inner else library._get_module_for_linking(), preserve=True)
            for function in module.functions:
                if not function.is_declaration and function.linkage == llvm.Linkage.external:
                    function.linkage = "linkonce_odr"
            self._shared_module = module
        return self._shared_module

    @property
    def codegen(self) -> Any:
        """This object, of which Numba needs `set_env` only."""
        return self

    def set_env(self, name: str, env: Any) -> None:
        """Do nothing: without machine code there is no place for an environment."""


class _EntryLibrary(JITCodeLibrary):
    """Code of an entry point with all inner functions that it needs, each linked once and optimised in one pass.

    The loops are written in vectors and unrolled by hand as far as it helps: LLVM's own unrolling doubles the code and
    brings nothing. Its vectoriser runs only where `vectorize` asks for it.
    """

    vectorize = False

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        """Link, optimise and translate."""
        libraries: dict[Any, None] = {}
        for library in self._linking_libraries:
            _add_callees_first(library, libraries)
        inner = [library for library in libraries if isinstance(library, _InnerLibrary)]
        for library in inner:
            self._final_module.link_in(library._final_module, preserve=True)
        for name in [function.name for library in inner for function in library.get_defined_functions()]:
            self._final_module.get_function(name).linkage = "internal"
        self._linking_libraries = [library for library in libraries if not isinstance(library, _InnerLibrary)]
        super().finalize()

    def _optimize_final_module(self) -> None:
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = options.loop_unrolling = options.loop_interleaving = self.vectorize
        options.slp_vectorization = False
        builder = llvm.create_pass_builder(self._codegen._tm, options)
        builder.getModulePassManager().run(self._final_module, builder)


def _add_callees_first(library: Any, found: dict[Any, None]) -> None:
    if library not in found:
        for callee in library._linking_libraries if isinstance(library, _InnerLibrary) else ():
            _add_callees_first(callee, found)
        found[library] = None


class _InnerCompiler(Compiler):
    """Numba's compiler for functions that only compiled code calls."""

    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
        super().__init__(typing, target, library or _InnerLibrary(target.codegen(), "inner"), *rest)

    def define_pipelines(self) -> list[Any]:
        """Return Numba's passes without those for closures, `with` and expressions of whole arrays."""
        shorter = PassManager("inner")
        for step, description in super().define_pipelines()[0].passes:
            if step.name() not in UNUSED_PASSES:
                shorter.add_pass(step, description)
        shorter.finalize()
        return [shorter]


UNUSED_PASSES = {"inline_closure_likes", "with_lifting", "nopython_rewrites", "inline_overloads", "inline_inlinables"}


class _EntryCompiler(Compiler):
    """Numba's compiler for functions that Python calls."""

    vectorize = False

    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
        library = _EntryLibrary(target.codegen(), "entry")
        library.vectorize = self.vectorize
        library.enable_object_caching()
        super().__init__(typing, target, library, *rest)


class _VectorizingCompiler(_EntryCompiler):
    """The same with LLVM's vectoriser."""

    vectorize = True


INTERNAL: dict[str, Any] = {
    "pipeline_class": _InnerCompiler,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "error_model": "numpy",
    "_nrt": False,
}
"""Options of functions without a Python entry point, which halves the time to compile."""


@cache
def host_has(feature: str) -> bool:
    """Return True if Numba's target processor, which NUMBA_CPU_FEATURES may override, has a feature of LLVM's name."""
    features = getattr(config, "CPU_FEATURES", None)
    return f"+{feature}" in (get_host_cpu_features() if features is None else features).split(",")


def has_avx512() -> bool:
    """Return True if Numba's target processor has 32 registers of 16 floats."""
    return host_has("avx512f")


def inlined(function: Callable[..., Any]) -> Any:
    """Decorator for functions that only compiled code calls, always inlined.

    `inspect.unwrap` removes the wrapper that jaxtyping adds under pytest.
    """
    return numba.njit(**INTERNAL, forceinline=True)(inspect.unwrap(function))


def not_inlined(function: Callable[..., Any]) -> Any:
    """Decorator like `inlined` that keeps the call: large loops optimise best when compiled separately."""
    return numba.njit(**INTERNAL)(inspect.unwrap(function))


def chosen_by_type(function: Callable[..., Any]) -> Any:
    """Decorator for a function that returns, from the types of its arguments, the code of `function`."""
    options: Any = INTERNAL | {"forceinline": True}
    return overload(function, jit_options=options, strict=False)


def instruction(function: Callable[..., Any]) -> Any:
    """Decorator for functions that emit LLVM code."""
    return intrinsic(inspect.unwrap(function))


class _CompileListener(events.Listener):
    """Forwards Numba's compile events; loading from the disk cache does not trigger them.

    Compiling makes many objects and little garbage: without the collector it takes a seventh less time.
    """

    def __init__(self) -> None:
        self._depth, self._collecting = 0, False

    def on_start(self, event: Any) -> None:
        if self._depth == 0:
            self._collecting = gc.isenabled()
            gc.disable()
        self._depth += 1
        compilation.begin()

    def on_end(self, event: Any) -> None:
        compilation.end()
        self._depth -= 1
        if self._depth == 0 and self._collecting:
            gc.enable()


events.register("numba:compile", _CompileListener())


class _SealedFiles(IndexDataCacheFile):
    """Cache files of one function with their SHA-256, compared before anything is unpickled.

    A file that is damaged or that somebody else could have written is dropped, and one that cannot be written is left
    out; the function is then compiled again.
    """

    def load(self, key: Any) -> Any:
        try:
            return super().load(key)
        except Exception:  # whatever a damaged file makes its readers raise
            self._drop()
            return None

    def save(self, key: Any, data: Any) -> None:
        for _ in range(2):  # the second time without the damaged index
            try:
                return super().save(key, data)
            except Exception:
                self._drop()
        return None

    def _drop(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._index_path)

    def _load_index(self) -> dict[Any, str]:
        try:
            data = _read_own(self._index_path)
        except FileNotFoundError:
            return {}
        version = pickle.dumps(self._version)
        if not data.startswith(version):
            return {}
        stamp, overloads = pickle.loads(_unsealed(self._index_name, data[len(version) :]))
        return overloads if stamp == self._source_stamp else {}

    def _save_index(self, overloads: dict[Any, str]) -> None:
        data = self._dump((self._source_stamp, overloads))
        with self._open_for_write(self._index_path) as file:
            file.write(pickle.dumps(self._version) + _sealed(self._index_name, data))

    def _load_data(self, name: str) -> Any:
        return pickle.loads(_unsealed(name, _read_own(self._data_path(name))))

    def _save_data(self, name: str, data: Any) -> None:
        with self._open_for_write(self._data_path(name)) as file:
            file.write(_sealed(name, self._dump(data)))


def _sealed(name: str, data: bytes) -> bytes:
    """Return `data` after its digest; the digest covers the file's name, so that files cannot be exchanged."""
    return hashlib.sha256(name.encode() + data).digest() + data


def _unsealed(name: str, data: bytes) -> bytes:
    if _sealed(name, data[32:]) != data:
        raise pickle.UnpicklingError(f"sha256 differs ({name})")
    return data[32:]


def _read_own(path: str) -> bytes:
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or not _is_own(status):
            raise PermissionError(f"not a file of this user alone ({path})")
        return file.read()


def _is_own(status: os.stat_result) -> bool:
    """Return True unless others could have written a cache file or folder; those who may write this file may.

    Compiled code is executed as it is, so it needs the same trust as the source.
    """
    if not hasattr(os, "getuid"):
        return True
    code = os.stat(CODE)
    allowed = code.st_mode if code.st_gid == status.st_gid else code.st_mode & ~stat.S_IWGRP
    shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) & ~allowed
    return status.st_uid in (os.getuid(), code.st_uid) and not shared


def auto_vectorized(function: Callable[..., None]) -> Any:
    """Decorator like `compiled` for loops over numbers, which LLVM turns into vectors."""
    return compiled(function, _VectorizingCompiler)


def compiled(function: Callable[..., None], compiler: type[Compiler] = _EntryCompiler) -> Any:
    """Decorator for functions that Python calls: compiled without the GIL and cached on disk.

    Numba's cache only notices changes of the file that defines the function. All files of this package are therefore
    added to the version that it compares before it unpickles classes that may no longer exist. Without a cache folder
    that this user, and nobody else, can write to, every process compiles anew.
    """
    bare = inspect.unwrap(function)
    options: dict[str, Any] = {
        "pipeline_class": compiler,
        "no_cfunc_wrapper": True,
        "nogil": True,
        "error_model": "numpy",
        "_nrt": False,
    }
    try:
        dispatcher: Any = numba.njit(bare, cache=True, **options)
        folder = os.stat(dispatcher._cache.cache_path)
    except (RuntimeError, OSError):
        return numba.njit(bare, **options)
    if not _is_own(folder):
        return numba.njit(bare, **options)
    files = sorted(Path(__file__).parent.glob("*.py"))
    stamp = tuple((file.name, file.stat().st_mtime, file.stat().st_size) for file in files)
    cache = dispatcher._cache._cache_file
    cache.__class__ = _SealedFiles
    cache._version = cache._version, stamp
    return dispatcher
