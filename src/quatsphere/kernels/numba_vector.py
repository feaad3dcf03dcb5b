"""A vector of numbers as a Numba type: what stays in registers and in which order it is added is then explicit.

Numba leaves vectorising to LLVM, which does not see through (..., 4) layouts and keeps no tile of accumulators in
registers. Here `load`, `store`, `fma` and the operators work on eight lanes at a time (one AVX register of float32,
two of float64; LLVM splits or widens for other machines), the `wide` ones on sixteen (one AVX-512 register or two of
AVX). Nothing is reassociated: a result depends on the numbers alone, never on how work was shared out.
"""

import inspect
import operator
from collections.abc import Callable
from typing import Any

from numba import njit, types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

ir = cgutils.ir  # llvmlite's, through Numba
LANES, WIDE = 8, 16
FLOATS = {types.float32: (ir.FloatType(), 4, 32), types.float64: (ir.DoubleType(), 8, 64)}


def many_registers() -> bool:
    """Whether sixteen lanes of float32 are one register of which there are thirty-two (AVX-512), on the processor that
    Numba compiles for, which a user may have named."""
    features = getattr(config, "CPU_FEATURES", None)
    return "+avx512f" in (get_host_cpu_features() if features is None else features)


INNER: dict[str, Any] = {
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "error_model": "numpy",
    "_nrt": False,
}


def inner(function: Callable[..., Any]) -> Any:
    """Decorator of functions that only compiled code calls: no Python entry, which halves the time to compile.

    Under pytest jaxtyping has wrapped the function by now; Numba wants the bare one.
    """
    return njit(**INNER, forceinline=True)(inspect.unwrap(function))


def separate(function: Callable[..., Any]) -> Any:
    """As `inner`, but a call stays a call: large loops come out best when they are compiled alone."""
    return njit(**INNER)(inspect.unwrap(function))


def instruction(function: Callable[..., Any]) -> Any:
    """Decorator of functions that emit machine code for one call."""
    return intrinsic(inspect.unwrap(function))


class Vector(types.Type):
    """Eight or sixteen lanes of float32 or float64."""

    def __init__(self, scalar: Any, lanes: int = LANES) -> None:
        self.scalar, self.lanes = scalar, lanes
        super().__init__(name=f"Vector({scalar}, {lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, register(vector.scalar, vector.lanes))


def register(scalar: Any, lanes: int = LANES) -> Any:
    """LLVM's type of a vector."""
    return ir.VectorType(FLOATS[scalar][0], lanes)


def _splat(builder: Any, scalar: Any, lanes: int = LANES) -> Any:
    empty = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, empty, shuffle_mask([0] * lanes))


def shuffle_mask(order: list[int]) -> Any:
    """Which lanes a shuffle of two vectors takes; those of the second are numbered on."""
    return ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order)


def _operator(python_operator: Callable[..., Any], emit: Callable[[Any, Any, Any], Any]) -> None:
    """Vector ∘ vector, vector ∘ number, number ∘ vector."""

    @infer_global(python_operator)
    class Rule(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            vectors = [a for a in args if isinstance(a, Vector)]
            if len(args) == 2 and vectors and all(isinstance(a, (Vector, types.Number)) for a in args):
                return signature(vectors[0], *[a if isinstance(a, Vector) else vectors[0].scalar for a in args])
            return None

    def lower(context: Any, build: Any, sig: Any, args: Any) -> Any:
        lanes = sig.return_type.lanes
        sides = [a if isinstance(t, Vector) else _splat(build, a, lanes) for t, a in zip(sig.args, args, strict=True)]
        return emit(build, *sides)

    for sides in ((Vector, Vector), (Vector, types.Number), (types.Number, Vector)):
        lower_builtin(python_operator, *sides)(lower)


_operator(operator.add, lambda build, a, b: build.fadd(a, b))
_operator(operator.sub, lambda build, a, b: build.fsub(a, b))
_operator(operator.mul, lambda build, a, b: build.fmul(a, b))
_operator(operator.truediv, lambda build, a, b: build.fdiv(a, b))


def address_of(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """The address of array[index]."""
    data = cgutils.create_struct_proxy(array_type)(context, builder, value=array).data
    return builder.gep(data, [index])


def load_lanes(builder: Any, address: Any, scalar: Any, lanes: int) -> Any:
    """So many numbers from an address."""
    return builder.load(builder.bitcast(address, register(scalar, lanes).as_pointer()), align=FLOATS[scalar][1])


def _call(builder: Any, name: str, vector: Vector, args: Any) -> Any:
    """LLVM's own function of this name on whole vectors."""
    kind = register(vector.scalar, vector.lanes)
    full = f"llvm.{name}.v{vector.lanes}f{FLOATS[vector.scalar][2]}"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * len(args)), full)
    return builder.call(function, args)


def _load(array: Any, lanes: int) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return load_lanes(builder, address_of(context, builder, array, *args), array.dtype, lanes)

    return Vector(array.dtype, lanes)(array, types.intp), code


@instruction
def load(typingctx: Any, array: Any, index: Any) -> Any:
    """array[index : index + 8] of a flat array as a vector."""
    return _load(array, LANES)


@instruction
def load_wide(typingctx: Any, array: Any, index: Any) -> Any:
    """array[index : index + 16] of a flat array as a vector."""
    return _load(array, WIDE)


