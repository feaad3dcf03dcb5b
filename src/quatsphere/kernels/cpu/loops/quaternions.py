"""Quaternions of eight heads at a time: loading, storing, products, lift and lower, and their derivatives.

A quaternion is a tuple (w, x, y, z) of vectors, one lane per head. With y = lift(q, x) and z = lower(q, a):

    transport    lift(q, x)    lower(q, a)    torque of lift, gradient g at y    torque of lower, g lifted
    sandwich     q x q*        q* a q         g y* + g* y = 2 (⟨y, g⟩, y × g)     a* g + a g* = 2 (⟨a, g⟩, -a × g)
    one_sided    q x           q* a           g y*                               a g*
    identity     x             a              0                                  0

The gradient of q is torque ⊗ q / |q|². In the target's frame, computed from z and its gradient g without lifting them,
the torque of lower is t = z g* + z* g (one_sided: z g*); in the shared frame it is q t q* / |q|².
"""

from typing import Any

from numba import types
from numba.core import cgutils

from quatsphere.kernels.cpu.loops import LANES
from quatsphere.kernels.cpu.loops.jit import inlined, instruction
from quatsphere.kernels.cpu.loops.simd import (
    Vector,
    address_of,
    fma,
    ir,
    load,
    load_lanes,
    number_type,
    shuffle_mask,
    splat,
    store,
    store_lanes,
    vector_type,
)

SANDWICH, IDENTITY, ONE_SIDED = 0, 1, 2
TILE_SIZE = 4 * LANES
"""Elements of one quaternion channel of eight heads in a lane table."""


@inlined
def conj(q):
    """q*."""
    zero = splat(q[0], 0.0)
    return q[0], zero - q[1], zero - q[2], zero - q[3]


@inlined
def dot(a, b):
    """⟨a, b⟩ = Re(a* b)."""
    return fma(a[0], b[0], fma(a[1], b[1], fma(a[2], b[2], a[3] * b[3])))


@inlined
def hamilton_product(a, b):
    """a ⊗ b."""
    zero = splat(a[0], 0.0)
    nx, ny, nz = zero - a[1], zero - a[2], zero - a[3]
    return (
        fma(a[0], b[0], fma(nx, b[1], fma(ny, b[2], nz * b[3]))),
        fma(a[0], b[1], fma(a[1], b[0], fma(a[2], b[3], nz * b[2]))),
        fma(a[0], b[2], fma(nx, b[3], fma(a[2], b[0], a[3] * b[1]))),
        fma(a[0], b[3], fma(a[1], b[2], fma(ny, b[1], a[3] * b[0]))),
    )


@inlined
def rotation_matrix(q):
    """Matrix of x -> q ⊗ x ⊗ q*: |q|² for the real part, then 3 x 3 entries, row by row, for the imaginary part."""
    w, x, y, z = q
    ww, xx, yy, zz = w * w, x * x, y * y, z * z
    xy, xz, yz, wx, wy, wz = x * y, x * z, y * z, w * x, w * y, w * z
    return (
        (ww + xx) + (yy + zz),
        (ww + xx) - (yy + zz),
        2.0 * (xy - wz),
        2.0 * (xz + wy),
        2.0 * (xy + wz),
        (ww + yy) - (xx + zz),
        2.0 * (yz - wx),
        2.0 * (xz - wy),
        2.0 * (yz + wx),
        (ww + zz) - (xx + yy),
    )


@inlined
def apply_rotation(m, x):
    """q ⊗ x ⊗ q* with m = rotation_matrix(q)."""
    return (
        m[0] * x[0],
        fma(m[1], x[1], fma(m[2], x[2], m[3] * x[3])),
        fma(m[4], x[1], fma(m[5], x[2], m[6] * x[3])),
        fma(m[7], x[1], fma(m[8], x[2], m[9] * x[3])),
    )


