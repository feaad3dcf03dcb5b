"""Parallel loops on torch's OpenMP threads, from Python (`parallel_for`) and from compiled code (`parallel_region`).

torch's idle OpenMP workers spin for milliseconds after each of its loops, and threads of any other pool (Numba's,
Python's) compete with them for the cores. The loops therefore run on torch's workers: GOMP_parallel of the OpenMP
library that torch has loaded starts a region whose body calls back; compiled code then releases the GIL. Python threads
are the fallback where that library is missing (not Linux) and in a forked child (where its state is invalid).

Results do not depend on the number of threads: the parts are disjoint, and the loops fix the order of every sum.
"""

import ctypes
import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import types
from numba.core import cgutils

from quatsphere.kernels.cpu.loops.jit import instruction
from quatsphere.kernels.cpu.loops.simd import address_of, ir

Span = tuple[int, int]
"""(start, stop) of a range."""
MIN_WORK_PER_THREAD = 2**17
"""Output elements that justify another thread: starting one costs a few tenths of a millisecond."""
CACHE_LINE_BYTES = 64
MAX_SCRATCH_BYTES, MAX_SCRATCH_ENTRIES = 2**22, 64
"""Largest scratch that is cached, and maximum number of cached ones."""
_REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_pools: dict[int, ThreadPoolExecutor] = {}
_cached = threading.local()


