"""Products of pairs of bfloat16 numbers (AVX-512 BF16). An array of pairs has the type float32, of the same size.

Two products of bfloat16 numbers and a sum are one instruction, which adds in float32.
"""

from typing import Any

from numba import types
from numba.core import cgutils

from quatsphere.kernels.cpu.loops.bfloat16_arrays import BFloat
from quatsphere.kernels.cpu.loops.jit import host_has, instruction
from quatsphere.kernels.cpu.loops.simd import WIDE_LANES, Vector, ir, shuffle_mask, vector_type

PAIR_VECTOR = Vector(types.float32, WIDE_LANES)
"""Sixteen pairs in a register. A lane is a pair, not a number in float32."""
NARROW = ir.VectorType(BFloat(), 2 * WIDE_LANES)
WIDE = vector_type(types.float32, WIDE_LANES)


def multiplies_pairs() -> bool:
    """Return True if Numba's target processor, which NUMBA_CPU_FEATURES may override, multiplies pairs."""
    return host_has("avx512bf16")


def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.avx512bf16.{name}.512")
    return builder.call(function, arguments)


@instruction
def add_products(typingctx: Any, total: Any, a: Any, b: Any) -> Any:
    """total + a₀ b₀ + a₁ b₁ for the pairs in the lanes of a and b."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        sides = [builder.bitcast(side, NARROW) for side in args[1:]]
        return _call(builder, "dpbf16ps", WIDE, args[0], *sides)

    return PAIR_VECTOR(PAIR_VECTOR, PAIR_VECTOR, PAIR_VECTOR), code


def _rounded(builder: Any, first: Any, second: Any) -> Any:
    return builder.bitcast(_call(builder, "cvtne2ps2bf16", NARROW, second, first), ir.VectorType(ir.IntType(16), 32))


@instruction
def adjacent_pairs(typingctx: Any, first: Any, second: Any) -> Any:
    """The 32 elements of two vectors, rounded, in order: pairs of neighbours."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(_rounded(builder, *args), WIDE)

    return PAIR_VECTOR(PAIR_VECTOR, PAIR_VECTOR), code


@instruction
def lane_pairs(typingctx: Any, first: Any, second: Any) -> Any:
    """Pairs of each lane of the first vector with the same lane of the second, rounded."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        both, order = _rounded(builder, *args), [lane + half for lane in range(WIDE_LANES) for half in (0, WIDE_LANES)]
        return builder.bitcast(builder.shuffle_vector(both, both, shuffle_mask(order)), WIDE)

    return PAIR_VECTOR(PAIR_VECTOR, PAIR_VECTOR), code