@inlined
def lift(transport, q, m, x):
    """Vertex frame -> shared frame, m = rotation_matrix(q); with the conjugate of q it lowers."""
    if transport == SANDWICH:
        return apply_rotation(m, x)
    if transport == ONE_SIDED:
        return hamilton_product(q, x)
    return x


@inlined
def add_torque(transport, torque, a, b):
    """torque + one channel's contribution: sandwich a b* + a* b = 2 (⟨a, b⟩, -a × b), one_sided a b*.

    The gradient of lift has a = g and b = y, in the shared frame; that of lower a = z and b = g, in the target's.
    """
    if transport == IDENTITY:
        return torque
    real, zero = dot(a, b), splat(a[0], 0.0)
    cross_x = fma(a[2], b[3], zero - a[3] * b[2])
    cross_y = fma(a[3], b[1], zero - a[1] * b[3])
    cross_z = fma(a[1], b[2], zero - a[2] * b[1])
    if transport == SANDWICH:
        return torque[0] + 2.0 * real, torque[1] - 2.0 * cross_x, torque[2] - 2.0 * cross_y, torque[3] - 2.0 * cross_z
    return (
        torque[0] + real,
        torque[1] + (fma(b[0], a[1], zero - a[0] * b[1]) - cross_x),
        torque[2] + (fma(b[0], a[2], zero - a[0] * b[2]) - cross_y),
        torque[3] + (fma(b[0], a[3], zero - a[0] * b[3]) - cross_z),
    )


@inlined
def load_tile(table, at):
    """Quaternion of eight heads at offset `at` of a lane table (..., 4, 8)."""
    return load(table, at), load(table, at + LANES), load(table, at + 2 * LANES), load(table, at + 3 * LANES)


@inlined
def store_tile(table, at, q):
    """Inverse of `load_tile`."""
    store(table, at, q[0])
    store(table, at + LANES, q[1])
    store(table, at + 2 * LANES, q[2])
    store(table, at + 3 * LANES, q[3])


def _transpose(builder: Any, a: list[Any]) -> list[Any]:
    """4 x 4 transposes of the lower and the upper four lanes of four vectors; an involution."""
    low, high = shuffle_mask([0, 8, 1, 9, 4, 12, 5, 13]), shuffle_mask([2, 10, 3, 11, 6, 14, 7, 15])
    first, second = shuffle_mask([0, 1, 8, 9, 4, 5, 12, 13]), shuffle_mask([2, 3, 10, 11, 6, 7, 14, 15])
    out = []
    for half in (low, high):
        left = builder.shuffle_vector(a[0], a[1], half)
        right = builder.shuffle_vector(a[2], a[3], half)
        out += [builder.shuffle_vector(left, right, part) for part in (first, second)]
    return out


def _all_lanes(builder: Any, count: Any) -> Any:
    return builder.icmp_signed("==", count, ir.Constant(count.type, LANES))


@instruction
def lane_offsets(typingctx: Any, count: Any, heads: Any, stride: Any, image_stride: Any) -> Any:
    """Offsets of eight lanes that hold the heads of one or several images: lane l is head l % heads of image
    l // heads; lanes >= count repeat the last one."""
    integer, offsets = types.intp, types.UniTuple(types.intp, LANES)

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        number, heads, stride, image_stride = args
        last, found = builder.sub(number, ir.Constant(number.type, 1)), []
        for index in range(LANES):
            lane = ir.Constant(number.type, index)
            lane = builder.select(builder.icmp_signed("<", lane, last), lane, last)
            image = builder.udiv(lane, heads)
            head = builder.sub(lane, builder.mul(image, heads))
            found.append(builder.add(builder.mul(head, stride), builder.mul(image, image_stride)))
        return context.make_tuple(builder, offsets, found)

    return offsets(integer, integer, integer, integer), code


