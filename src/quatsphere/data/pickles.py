"""Read CIFAR's pickled batches without ever calling what a pickle asks for.

A pickle is a program. The official batches need four of its instructions' targets, all to rebuild numpy arrays; each is
answered here by a stand-in that only records its arguments, and any other name is refused before it is looked up.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

from quatsphere.errors import DataError

MOST_NESTING = 1000
"""Calls and tuples a batch may hold (a real one has five); more could overflow the stack when hashed."""
MOST_MEMO = 10_000_000
"""Largest memo slot a batch may name; the C unpickler allocates all slots below it."""


class _Array:
    """Stand-in for numpy.ndarray: keeps the state that the pickle hands over."""

    def __init__(self, *_: object) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def to_numpy(self) -> np.ndarray:
        """The array of uint8 or int64 that the state describes: (version, shape, dtype, fortran, bytes)."""
        _, shape, dtype, fortran, raw = self.state
        if not (isinstance(dtype, _Dtype) and dtype.code in ("u1", "i8") and isinstance(raw, (bytes, bytearray))):
            raise ValueError("array is not of bytes")
        flat = np.frombuffer(raw, np.uint8 if dtype.code == "u1" else "<i8")
        return flat.reshape(shape, order="F" if fortran else "C")


class _Dtype:
    """Stand-in for numpy.dtype: keeps the type code."""

    def __init__(self, code: object = "", *_: object) -> None:
        text = code.decode("latin1") if isinstance(code, bytes) else str(code)
        self.code = text.lstrip("|<=")

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment: little-endian is all that we accept, so there is nothing to keep."""


def _from_buffer(buffer: object, dtype: object, shape: object, order: object) -> _Array:
    array = _Array()
    array.state = (1, shape, dtype, order == "F", buffer)
    return array


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError(f"encoding {encoding!r}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}
for _core in ("numpy.core", "numpy._core"):
    _ALLOWED[f"{_core}.multiarray", "_reconstruct"] = _Array
    _ALLOWED[f"{_core}.numeric", "_frombuffer"] = _from_buffer


class _BatchUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if (module, name) not in _ALLOWED:
            asked = f"{module}.{name}".encode("unicode_escape").decode()
            raise DataError(f"refused: file asks for {asked}; CIFAR needs only numpy arrays")
        return _ALLOWED[module, name]


def _refuse_bombs(data: bytes) -> None:
    """A pickle of few bytes can ask for gigabytes or for a stack of a million frames: look before running it."""
    nesting = 0
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > MOST_MEMO:
            raise DataError("refused: file asks for an absurd amount of memory; CIFAR needs only numpy arrays")
        nesting += opcode.name.startswith(("TUPLE", "REDUCE", "BUILD", "NEWOBJ", "INST", "OBJ", "LIST", "DICT"))
        if nesting > MOST_NESTING:
            raise DataError("refused: file nests too deeply; CIFAR needs only numpy arrays")


def read_batch(data: bytes) -> dict[str, Any]:
    """The dictionary of a CIFAR batch: text keys, arrays as numpy, lists as they are.

    Raises DataError for a pickle that asks for anything but arrays, ValueError for one that is damaged.
    """
    try:
        _refuse_bombs(data)
        batch = _BatchUnpickler(io.BytesIO(data), encoding="bytes").load()
        if not isinstance(batch, dict):
            raise ValueError(f"holds a {type(batch).__name__}, not a dictionary")
        return {_text(key): value.to_numpy() if isinstance(value, _Array) else value for key, value in batch.items()}
    except DataError:
        raise
    except Exception as error:  # a damaged pickle may raise anything at all
        raise ValueError(f"not a CIFAR batch: {type(error).__name__}") from error


def _text(key: object) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else str(key)
