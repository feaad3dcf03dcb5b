"""SIMD vectors as a Numba type, which fixes what stays in registers and the order of every sum.

Numba leaves vectorisation to LLVM, which neither handles (..., 4) layouts nor keeps a tile of accumulators in
registers. `load`, `store`, `fma` and the operators here work on eight lanes (one AVX register of float32, two of
float64; LLVM splits or widens for other machines), the `wide` ones on sixteen (one AVX-512 register or two of AVX),
those of `columns` on one register of either. Nothing is reassociated, so results do not depend on how the work is
split. Arrays of uint16 hold bfloat16 numbers, which are read and written as float32.
"""

import operator
from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, models, register_model

from quatsphere.kernels.cpu.loops import LANES
from quatsphere.kernels.cpu.loops.bfloat16_arrays import number_type, read, write
from quatsphere.kernels.cpu.loops.jit import has_avx512, inlined, instruction

ir = cgutils.ir  # llvmlite.ir
WIDE_LANES = 16
COLUMN_LANES = WIDE_LANES if has_avx512() else LANES
"""Lanes of a register of float32, for loops that fill all registers with sums; does not affect the result."""
FLOATS = {types.float32: (ir.FloatType(), 4, 32), types.float64: (ir.DoubleType(), 8, 64)}
"""LLVM type, bytes and bits of a scalar."""


class Vector(types.Type):
    """Lanes of float32 or float64: eight, sixteen, or more (`long_vectors`)."""

    def __init__(self, scalar: Any, lanes: int = LANES) -> None:
        self.scalar, self.lanes = scalar, lanes
        super().__init__(name=f"Vector({scalar}, {lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, vector_type(vector.scalar, vector.lanes))


def vector_type(scalar: Any, lanes: int = LANES) -> Any:
    """LLVM type of a vector."""
    return ir.VectorType(FLOATS[scalar][0], lanes)


def _splat(builder: Any, scalar: Any, lanes: int = LANES) -> Any:
    empty = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, empty, shuffle_mask([0] * lanes))


def shuffle_mask(order: list[int]) -> Any:
    """Mask of LLVM's shufflevector: indices into the concatenation of two vectors."""
    return ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order)


def _operator(python_operator: Callable[..., Any], emit: Callable[[Any, Any, Any], Any]) -> None:
    """Define an operator between vectors and between a vector and a number."""

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
    """Address of array[index]."""
    if not isinstance(array_type, types.CPointer):
        array = cgutils.create_struct_proxy(array_type)(context, builder, value=array).data
    return builder.gep(array, [index])


def _pointer_type(kind: Any) -> Any:
    if isinstance(kind, types.BaseTuple):
        fields: Any = kind
        name = getattr(kind, "instance_class", tuple)
        return types.BaseTuple.from_types([_pointer_type(each) for each in fields], name)
    return types.CPointer(kind.dtype) if isinstance(kind, types.Array) else kind


def _pointer_value(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    if isinstance(kind, types.BaseTuple):
        fields: Any = kind
        values = zip(fields, cgutils.unpack_tuple(builder, value), strict=True)
        members = [_pointer_value(context, builder, each, member) for each, member in values]
        return context.make_tuple(builder, _pointer_type(kind), members)
    is_array = isinstance(kind, types.Array)
    return cgutils.create_struct_proxy(kind)(context, builder, value=value).data if is_array else value


@instruction
def pointers(typingctx: Any, value: Any) -> Any:
    """The value with every array in a (nested) tuple replaced by a pointer to its first element.

    An array is seven numbers, each of which the compiler handles in every call of an inner function.
    """

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _pointer_value(context, builder, value, args[0])

    return _pointer_type(value)(value), code


@instruction
def shifted(typingctx: Any, pointer: Any, count: Any) -> Any:
    """Pointer to the element `count` places later."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.gep(args[0], [args[1]])

    return pointer(pointer, types.intp), code


def load_lanes(builder: Any, address: Any, scalar: Any, lanes: int) -> Any:
    """Vector of `lanes` elements at an address."""
    if number_type(scalar) != scalar:
        return read(builder, address, vector_type(number_type(scalar), lanes))
    return builder.load(builder.bitcast(address, vector_type(scalar, lanes).as_pointer()), align=FLOATS[scalar][1])


def store_lanes(builder: Any, address: Any, scalar: Any, vector: Any) -> None:
    """Store a vector at an address of elements `scalar`."""
    if number_type(scalar) != scalar:
        write(builder, address, vector)
        return
    pointer = builder.bitcast(address, vector_type(scalar, vector.type.count).as_pointer())
    builder.store(vector, pointer, align=FLOATS[scalar][1])


def llvm_intrinsic(name: str, vector: Vector, count: int) -> Any:
    """Numba signature and code of llvm.<name> with `count` vector arguments."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = vector_type(vector.scalar, vector.lanes)
        full = f"llvm.{name}.v{vector.lanes}f{FLOATS[vector.scalar][2]}"
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * count), full)
        return builder.call(function, args)

    return vector(*[vector] * count), code


def _load(array: Any, lanes: int) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return load_lanes(builder, address_of(context, builder, array, *args), array.dtype, lanes)

    return Vector(number_type(array.dtype), lanes)(array, types.intp), code


@instruction
def load(typingctx: Any, array: Any, index: Any) -> Any:
    """array[index : index + 8] of a flat array."""
    return _load(array, LANES)


@instruction
def load_wide(typingctx: Any, array: Any, index: Any) -> Any:
    """array[index : index + 16] of a flat array."""
    return _load(array, WIDE_LANES)


