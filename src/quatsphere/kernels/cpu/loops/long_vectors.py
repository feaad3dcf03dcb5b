"""Vectors of whole rows of lane tables, which LLVM splits into registers of the machine at hand.

A row of Q quaternion channels of eight heads is 32 Q consecutive numbers. A sum of rows need not know its channels: one
instruction per register, whatever its length, instead of one per component.
"""

from typing import Any

from numba import types

from quatsphere.kernels.cpu.loops import LANES
from quatsphere.kernels.cpu.loops.jit import has_avx512, instruction
from quatsphere.kernels.cpu.loops.simd import (
    WIDE_LANES,
    Vector,
    address_of,
    ir,
    llvm_intrinsic,
    load_lanes,
    shuffle_mask,
    vector_type,
)

GROUP = 4 if has_avx512() else 2
"""Quaternion channels of eight heads that are summed together: their sums are eight registers."""


@instruction
def load_like(typingctx: Any, like: Any, array: Any, index: Any) -> Any:
    """array[index:] of a flat array, as many lanes as the vector `like` has."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return load_lanes(builder, address_of(context, builder, array, *args[1:]), array.dtype, like.lanes)

    return like(like, array, types.intp), code


def _zeros(array: Any, lanes: int) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(vector_type(array.dtype, lanes), [0.0] * lanes)

    return Vector(array.dtype, lanes)(array), code


@instruction
def zero_tile(typingctx: Any, array: Any) -> Any:
    """Zeros for one quaternion channel of eight heads: a long vector, which LLVM splits into registers."""
    return _zeros(array, 4 * LANES)


@instruction
def zero_group(typingctx: Any, array: Any) -> Any:
    """Zeros for GROUP quaternion channels."""
    return _zeros(array, GROUP * 4 * LANES)


@instruction
def repeat(typingctx: Any, like: Any, vector: Any) -> Any:
    """Eight lanes repeated to as many lanes as the vector `like` has."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.shuffle_vector(args[1], args[1], shuffle_mask(list(range(LANES)) * (like.lanes // LANES)))

    return like(like, vector), code


@instruction
def folded_product(typingctx: Any, a: Any, b: Any) -> Any:
    """Lane l is the sum of the products of a and b in the lanes l, l + 8, l + 16 ... of long vectors."""
    wide = Vector(a.scalar, WIDE_LANES)
    half = Vector(a.scalar)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, multiply_add = llvm_intrinsic("fma", wide, 3)
        total = None
        for first in range(0, a.lanes, WIDE_LANES):
            order = shuffle_mask(list(range(first, first + WIDE_LANES)))
            x, y = (builder.shuffle_vector(each, each, order) for each in args)
            total = builder.fmul(x, y) if total is None else multiply_add(context, builder, sig, [x, y, total])
        halves = [shuffle_mask(list(range(start, start + LANES))) for start in (0, LANES)]
        return builder.fadd(*(builder.shuffle_vector(total, total, order) for order in halves))

    return half(a, b), code
