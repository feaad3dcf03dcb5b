"""Quaternion products with eight multiplications instead of sixteen (Howell and Lafon 1975), on rows of quaternions.

Up to signs L(w) is a matrix of the group Z₂ x Z₂, which four multiplications between two Hadamard transforms apply;
four more correct the signs. With ŵ = H w / 4 and x̂ = H x, H the 4 x 4 Hadamard matrix:

    g = H (ŵ ∘ x̂)      w ⊗ x = (2 w₀x₀ - g₀,  g₁ - 2 w₃x₂,  g₂ - 2 w₁x₃,  g₃ - 2 w₂x₁)

Weights are transformed once, and a sum of products once per sum, so a matrix of quaternions costs half the
multiplications of its real 4 x 4 blocks, plus additions, which other execution units perform.

*Narrow* rows hold few quaternions, component last, and are read element by element; *wide* rows hold as many
quaternions as a register has lanes (sixteen or eight) in four vectors, component first: (4, O).
"""

from typing import Any

import torch
from torch import Tensor

from quatsphere.kernels.cpu.loops.jit import compiled, has_avx512, inlined, instruction
from quatsphere.kernels.cpu.loops.simd import (
    COLUMN_LANES,
    FLOATS,
    Vector,
    broadcast_columns,
    fma,
    ir,
    load_columns,
    shuffle_mask,
    splat,
    store,
)

USE_SIX_TOKENS = has_avx512()
"""True to accumulate six tokens in registers, False for three; does not affect the result."""
HADAMARD = ((1, 1, 1, 1), (1, -1, 1, -1), (1, 1, -1, -1), (1, -1, -1, 1))
UNPACK = torch.cat(
    (torch.tensor(HADAMARD) * torch.tensor([-1, 1, 1, 1]) / 4, torch.diag(torch.tensor([2, -2, -2, -2])))
)
"""Eight sums -> the product."""


def unpack_products(sums: Tensor, count: int) -> Tensor:
    """Products from their eight sums (..., 8, O) of `add_outer` -> (..., count, 4)."""
    return sums[..., :count].transpose(-1, -2) @ UNPACK.to(sums.dtype)