@instruction
def gather_quaternions(typingctx: Any, array: Any, index: Any, offsets: Any) -> Any:
    """(w, x, y, z) from a component-last array: lane l is the quaternion at index + offsets[l]."""
    vector = Vector(number_type(array.dtype))

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        places = [builder.add(args[1], offset) for offset in cgutils.unpack_tuple(builder, args[2], LANES)]
        rows = [load_lanes(builder, address_of(context, builder, array, args[0], at), array.dtype, 4) for at in places]
        return context.make_tuple(builder, sig.return_type, _transpose_rows(builder, rows))

    return types.UniTuple(vector, 4)(array, types.intp, types.UniTuple(types.intp, LANES)), code


@instruction
def scatter_quaternions(typingctx: Any, array: Any, index: Any, offsets: Any, quaternions: Any) -> Any:
    """Inverse of `gather_quaternions`; lanes with the same offset hold the same quaternion."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pairs = _transpose(builder, cgutils.unpack_tuple(builder, args[3], 4))
        for lane, offset in enumerate(cgutils.unpack_tuple(builder, args[2], LANES)):
            _write_lane(context, builder, array, args[0], builder.add(args[1], offset), pairs, lane)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.UniTuple(types.intp, LANES), quaternions), code


def _transpose_rows(builder: Any, rows: list[Any]) -> list[Any]:
    """Four vectors of components from eight rows of four."""
    order = shuffle_mask(list(range(LANES)))
    return _transpose(builder, [builder.shuffle_vector(rows[i], rows[i + 4], order) for i in range(4)])


def _write_lane(context: Any, builder: Any, array: Any, value: Any, at: Any, pairs: list[Any], lane: int) -> None:
    half = [0, 1, 2, 3] if lane < 4 else [4, 5, 6, 7]
    row = builder.shuffle_vector(pairs[lane % 4], pairs[lane % 4], shuffle_mask(half))
    address = address_of(context, builder, array, value, at)
    store_lanes(builder, address, array.dtype, row)


@instruction
def load_quaternions(typingctx: Any, array: Any, index: Any, stride: Any, count: Any) -> Any:
    """(w, x, y, z) from a component-last array: lane l is the quaternion at index + l stride; lanes >= count repeat
    the last one."""
    vector = Vector(number_type(array.dtype))

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        integer, four = args[3].type, vector_type(number_type(array.dtype), 4)
        rows = [cgutils.alloca_once(builder, four) for _ in range(LANES)]

        def read(lanes: list[Any]) -> None:
            for slot, lane in zip(rows, lanes, strict=True):
                at = builder.add(args[1], builder.mul(lane, args[2]))
                row = load_lanes(builder, address_of(context, builder, array, args[0], at), array.dtype, 4)
                builder.store(row, slot)

        lanes = [ir.Constant(integer, lane) for lane in range(LANES)]
        with builder.if_else(_all_lanes(builder, args[3]), likely=True) as (full, partial):
            with full:
                read(lanes)
            with partial:
                last = builder.sub(args[3], ir.Constant(integer, 1))
                read([builder.select(builder.icmp_signed("<", lane, last), lane, last) for lane in lanes])
        loaded = [builder.load(slot) for slot in rows]
        return context.make_tuple(builder, sig.return_type, _transpose_rows(builder, loaded))

    return types.UniTuple(vector, 4)(array, types.intp, types.intp, types.intp), code


@instruction
def store_quaternions(typingctx: Any, array: Any, index: Any, stride: Any, count: Any, quaternions: Any) -> Any:
    """Write the first `count` lanes of (w, x, y, z) as quaternions at index + l stride."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pairs = _transpose(builder, cgutils.unpack_tuple(builder, args[4], 4))

        def write(lane: int) -> None:
            at = builder.add(args[1], builder.mul(ir.Constant(args[1].type, lane), args[2]))
            _write_lane(context, builder, array, args[0], at, pairs, lane)

        with builder.if_else(_all_lanes(builder, args[3]), likely=True) as (full, partial):
            with full:
                for lane in range(LANES):
                    write(lane)
            with partial:
                for lane in range(LANES):
                    with builder.if_then(builder.icmp_signed("<", ir.Constant(args[3].type, lane), args[3])):
                        write(lane)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, types.intp, quaternions), code
