"""LLVM code that reads and writes arrays of bfloat16, which are arrays of uint16 for NumPy and Numba.

Reading is a shift; writing needs a processor with AVX-512 BF16 (elsewhere LLVM would call a missing function).
"""

from typing import Any

from numba import types
from numba.core import cgutils

_ir = cgutils.ir  # llvmlite.ir


class BFloat(_ir.Type):
    """LLVM's bfloat, which llvmlite does not define."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


def number_type(scalar: Any) -> Any:
    """Numba's type of the numbers in an array with elements `scalar`."""
    return types.float32 if scalar == types.uint16 else scalar


def _address(builder: Any, address: Any, like: Any) -> tuple[Any, Any]:
    vector = isinstance(like, _ir.VectorType)
    kind = _ir.VectorType(BFloat(), like.count) if vector else BFloat()
    return kind, builder.bitcast(address, kind.as_pointer())


def read(builder: Any, address: Any, kind: Any) -> Any:
    """Numbers at an address as float32, a vector or scalar of LLVM type `kind`."""
    _, pointer = _address(builder, address, kind)
    return builder.fpext(builder.load(pointer, align=2), kind)


def write(builder: Any, address: Any, value: Any) -> None:
    """Round a vector or scalar of float32 to the nearest and store it."""
    kind, pointer = _address(builder, address, value.type)
    builder.store(builder.fptrunc(value, kind), pointer, align=2)