@instruction
def hadamard_lanes(typingctx: Any, vector: Any) -> Any:
    """H of every group of four lanes."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.VectorType(FLOATS[vector.scalar][0], vector.lanes)
        x = args[0]
        for other, signs in (([1, 0, 3, 2], [1, -1, 1, -1]), ([2, 3, 0, 1], [1, 1, -1, -1])):
            order = [group + lane for group in range(0, vector.lanes, 4) for lane in other]
            sign = ir.Constant(kind, [float(s) for s in signs] * (vector.lanes // 4))
            x = builder.fadd(builder.shuffle_vector(x, x, shuffle_mask(order)), builder.fmul(sign, x))
        return x

    assert isinstance(vector, Vector)
    return vector(vector), code


@instruction
def conjugate_lanes(typingctx: Any, vector: Any) -> Any:
    """q* of every group of four lanes."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.VectorType(FLOATS[vector.scalar][0], vector.lanes)
        return builder.fmul(ir.Constant(kind, [1.0, -1.0, -1.0, -1.0] * (vector.lanes // 4)), args[0])

    return vector(vector), code


@inlined
def hadamard_block(table, count, out):
    """H of every quaternion of narrow rows, `count` elements."""
    for at in range(0, count, COLUMN_LANES):
        store(out, at, hadamard_lanes(load_columns(table, at)))


@inlined
def conjugate_block(table, count, out):
    """Conjugates of narrow rows, `count` elements."""
    for at in range(0, count, COLUMN_LANES):
        store(out, at, conjugate_lanes(load_columns(table, at)))


@inlined
def hadamard(a):
    """H of four vectors."""
    b, c, d, e = a[0] + a[1], a[0] - a[1], a[2] + a[3], a[2] - a[3]
    return b + d, c + e, b - d, c - e


@inlined
def add_four_products(sums, x, indices, weights):
    """Four sums plus weights times the narrow elements x[indices]."""
    return (
        fma(broadcast_columns(x, indices[0]), weights[0], sums[0]),
        fma(broadcast_columns(x, indices[1]), weights[1], sums[1]),
        fma(broadcast_columns(x, indices[2]), weights[2], sums[2]),
        fma(broadcast_columns(x, indices[3]), weights[3], sums[3]),
    )


@inlined
def load_four(table, at, step):
    """Four vectors at distance `step`."""
    return (
        load_columns(table, at),
        load_columns(table, at + step),
        load_columns(table, at + 2 * step),
        load_columns(table, at + 3 * step),
    )


@inlined
def write_four(write, into, at, step, four):
    """write(into, offset, vector) for four vectors at distance `step`; `write` is `store` or a similar function."""
    write(into, at, four[0])
    write(into, at + step, four[1])
    write(into, at + 2 * step, four[2])
    write(into, at + 3 * step, four[3])


@inlined
def accumulate(table, at, vector):
    """table[at:] += vector."""
    store(table, at, load_columns(table, at) + vector)


@inlined
def signed_hadamard(sums):
    """(-g₀, g₁, g₂, g₃) from the sums of ŵ ∘ x̂, to which the last four multiplications are added."""
    g = hadamard(sums)
    return splat(g[0], 0.0) - g[0], g[1], g[2], g[3]


@inlined
def hadamard_indices(at):
    """Indices of the components of a transformed quaternion."""
    return at, at + 1, at + 2, at + 3


@inlined
def right_factor_indices(at):
    """Indices of a narrow right factor's components, in the order of the last four multiplications."""
    return at, at + 2, at + 3, at + 1


@inlined
def left_factor_indices(at):
    """Indices of a narrow left factor's components, in the order of the last four multiplications."""
    return at, at + 3, at + 1, at + 2


@inlined
def add_tokens(rows, x, indices, at, row, weights):
    """The sums of three or six tokens plus their products with the same weights."""
    a, b, c, d, e, f = rows
    a = add_four_products(a, x, indices(at), weights)
    b = add_four_products(b, x, indices(at + row), weights)
    c = add_four_products(c, x, indices(at + 2 * row), weights)
    if USE_SIX_TOKENS:
        d = add_four_products(d, x, indices(at + 3 * row), weights)
        e = add_four_products(e, x, indices(at + 4 * row), weights)
        f = add_four_products(f, x, indices(at + 5 * row), weights)
    return a, b, c, d, e, f


@inlined
def multiply_wide(hats, plain, row, tokens, quaternions, packed, width, write, into):
    """write(into, ·) of Σ_i W_oi ⊗ x_i: narrow rows x (tokens, row), given as transforms `hats` and as they are, times
    packed weights (I, 8, O) -> wide rows (4, O).

    Tokens share the loads of weights. The sums over i are in order.
    """
    for token in range(0, tokens, 6 if USE_SIX_TOKENS else 3):
        for column in range(0, width, COLUMN_LANES):
            zero = splat(load_columns(packed, column), 0.0)
            none = (zero, zero, zero, zero)
            rows = (none, none, none, none, none, none)
            for i in range(quaternions):
                weights = load_four(packed, 8 * i * width + column, width)
                rows = add_tokens(rows, hats, hadamard_indices, token * row + 4 * i, row, weights)
            rows = (
                signed_hadamard(rows[0]),
                signed_hadamard(rows[1]),
                signed_hadamard(rows[2]),
                signed_hadamard(rows[3]),
                signed_hadamard(rows[4]),
                signed_hadamard(rows[5]),
            )
            for i in range(quaternions):
                weights = load_four(packed, (8 * i + 4) * width + column, width)
                rows = add_tokens(rows, plain, right_factor_indices, token * row + 4 * i, row, weights)
            at, step = 4 * token * width + column, 4 * width
            write_four(write, into, at, width, rows[0])
            write_four(write, into, at + step, width, rows[1])
            write_four(write, into, at + 2 * step, width, rows[2])
            if USE_SIX_TOKENS:
                write_four(write, into, at + 3 * step, width, rows[3])
                write_four(write, into, at + 4 * step, width, rows[4])
                write_four(write, into, at + 5 * step, width, rows[5])


@inlined
def wide_left(v):
    """A wide left factor, and its components in the order of the last four multiplications."""
    return v, (v[0], v[3], v[1], v[2])


@inlined
def wide_right_conjugated(v):
    """The conjugate of a wide right factor, and its components in the order of the last four multiplications."""
    zero = splat(v[0], 0.0)
    v = (v[0], zero - v[1], zero - v[2], zero - v[3])
    return v, (v[0], v[2], v[3], v[1])


@inlined
def add_outer(hats, plain, indices, row, tokens, quaternions, wide, factor, width, sums):
    """Add the eight sums (I, 8, O) of Σ_tokens narrow_i with wide_o to `sums`; `indices` and `factor` select the sides.

    Two narrow quaternions share the loads of the wide ones; sums over tokens are in order. Where sixteen
    registers are too few for the sixteen sums, the halves of the eight take turns.
    """
    for i in range(0, quaternions, 2):
        other = min(i + 1, quaternions - 1)
        for column in range(0, width, COLUMN_LANES):
            zero = splat(load_columns(wide, column), 0.0)
            none = (zero, zero, zero, zero)
            a, b, c, d = none, none, none, none
            for token in range(tokens):
                v, w = factor(load_four(wide, 4 * token * width + column, width))
                h, first, second = hadamard(v), token * row + 4 * i, token * row + 4 * other
                a = add_four_products(a, hats, hadamard_indices(first), h)
                c = add_four_products(c, hats, hadamard_indices(second), h)
                if USE_SIX_TOKENS:
                    b = add_four_products(b, plain, indices(first), w)
                    d = add_four_products(d, plain, indices(second), w)
            if not USE_SIX_TOKENS:
                for token in range(tokens):
                    v, w = factor(load_four(wide, 4 * token * width + column, width))
                    b = add_four_products(b, plain, indices(token * row + 4 * i), w)
                    d = add_four_products(d, plain, indices(token * row + 4 * other), w)
            at = 8 * i * width + column
            write_four(accumulate, sums, at, width, a)
            write_four(accumulate, sums, at + 4 * width, width, b)
            if other > i:
                write_four(accumulate, sums, at + 8 * width, width, c)
                write_four(accumulate, sums, at + 12 * width, width, d)


@inlined
def store_packed(q, into, at, step):
    """ŵ, then 2 w₀, -2 w₃, -2 w₁, -2 w₂: the multipliers of a left factor."""
    w, x, y, z = q
    into[at] = ((w + x) + (y + z)) / 4
    into[at + step] = ((w - x) + (y - z)) / 4
    into[at + 2 * step] = ((w + x) - (y + z)) / 4
    into[at + 3 * step] = ((w - x) - (y - z)) / 4
    into[at + 4 * step] = 2 * w
    into[at + 5 * step] = -2 * z
    into[at + 6 * step] = -2 * x
    into[at + 7 * step] = -2 * y


@inlined
def store_column(column, into, at):
    """Four adjacent elements."""
    into[at], into[at + 1], into[at + 2], into[at + 3] = column


@inlined
def store_real_matrix(q, into, at, step):
    """The columns of L(q), one per component of the wide factor."""
    w, x, y, z = q
    store_column((w, x, y, z), into, at)
    store_column((-x, w, z, -y), into, at + step)
    store_column((-y, -z, w, x), into, at + 2 * step)
    store_column((-z, y, -x, w), into, at + 3 * step)


@compiled
def pack_weights(sizes, up, down, packed):
    """up (H, O, Q, 4) and down (H, Q, O, 4) -> zeroed PackedWeights; sizes = (H, O, Q, padded O, padded 4 Q)."""
    H, O, Q, wide, narrow = sizes
    for head in range(H):
        for q in range(Q):
            for o in range(O):
                i, j = ((head * O + o) * Q + q) * 4, ((head * Q + q) * O + o) * 4
                u = up[i], up[i + 1], up[i + 2], up[i + 3]
                d = down[j], down[j + 1], down[j + 2], down[j + 3]
                at, real = (head * Q + q) * 8 * wide + o, (head * 4 * wide + o) * narrow + 4 * q
                store_packed(u, packed.up, at, wide)
                store_packed((d[0], -d[1], -d[2], -d[3]), packed.down_conj, at, wide)
                store_real_matrix(d, packed.down, real, wide * narrow)
                store_real_matrix((u[0], -u[1], -u[2], -u[3]), packed.up_conj, real, wide * narrow)