@instruction
def number_at(typingctx: Any, array: Any, index: Any) -> Any:
    """array[index] of a flat array; the index is not negative, which saves looking for its sign."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(address_of(context, builder, array, *args))

    return array.dtype(array, types.intp), code


@instruction
def store(typingctx: Any, array: Any, index: Any, vector: Any) -> Any:
    """array[index : index + lanes] = vector."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address = address_of(context, builder, array, args[0], args[1])
        where = builder.bitcast(address, register(array.dtype, vector.lanes).as_pointer())
        builder.store(args[2], where, align=FLOATS[array.dtype][1])
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), code


@instruction
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of array[index], which may lie beyond the end: a hint, never an error."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        data = cgutils.create_struct_proxy(array)(context, builder, value=args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), byte)
        builder.call(function, [address, number(0), number(2), number(1)])  # to read, into the second cache, data
        return context.get_dummy_value()

    return types.void(array, types.intp), code


@instruction
def splat(typingctx: Any, like: Any, number: Any) -> Any:
    """The number in every lane, in the precision of `like` (an array, for eight lanes, or a vector)."""
    kind = like if isinstance(like, Vector) else Vector(like.dtype)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _splat(builder, args[1], kind.lanes)

    return kind(like, kind.scalar), code


def _spread(array: Any, lanes: int) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _splat(builder, builder.load(address_of(context, builder, array, *args)), lanes)

    return Vector(array.dtype, lanes)(array, types.intp), code


@instruction
def spread(typingctx: Any, array: Any, index: Any) -> Any:
    """array[index] in eight lanes; the index is not negative."""
    return _spread(array, LANES)


@instruction
def spread_wide(typingctx: Any, array: Any, index: Any) -> Any:
    """array[index] in sixteen lanes."""
    return _spread(array, WIDE)


@instruction
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c, rounded once."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _call(builder, "fma", a, args)

    return a(a, a, a), code


@instruction
def fma_number(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c of numbers in the precision of c, rounded once as in the lanes of a vector."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fma(*args)

    return c(c, c, c), code


@instruction
def sqrt(typingctx: Any, a: Any) -> Any:
    """√a."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _call(builder, "sqrt", a, args)

    return a(a), code


@instruction
def absolute(typingctx: Any, a: Any) -> Any:
    """|a|."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _call(builder, "fabs", a, args)

    return a(a), code


@instruction
def lane(typingctx: Any, vector: Any, index: Any) -> Any:
    """One lane as a number."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.extract_element(*args)

    return vector.scalar(vector, types.int32), code


@instruction
def insert(typingctx: Any, vector: Any, index: Any, number: Any) -> Any:
    """The vector with one lane replaced."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.insert_element(args[0], args[2], args[1])

    return vector(vector, types.int32, vector.scalar), code


@instruction
def halves(typingctx: Any, vector: Any) -> Any:
    """Sixteen lanes as two vectors of eight."""
    half = Vector(vector.scalar)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        orders = (list(range(LANES)), list(range(LANES, WIDE)))
        parts = [builder.shuffle_vector(args[0], args[0], shuffle_mask(order)) for order in orders]
        return context.make_tuple(builder, sig.return_type, parts)

    return types.UniTuple(half, 2)(vector), code


@instruction
def where_less(typingctx: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
    """yes where a < b, else no (also where a or b is NaN)."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[2], args[3])

    return a(a, a, a, a), code


@instruction
def keep_whole(typingctx: Any, mask: Any, index: Any, vector: Any) -> Any:
    """The vector, with zeros in the lanes whose byte of mask[index:] is zero."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bytes_ = ir.VectorType(ir.IntType(8), vector.lanes)
        where = builder.bitcast(address_of(context, builder, mask, args[0], args[1]), bytes_.as_pointer())
        kept = builder.icmp_unsigned("!=", builder.load(where, align=1), ir.Constant(bytes_, [0] * vector.lanes))
        return builder.select(kept, args[2], ir.Constant(args[2].type, [0.0] * vector.lanes))

    return vector(mask, types.intp, vector), code


@instruction
def shift_into_exponent(typingctx: Any, vector: Any, bias: Any) -> Any:
    """The bits of each lane plus `bias`, moved up into the exponent: 2ⁿ of an n in the lowest mantissa bits."""
    _, size, width = FLOATS[vector.scalar]
    mantissa = 23 if size == 4 else 52

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lanes = vector.lanes
        integers = ir.VectorType(ir.IntType(width), lanes)
        bits = builder.bitcast(args[0], integers)
        number = builder.trunc(args[1], ir.IntType(width)) if width < 64 else args[1]
        biased = builder.add(bits, _splat(builder, number, lanes))
        return builder.bitcast(builder.shl(biased, ir.Constant(integers, [mantissa] * lanes)), args[0].type)

    return vector(vector, types.int64), code


@inner
def load_some(array, index, count):  # type: ignore[no-untyped-def]
    """array[index : index + count], zero in the other lanes."""
    if count == LANES:
        return load(array, index)
    vector = splat(array, 0.0)
    for number in range(count):
        vector = insert(vector, number, array[index + number])
    return vector


@inner
def keep_lanes(mask, index, count, vector):  # type: ignore[no-untyped-def]
    """The vector with zeros where mask[index : index + count] is zero; the other lanes as they are."""
    if count == LANES:
        return keep_whole(mask, index, vector)
    for number in range(count):
        if mask[index + number] == 0:
            vector = insert(vector, number, 0.0)
    return vector


@inner
def fetch(array, at, count):  # type: ignore[no-untyped-def]
    """Ask for the cache lines of array[at : at + count] (of float32; every second one of float64)."""
    for number in range(0, count, WIDE):
        prefetch(array, at + number)
