"""Eight rows of four components as four vectors of eight lanes and back: component-last tensors are read and written
without a permuted copy."""

from typing import Any

from numba import types
from numba.core import cgutils

from quatsphere.kernels.numba_vector import (
    FLOATS,
    LANES,
    Vector,
    address_of,
    instruction,
    ir,
    load_lanes,
    register,
    shuffle_mask,
)


def _transpose(builder: Any, a: list[Any]) -> list[Any]:
    """Within each half of four lanes: (a₀, a₁, a₂, a₃)[row][column] -> [column][row]; its own inverse."""
    low, high = shuffle_mask([0, 8, 1, 9, 4, 12, 5, 13]), shuffle_mask([2, 10, 3, 11, 6, 14, 7, 15])
    first, second = shuffle_mask([0, 1, 8, 9, 4, 5, 12, 13]), shuffle_mask([2, 3, 10, 11, 6, 7, 14, 15])
    out = []
    for half in (low, high):
        left = builder.shuffle_vector(a[0], a[1], half)
        right = builder.shuffle_vector(a[2], a[3], half)
        out += [builder.shuffle_vector(left, right, part) for part in (first, second)]
    return out


@instruction
def load_quaternions(typingctx: Any, array: Any, index: Any, stride: Any, count: Any) -> Any:
    """(w, x, y, z), each eight lanes: lane l is the quaternion at index + l stride; lanes >= count repeat the last."""
    vector = Vector(array.dtype)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        integer, four = args[3].type, register(array.dtype, 4)
        rows = [cgutils.alloca_once(builder, four) for _ in range(LANES)]

        def read(numbers: list[Any]) -> None:
            for place, number in zip(rows, numbers, strict=True):
                at = builder.add(args[1], builder.mul(number, args[2]))
                row = load_lanes(builder, address_of(context, builder, array, args[0], at), array.dtype, 4)
                builder.store(row, place)

        numbers = [ir.Constant(integer, number) for number in range(LANES)]
        with builder.if_else(_is_full(builder, args[3]), likely=True) as (full, partial):
            with full:
                read(numbers)
            with partial:
                last = builder.sub(args[3], ir.Constant(integer, 1))
                read([builder.select(builder.icmp_signed("<", number, last), number, last) for number in numbers])
        found = [builder.load(place) for place in rows]
        both = [builder.shuffle_vector(found[i], found[i + 4], shuffle_mask(list(range(8)))) for i in range(4)]
        return context.make_tuple(builder, sig.return_type, _transpose(builder, both))

    return types.UniTuple(vector, 4)(array, types.intp, types.intp, types.intp), code


@instruction
def store_quaternions(typingctx: Any, array: Any, index: Any, stride: Any, count: Any, quaternions: Any) -> Any:
    """Write the first `count` lanes of (w, x, y, z) as quaternions at index + l stride."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        both = _transpose(builder, cgutils.unpack_tuple(builder, args[4], 4))

        def write(number: int) -> None:
            half = [0, 1, 2, 3] if number < 4 else [4, 5, 6, 7]
            row = builder.shuffle_vector(both[number % 4], both[number % 4], shuffle_mask(half))
            at = builder.add(args[1], builder.mul(ir.Constant(args[1].type, number), args[2]))
            address = address_of(context, builder, array, args[0], at)
            where = builder.bitcast(address, register(array.dtype, 4).as_pointer())
            builder.store(row, where, align=FLOATS[array.dtype][1])

        with builder.if_else(_is_full(builder, args[3]), likely=True) as (full, partial):
            with full:
                for number in range(LANES):
                    write(number)
            with partial:
                for number in range(LANES):
                    with builder.if_then(builder.icmp_signed("<", ir.Constant(args[3].type, number), args[3])):
                        write(number)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, types.intp, quaternions), code


def _is_full(builder: Any, count: Any) -> Any:
    """Whether all eight lanes are meant: the common case, without a test per lane."""
    return builder.icmp_signed("==", count, ir.Constant(count.type, LANES))