def _find_openmp() -> ctypes.CDLL | None:
    """Return the OpenMP library that torch has loaded, if it has GNU's interface."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("lib[gi]omp*.so*")):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "GOMP_parallel"):
            return library
    return None


_openmp = _find_openmp()


def openmp_address() -> int:
    """Return the address of GOMP_parallel for `parallel_region`, 0 if there is none."""
    return 0 if _openmp is None else ctypes.cast(_openmp.GOMP_parallel, ctypes.c_void_p).value or 0


def _after_fork() -> None:
    global _openmp
    _openmp = None
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def thread_count(size: int) -> int:
    """Number of threads to use for an output of `size` elements."""
    return max(1, min(torch.get_num_threads(), size // MIN_WORK_PER_THREAD))


class ScratchSpec(NamedTuple):
    """Scratch arrays of a thread, allocated by make(*key) as a tuple of tuples of arrays."""

    make: Callable[..., tuple[Any, ...]]
    key: tuple[Any, ...]


NO_SCRATCH = ScratchSpec(tuple, ())


def parallel_for(
    function: Callable[..., None], count: int, size: int, *arguments: Any, scratch: ScratchSpec = NO_SCRATCH
) -> None:
    """Call function((start, stop), *arguments, *scratch) for contiguous parts of range(count), one per thread, for an
    output of `size` elements."""
    parts = min(thread_count(size), max(1, count))
    calls = [
        ((count * part // parts, count * (part + 1) // parts), *arguments, *scratch_for(part, scratch))
        for part in range(parts)
    ]
    if parts == 1:
        function(*calls[0])
    elif _openmp is not None:
        _run_on_openmp(_openmp, function, calls)
    else:
        if parts not in _pools:
            _pools[parts] = ThreadPoolExecutor(parts, thread_name_prefix="quatsphere")
        list(_pools[parts].map(lambda call: function(*call), calls))


def scratch_for(part: int, spec: ScratchSpec) -> tuple[Any, ...]:
    """Return the scratch of one part; small ones are cached per calling thread, which waits for all parts."""
    if not spec.key:
        return ()
    cache: OrderedDict[Any, tuple[Any, ...]] = _cached.__dict__.setdefault("scratch", OrderedDict())
    key = (part, spec)
    if key in cache:
        cache.move_to_end(key)
        return cache[key]
    made = spec.make(*spec.key)
    if sum(array.nbytes for arrays in made for array in arrays) <= MAX_SCRATCH_BYTES:
        cache[key] = made
        if len(cache) > MAX_SCRATCH_ENTRIES:
            cache.popitem(last=False)
    return made


def _run_on_openmp(library: ctypes.CDLL, function: Callable[..., None], calls: list[tuple[Any, ...]]) -> None:
    """Run the calls in one parallel region, several per thread if the team is smaller; raise the first error."""
    errors: list[BaseException] = []

    def region(_: Any) -> None:
        try:
            for call in calls[library.omp_get_thread_num() :: library.omp_get_num_threads()]:
                function(*call)
        except BaseException as error:
            errors.append(error)

    library.GOMP_parallel(_REGION(region), None, len(calls), 0)
    if errors:
        raise errors[0]


def allocate(counts: Sequence[int], dtype: Any, threads: int = 1) -> list[Any]:
    """Uninitialised arrays of `counts` elements per thread, each thread's part aligned to a cache line."""
    size = np.dtype(dtype).itemsize
    counts = counts if threads == 1 else [threads * (n + -n % (CACHE_LINE_BYTES // size)) for n in counts]
    sizes = [count * size + -count * size % CACHE_LINE_BYTES for count in counts]
    raw = np.empty(sum(sizes) + CACHE_LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % CACHE_LINE_BYTES
    memory = raw[start : start + sum(sizes)].view(dtype)
    starts = [end // size for end in itertools.accumulate(sizes, initial=0)]
    return [memory[start : start + count] for start, count in zip(starts, counts, strict=False)]


@instruction
def parallel_region(typingctx: Any, openmp: Any, threads: Any, function: Any, arguments: Any) -> Any:
    """Call function(arguments) in every thread of a team, directly from compiled code; `openmp` is `openmp_address()`.

    `parallel_for` enters Python in every thread, where they wait for the GIL one after the other: a tenth of a
    millisecond, against half a millisecond for a step of one image.
    """

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        inner_sig = function.get_call_type(context.typing_context, (arguments,), {})
        result = function.dispatcher.get_compile_result(inner_sig)
        context.add_linking_libs([result.library])
        target = context.declare_function(builder.module, result.fndesc)
        pointer, integer = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer])
        body = ir.Function(builder.module, kind, name=builder.module.get_unique_name("team"))
        body.linkage = "internal"
        inside = ir.IRBuilder(body.append_basic_block("entry"))
        packed = inside.load(inside.bitcast(body.args[0], args[3].type.as_pointer()))
        context.call_conv.call_function(inside, target, inner_sig.return_type, inner_sig.args, [packed])
        inside.ret_void()
        call = ir.FunctionType(ir.VoidType(), [kind.as_pointer(), pointer, integer, integer]).as_pointer()
        slot = builder.bitcast(cgutils.alloca_once_value(builder, args[3]), pointer)
        team = builder.trunc(args[1], integer)
        builder.call(builder.inttoptr(args[0], call), [body, slot, team, integer(0)])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, function, arguments), code


def _thread_slice(context: Any, builder: Any, kind: Any, value: Any, thread: Any, threads: Any) -> Any:
    if isinstance(kind, types.BaseTuple):
        kinds: Any = kind
        values = zip(kinds, cgutils.unpack_tuple(builder, value), strict=True)
        slices = [_thread_slice(context, builder, each, array, thread, threads) for each, array in values]
        return context.make_tuple(builder, kind, slices)
    array = cgutils.create_struct_proxy(kind)(context, builder, value=value)
    count = builder.sdiv(array.nitems, threads)
    array.data = builder.gep(array.data, [builder.mul(thread, count)])
    array.nitems, array.shape = count, cgutils.pack_array(builder, [count])
    return array._getvalue()


@instruction
def thread_slice(typingctx: Any, arrays: Any, thread: Any, threads: Any) -> Any:
    """This thread's slice of every array in a (nested) tuple."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _thread_slice(context, builder, arrays, *args)

    return arrays(arrays, types.intp, types.intp), code


@instruction
def fetch_add(typingctx: Any, counters: Any, index: Any) -> Any:
    """Return counters[index] and atomically increment it."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address = address_of(context, builder, counters, args[0], args[1])
        return builder.atomic_rmw("add", address, ir.Constant(ir.IntType(64), 1), "seq_cst")

    return types.int64(counters, types.intp), code
