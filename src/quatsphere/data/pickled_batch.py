"""Read a pickled CIFAR batch without Python's unpickler: nothing that the file names is imported or called.

A pickle is a program for a stack machine. A batch needs few of its instructions: text, integers, flat lists, one
dictionary, and the calls that rebuild numpy arrays, which are recorded here and not made. All other instructions are
refused, and so is nesting: a hundred bytes of nested tuples can cost a hash of 2^60 steps.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from quatsphere.errors import DataError

MAX_OPCODES = 1_000_000
"""Maximum number of instructions; the largest official file has about 200,000."""
MAX_MEMO_SLOT = 10_000_000
"""Maximum memo slot; other unpicklers allocate all slots below it."""
MAX_TUPLE, MAX_WORD = 16, 100
"""Maximum number of items of a tuple (a real one has at most eight), and of characters of a key, name or type code."""
_CORES = ("numpy.core", "numpy._core")
_NAMES = {
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",
    **{(f"{core}.multiarray", "_reconstruct"): "reconstruct" for core in _CORES},
    **{(f"{core}.numeric", "_frombuffer"): "frombuffer" for core in _CORES},
}
"""Importable names that a batch may mention, and their meaning."""


def read_batch(data: bytes) -> dict[str, Any]:
    """Return the dictionary of a pickled CIFAR batch: text keys, arrays as numpy, lists unchanged.

    Raises DataError for a pickle that names or builds anything but arrays, ValueError for a damaged one.
    """
    try:
        batch = _Machine(len(data)).run(data)
        if not isinstance(batch, dict):
            raise ValueError(f"holds a {type(batch).__name__}, not a dictionary")
        return {key: value.to_numpy() if isinstance(value, _Array) else value for key, value in batch.items()}
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can raise any exception
        raise ValueError(f"not a CIFAR batch: {type(error).__name__}") from error


class _Name(NamedTuple):
    """A name of `_NAMES`, by its meaning."""

    meaning: str


class _Dtype(NamedTuple):
    """A numpy data type: its code without the byte order, which is little-endian or irrelevant for admitted types."""

    code: str


@dataclass
class _Array:
    """A numpy array as pickled: (version, shape, dtype, fortran, bytes)."""

    state: tuple[Any, ...] = ()

    def to_numpy(self) -> np.ndarray:
        """Return the array of uint8 or int64 that the state describes."""
        _, shape, dtype, fortran, raw = self.state
        if not (isinstance(dtype, _Dtype) and dtype.code in ("u1", "i8") and isinstance(raw, (bytes, bytearray))):
            raise ValueError("array is not of bytes")
        flat = np.frombuffer(raw, np.uint8 if dtype.code == "u1" else "<i8")
        return flat.reshape(shape, order="F" if fortran else "C")


_SCALARS = (int, str, bytes, bytearray, type(None))


class _Machine:
    """Stack and memo of one pickle of `size` bytes."""

    def __init__(self, size: int) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.encodable = size
        """Bytes that calls of `encode` may still produce: texts in the memo could be encoded again and again."""

    def run(self, data: bytes) -> Any:
        """Execute all instructions and return the value that is left."""
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count >= MAX_OPCODES:
                raise _refusal(f"has more than {MAX_OPCODES:,} instructions")
            _ACTIONS[opcode.name](self, argument)
        return self.stack.pop()

    def memorise(self, slot: int) -> None:
        """Store the value on top of the stack in the memo."""
        if slot > MAX_MEMO_SLOT:
            raise _refusal("asks for an absurd amount of memory")
        self.memo[slot] = self.stack[-1]

    def pop_marked(self) -> list[Any]:
        """Remove and return everything above the last mark."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def pop(self, count: int) -> list[Any]:
        """Remove and return the last `count` values."""
        items = self.stack[len(self.stack) - count :]
        if len(items) < count:
            raise ValueError("stack is empty")
        del self.stack[len(self.stack) - count :]
        return items

    def push_tuple(self, items: list[Any]) -> None:
        """Push a tuple of plain values, shapes, names and data types; a shape is a tuple of integers."""
        if len(items) > MAX_TUPLE:
            raise _refusal("holds long tuples")
        for item in items:
            shape = type(item) is tuple and all(isinstance(number, int) for number in item)
            if not shape and not isinstance(item, (*_SCALARS, _Name, _Dtype)):
                raise _refusal("nests tuples or lists")
        self.stack.append(tuple(items))

    def extend(self, items: list[Any]) -> None:
        """Append plain values to the list on top of the stack."""
        target = self.stack[-1]
        if type(target) is not list:
            raise ValueError("no list")
        if not all(isinstance(item, _SCALARS) for item in items):
            raise _refusal("nests lists")
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        """Add alternating keys and values to the dictionary on top of the stack."""
        target = self.stack[-1]
        if type(target) is not dict:
            raise ValueError("no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(value, (*_SCALARS, _Array)) and type(value) is not list:
                raise _refusal("nests dictionaries or tuples")
            target[_word(key)] = value

    def push_name(self, module: str, name: str) -> None:
        """Push the meaning of an importable name; it is not imported."""
        meaning = _NAMES.get((module, name))
        if meaning is None:
            requested = f"{module:.{MAX_WORD}}.{name:.{MAX_WORD}}".encode("unicode_escape").decode()
            raise _refusal(f"asks for {requested}")
        self.stack.append(_Name(meaning))

    def call(self) -> None:
        """Replace a name and its arguments by what the call would return."""
        name, arguments = self.pop(2)
        if not isinstance(name, _Name) or type(arguments) is not tuple:
            raise ValueError("no call")
        if name.meaning == "dtype":
            self.stack.append(_Dtype(_word(arguments[0]).lstrip("|<=")))
        elif name.meaning == "encode":
            text, encoding = arguments
            if not isinstance(text, str) or encoding != "latin1":
                raise ValueError("encoding")
            self.encodable -= len(text)
            if self.encodable < 0:
                raise _refusal("asks for an absurd amount of memory")
            self.stack.append(text.encode("latin1"))
        elif name.meaning == "frombuffer":
            buffer, dtype, shape, order = arguments
            self.stack.append(_Array((1, shape, dtype, order == "F", buffer)))
        else:
            self.stack.append(_Array())

    def set_state(self) -> None:
        """Pop a state and set it on the value below; a data type's byte order and alignment are ignored."""
        target, state = self.pop(2)
        if isinstance(target, _Array):
            target.state = state
        elif not isinstance(target, _Dtype):
            raise ValueError("no array")
        self.stack.append(target)


def _word(value: Any) -> str:
    """Short text, from a key or a type code."""
    if not isinstance(value, (str, bytes)) or len(value) > MAX_WORD:
        raise _refusal("has keys or data types that are not short text")
    return value if isinstance(value, str) else value.decode("latin1")


def _refusal(fault: str) -> DataError:
    return DataError(f"refused: file {fault}; CIFAR needs only numpy arrays")


_Action = Callable[[_Machine, Any], None]


def _push(value: Callable[[_Machine, Any], Any]) -> _Action:
    """Action that pushes a value made from the machine and the argument."""
    return lambda machine, argument: machine.stack.append(value(machine, argument))


def _build(fill: Callable[[_Machine, list[Any]], None], empty: Callable[[], Any]) -> _Action:
    """Action of LIST and DICT: a new container filled with everything above the mark."""

    def action(machine: _Machine, _: Any) -> None:
        items = machine.pop_marked()
        machine.stack.append(empty())
        fill(machine, items)

    return action


_ACTIONS: dict[str, _Action] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda machine, _: None),
    **dict.fromkeys(
        (
            *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"),
            *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
            *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
        ),
        _push(lambda _, value: value),
    ),
    # texts of Python 2, which are bytes
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), _push(lambda _, text: text.encode("latin1"))),
    "NONE": _push(lambda *_: None),
    "NEWTRUE": _push(lambda *_: True),
    "NEWFALSE": _push(lambda *_: False),
    "EMPTY_LIST": _push(lambda *_: []),
    "EMPTY_DICT": _push(lambda *_: {}),
    "EMPTY_TUPLE": _push(lambda *_: ()),
    "MEMOIZE": lambda machine, _: machine.memorise(len(machine.memo)),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), lambda machine, slot: machine.memorise(int(slot))),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _push(lambda machine, slot: machine.memo[int(slot)])),
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "TUPLE": lambda machine, _: machine.push_tuple(machine.pop_marked()),
    "TUPLE1": lambda machine, _: machine.push_tuple(machine.pop(1)),
    "TUPLE2": lambda machine, _: machine.push_tuple(machine.pop(2)),
    "TUPLE3": lambda machine, _: machine.push_tuple(machine.pop(3)),
    "LIST": _build(_Machine.extend, list),
    "DICT": _build(_Machine.set_items, dict),
    "APPEND": lambda machine, _: machine.extend(machine.pop(1)),
    "APPENDS": lambda machine, _: machine.extend(machine.pop_marked()),
    "SETITEM": lambda machine, _: machine.set_items(machine.pop(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_marked()),
    **dict.fromkeys(("GLOBAL", "INST"), lambda machine, argument: machine.push_name(*argument.split(" ", 1))),
    "STACK_GLOBAL": lambda machine, _: machine.push_name(*machine.pop(2)),
    "REDUCE": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.set_state(),
}