@instruction
def load_scalar(typingctx: Any, array: Any, index: Any) -> Any:
    """array[index] of a flat array for an index >= 0, without Python's treatment of negative ones."""

    number = number_type(array.dtype)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address = address_of(context, builder, array, *args)
        return builder.load(address) if number == array.dtype else read(builder, address, FLOATS[number][0])

    return number(array, types.intp), code


@instruction
def store_scalar(typingctx: Any, array: Any, index: Any, number: Any) -> Any:
    """array[index] = number for an index >= 0."""
    rounded = number_type(array.dtype)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address = address_of(context, builder, array, args[0], args[1])
        if rounded == array.dtype:
            builder.store(args[2], address)
        else:
            write(builder, address, args[2])
        return context.get_dummy_value()

    return types.void(array, types.intp, rounded), code


@instruction
def store(typingctx: Any, array: Any, index: Any, vector: Any) -> Any:
    """array[index : index + lanes] = vector."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        store_lanes(builder, address_of(context, builder, array, args[0], args[1]), array.dtype, args[2])
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), code


@instruction
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of array[index], which may be out of bounds."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer, integer = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, integer, integer, integer])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        address = builder.bitcast(address_of(context, builder, array, *args), pointer)
        builder.call(function, [address, integer(0), integer(2), integer(1)])  # read, second-level cache, data
        return context.get_dummy_value()

    return types.void(array, types.intp), code


@instruction
def splat(typingctx: Any, like: Any, number: Any) -> Any:
    """The number in every lane, in the precision of `like`: an array (eight lanes) or a vector."""
    kind = like if isinstance(like, Vector) else Vector(like.dtype)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _splat(builder, args[1], kind.lanes)

    return kind(like, kind.scalar), code


def _broadcast(array: Any, lanes: int) -> Any:
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _splat(builder, builder.load(address_of(context, builder, array, *args)), lanes)

    return Vector(array.dtype, lanes)(array, types.intp), code


@instruction
def broadcast(typingctx: Any, array: Any, index: Any) -> Any:
    """array[index] in eight lanes, index >= 0."""
    return _broadcast(array, LANES)


@instruction
def broadcast_wide(typingctx: Any, array: Any, index: Any) -> Any:
    """array[index] in sixteen lanes, index >= 0."""
    return _broadcast(array, WIDE_LANES)


load_columns, broadcast_columns = (load_wide, broadcast_wide) if has_avx512() else (load, broadcast)


@instruction
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c, rounded once."""
    return llvm_intrinsic("fma", a, 3)


@instruction
def fma_scalar(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c of numbers in the precision of c, rounded once as in a vector lane."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fma(*args)

    return c(c, c, c), code


@instruction
def sqrt(typingctx: Any, a: Any) -> Any:
    """√a."""
    return llvm_intrinsic("sqrt", a, 1)


@instruction
def absolute(typingctx: Any, a: Any) -> Any:
    """|a|."""
    return llvm_intrinsic("fabs", a, 1)


@instruction
def extract(typingctx: Any, vector: Any, index: Any) -> Any:
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
def split_halves(typingctx: Any, vector: Any) -> Any:
    """Sixteen lanes as two vectors of eight."""
    half = Vector(vector.scalar)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        orders = (list(range(LANES)), list(range(LANES, WIDE_LANES)))
        parts = [builder.shuffle_vector(args[0], args[0], shuffle_mask(order)) for order in orders]
        return context.make_tuple(builder, sig.return_type, parts)

    return types.UniTuple(half, 2)(vector), code


@instruction
def select_less(typingctx: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
    """yes where a < b, else no (also where a or b is NaN)."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[2], args[3])

    return a(a, a, a, a), code


@instruction
def mask_vector(typingctx: Any, mask: Any, index: Any, vector: Any) -> Any:
    """The vector with zeros in the lanes whose byte of mask[index:] is zero."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bytes_ = ir.VectorType(ir.IntType(8), vector.lanes)
        pointer = builder.bitcast(address_of(context, builder, mask, args[0], args[1]), bytes_.as_pointer())
        kept = builder.icmp_unsigned("!=", builder.load(pointer, align=1), ir.Constant(bytes_, [0] * vector.lanes))
        return builder.select(kept, args[2], ir.Constant(args[2].type, [0.0] * vector.lanes))

    return vector(mask, types.intp, vector), code


@instruction
def mask_gathered(typingctx: Any, mask: Any, index: Any, offsets: Any, vector: Any) -> Any:
    """The vector with a zero in lane l if the byte mask[index + offsets[l]] is zero."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bytes_ = ir.VectorType(ir.IntType(8), vector.lanes)
        found = ir.Constant(bytes_, ir.Undefined)
        for lane, offset in enumerate(cgutils.unpack_tuple(builder, args[2], vector.lanes)):
            byte = builder.load(address_of(context, builder, mask, args[0], builder.add(args[1], offset)))
            found = builder.insert_element(found, byte, ir.Constant(ir.IntType(32), lane))
        kept = builder.icmp_unsigned("!=", found, ir.Constant(bytes_, [0] * vector.lanes))
        return builder.select(kept, args[3], ir.Constant(args[3].type, [0.0] * vector.lanes))

    return vector(mask, types.intp, types.UniTuple(types.intp, vector.lanes), vector), code


@instruction
def shift_into_exponent(typingctx: Any, vector: Any, bias: Any) -> Any:
    """2ⁿ for an integer n in the lowest mantissa bits: adds the bias to the bits, shifts them into the exponent."""
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


@inlined
def prefetch_range(array, index, count):
    """Prefetch the cache lines of array[index : index + count], in pairs (every second one in float64)."""
    for offset in range(0, count, 2 * WIDE_LANES):
        prefetch(array, index + offset)
        prefetch(array, index + offset + WIDE_LANES)
