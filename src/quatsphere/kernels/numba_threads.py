"""Compiled loops shared out over threads: torch's own, so that two cores have two threads in all.

torch's idle OpenMP workers spin for milliseconds after each of its loops. Threads of any other pool (Numba's own
layers, Python's) compete with them for the cores and come out hardly parallel. So the loops run on torch's workers: its
OpenMP library is asked for a parallel region whose body calls back here; compiled code then releases Python's lock.
Where that library is not found (not Linux), and in a forked child (whose copy of OpenMP is dead), plain threads do it.

Who computes a share never changes a result: shares are disjoint, and every sum has its order fixed by the loops.
"""

import ctypes
import inspect
import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from numba.core import event as events

from quatsphere.runtime import compilation

Part = tuple[int, int]
_REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_pools: dict[int, ThreadPoolExecutor] = {}
_kept = threading.local()
SMALL, MANY = 2**22, 64
"""Bytes up to which a share's room is kept, and how many of them."""


def _find_openmp() -> ctypes.CDLL | None:
    """The OpenMP library that torch itself has loaded, if it speaks GNU's interface."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("lib[gi]omp*.so*")):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "GOMP_parallel"):
            return library
    return None


_openmp = _find_openmp()


def openmp_address() -> int:
    """Where torch's OpenMP begins a parallel region, for compiled code that calls it; 0 if there is none."""
    return 0 if _openmp is None else ctypes.cast(_openmp.GOMP_parallel, ctypes.c_void_p).value or 0


def _after_fork() -> None:
    global _openmp
    _openmp = None
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


LINE = 64
"""Bytes of a cache line."""
LEAST = 2**17
"""Numbers of a result that are worth a thread: to wake one and let it in costs a few tenths of a millisecond."""


def worthwhile(size: int) -> int:
    """How many of torch's threads a result of so many numbers is worth, at least one."""
    return max(1, min(torch.get_num_threads(), size // LEAST))


class Room(NamedTuple):
    """Intermediate numbers of a share: make(*key) gives them, named tuples or tuples of arrays."""

    make: Callable[..., tuple[Any, ...]]
    key: tuple[Any, ...]


NOTHING = Room(tuple, ())


def share_out(function: Callable[..., None], count: int, size: int, *arguments: Any, room: Room = NOTHING) -> None:
    """function((start, stop), *arguments, *room) over range(count), about `size` numbers in all: one contiguous share
    per thread that is worth it, each with room of its own."""
    shares = min(worthwhile(size), max(1, count))
    calls = [
        ((count * share // shares, count * (share + 1) // shares), *arguments, *room_of(share, room))
        for share in range(shares)
    ]
    if shares == 1:
        function(*calls[0])
    elif _openmp is not None:
        _run_on_openmp(_openmp, function, calls)
    else:
        if shares not in _pools:
            _pools[shares] = ThreadPoolExecutor(shares, thread_name_prefix="quatsphere")
        list(_pools[shares].map(lambda call: function(*call), calls))


def room_of(share: int, room: Room) -> tuple[Any, ...]:
    """A share's room; small ones are kept for the next call of this thread, which waits until all shares are done."""
    if not room.key:
        return ()
    kept: OrderedDict[Any, tuple[Any, ...]] = _kept.__dict__.setdefault("rooms", OrderedDict())
    key = (share, room)
    if key in kept:
        kept.move_to_end(key)
        return kept[key]
    made = room.make(*room.key)
    if sum(array.nbytes for part in made for array in part) <= SMALL:
        kept[key] = made
        if len(kept) > MANY:
            kept.popitem(last=False)
    return made


def _run_on_openmp(library: ctypes.CDLL, function: Callable[..., None], calls: list[tuple[Any, ...]]) -> None:
    """One parallel region; a team smaller than asked for takes several shares each. The first error is raised here."""
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


def rooms(counts: Sequence[int], dtype: Any, shares: int = 1) -> list[Any]:
    """Arrays for intermediate numbers, cut from one; each, and in it the part of each of the shares, begins with a
    cache line, so that no vector lies across two."""
    size = np.dtype(dtype).itemsize
    counts = counts if shares == 1 else [shares * (count + -count % (LINE // size)) for count in counts]
    sizes = [count * size + -count * size % LINE for count in counts]
    raw = np.empty(sum(sizes) + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    whole = raw[start : start + sum(sizes)].view(dtype)
    starts = [end // size for end in itertools.accumulate(sizes, initial=0)]
    return [whole[start : start + count] for start, count in zip(starts, counts, strict=False)]


class _Watcher(events.Listener):
    """Passes Numba's compile events on; loading from the disk cache is no such event."""

    def on_start(self, event: Any) -> None:
        """A function is about to be compiled."""
        compilation.begin()

    def on_end(self, event: Any) -> None:
        """It is compiled, or failed to be."""
        compilation.end()


events.register("numba:compile", _Watcher())


def compiled(function: Callable[..., None]) -> Any:
    """Numba compilation without Python's lock, cached on disk until any of the compiled files changes.

    Numba notices a change of the file a function is in, not of the files it calls into, so all of them become part of
    the version it compares, before it unpickles classes that may be gone. Where no folder can be written to, every
    process compiles for itself.
    """
    bare = inspect.unwrap(function)
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
    try:
        dispatcher: Any = numba.njit(bare, cache=True, **options)
    except RuntimeError:
        return numba.njit(bare, **options)
    files = sorted(Path(__file__).parent.glob("numba_*.py"))
    stamp = tuple((file.name, file.stat().st_mtime, file.stat().st_size) for file in files)
    cache = dispatcher._cache._cache_file
    cache._version = cache._version, stamp
    return dispatcher
