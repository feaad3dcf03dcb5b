"""Quaternion products by eight multiplications instead of sixteen (Howell and Lafon 1975), on rows of quaternions.

Up to signs L(w) is a matrix of the group Z₂ x Z₂, which four multiplications between two Hadamard transforms apply;
four more put the signs right. With ŵ = H w / 4 and x̂ = H x, H the 4 x 4 Hadamard matrix:

    g = H (ŵ ∘ x̂)      w ⊗ x = (2 w₀x₀ - g₀,  g₁ - 2 w₃x₂,  g₂ - 2 w₁x₃,  g₃ - 2 w₂x₁)

Transforms of weights are made once, those of a sum of products are taken once per sum, so that a matrix of quaternions
costs half the multiplications of its real 4 x 4 blocks, and some additions, which other units of the processor do.

*Narrow* rows hold few quaternions, component last, and are read number by number; *wide* rows hold sixteen quaternions
in the lanes of four vectors, component first: (4, O).
"""

from typing import Any

import torch
from torch import Tensor

from quatsphere.kernels.numba_vector import (
    FLOATS,
    WIDE,
    Vector,
    fma,
    inner,
    instruction,
    ir,
    load_wide,
    many_registers,
    shuffle_mask,
    splat,
    spread_wide,
    store,
)

SIX = many_registers()
"""Whether the registers hold the sums of six tokens; no part of the result."""
SIGNS = ((1, 1, 1, 1), (1, -1, 1, -1), (1, 1, -1, -1), (1, -1, -1, 1))
"""H."""


UNPACK = torch.cat((torch.tensor(SIGNS) * torch.tensor([-1, 1, 1, 1]) / 4, torch.diag(torch.tensor([2, -2, -2, -2]))))
"""Eight sums -> the product."""


def unpack(sums: Tensor, count: int) -> Tensor:
    """Products from their eight sums (..., 8, O), see `add_outer` -> (..., count, 4)."""
    return sums[..., :count].transpose(-1, -2) @ UNPACK.to(sums.dtype)


@instruction
def transform_lanes(typingctx: Any, vector: Any) -> Any:
    """H of every four lanes."""

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
    """q* of every four lanes."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.VectorType(FLOATS[vector.scalar][0], vector.lanes)
        return builder.fmul(ir.Constant(kind, [1.0, -1.0, -1.0, -1.0] * (vector.lanes // 4)), args[0])

    return vector(vector), code


@inner
def transform_block(table, count, out):  # type: ignore[no-untyped-def]
    """H of every quaternion of narrow rows, `count` numbers."""
    for at in range(0, count, WIDE):
        store(out, at, transform_lanes(load_wide(table, at)))


@inner
def conjugate_block(table, count, out):  # type: ignore[no-untyped-def]
    """The conjugates of narrow rows."""
    for at in range(0, count, WIDE):
        store(out, at, conjugate_lanes(load_wide(table, at)))


@inner
def transformed(a):  # type: ignore[no-untyped-def]
    """H of four vectors."""
    b, c, d, e = a[0] + a[1], a[0] - a[1], a[2] + a[3], a[2] - a[3]
    return b + d, c + e, b - d, c - e


@inner
def add_four_products(sums, x, places, weights):  # type: ignore[no-untyped-def]
    """Four sums plus weights times the narrow numbers at these places."""
    return (
        fma(spread_wide(x, places[0]), weights[0], sums[0]),
        fma(spread_wide(x, places[1]), weights[1], sums[1]),
        fma(spread_wide(x, places[2]), weights[2], sums[2]),
        fma(spread_wide(x, places[3]), weights[3], sums[3]),
    )


@inner
def load_four(table, at, step):  # type: ignore[no-untyped-def]
    """Four vectors."""
    return (
        load_wide(table, at),
        load_wide(table, at + step),
        load_wide(table, at + 2 * step),
        load_wide(table, at + 3 * step),
    )


@inner
def add_four(table, at, step, four):  # type: ignore[no-untyped-def]
    """Four vectors, added to what is there."""
    a = load_four(table, at, step)
    store(table, at, a[0] + four[0])
    store(table, at + step, a[1] + four[1])
    store(table, at + 2 * step, a[2] + four[2])
    store(table, at + 3 * step, a[3] + four[3])


@inner
def signed(first):  # type: ignore[no-untyped-def]
    """(-g₀, g₁, g₂, g₃) from the sums ŵ ∘ x̂: what the last four multiplications are added to."""
    g = transformed(first)
    return splat(g[0], 0.0) - g[0], g[1], g[2], g[3]


@inner
def put_four(put, into, at, step, four):  # type: ignore[no-untyped-def]
    """put(into, ·) of four vectors."""
    put(into, at, four[0])
    put(into, at + step, four[1])
    put(into, at + 2 * step, four[2])
    put(into, at + 3 * step, four[3])


@inner
def hat_places(at):  # type: ignore[no-untyped-def]
    """Where the components of a transformed quaternion lie."""
    return at, at + 1, at + 2, at + 3


@inner
def narrow_right(at):  # type: ignore[no-untyped-def]
    """Where the components of a narrow factor on the right lie, in the order of the last four multiplications."""
    return at, at + 2, at + 3, at + 1


@inner
def narrow_left(at):  # type: ignore[no-untyped-def]
    """Likewise of a factor on the left."""
    return at, at + 3, at + 1, at + 2


@inner
def add_tokens(rows, x, places, at, row, weights):  # type: ignore[no-untyped-def]
    """The sums of two or six tokens plus their products with the same weights."""
    a, b, c, d, e, f = rows
    a = add_four_products(a, x, places(at), weights)
    b = add_four_products(b, x, places(at + row), weights)
    if SIX:
        c = add_four_products(c, x, places(at + 2 * row), weights)
        d = add_four_products(d, x, places(at + 3 * row), weights)
        e = add_four_products(e, x, places(at + 4 * row), weights)
        f = add_four_products(f, x, places(at + 5 * row), weights)
    return a, b, c, d, e, f


@inner
def widen(hats, plain, row, tokens, quaternions, packed, width, put, into):  # type: ignore[no-untyped-def]
    """put(into, ·) of Σ_i W_oi ⊗ x_i: narrow rows (tokens, row) times packed weights (I, 8, O) -> wide rows (4, O).

    Tokens share the loads of weights, six where the registers hold their sums. The sums over i are in order.
    """
    for token in range(0, tokens, 6 if SIX else 2):
        for column in range(0, width, WIDE):
            zero = splat(load_wide(packed, column), 0.0)
            none = (zero, zero, zero, zero)
            rows = (none, none, none, none, none, none)
            for i in range(quaternions):
                weights = load_four(packed, 8 * i * width + column, width)
                rows = add_tokens(rows, hats, hat_places, token * row + 4 * i, row, weights)
            rows = (
                signed(rows[0]),
                signed(rows[1]),
                signed(rows[2]),
                signed(rows[3]),
                signed(rows[4]),
                signed(rows[5]),
            )
            for i in range(quaternions):
                weights = load_four(packed, (8 * i + 4) * width + column, width)
                rows = add_tokens(rows, plain, narrow_right, token * row + 4 * i, row, weights)
            at, step = 4 * token * width + column, 4 * width
            put_four(put, into, at, width, rows[0])
            put_four(put, into, at + step, width, rows[1])
            if SIX:
                put_four(put, into, at + 2 * step, width, rows[2])
                put_four(put, into, at + 3 * step, width, rows[3])
                put_four(put, into, at + 4 * step, width, rows[4])
                put_four(put, into, at + 5 * step, width, rows[5])


@inner
def wide_left(v):  # type: ignore[no-untyped-def]
    """A wide factor on the left, and its components in the order of the last four multiplications."""
    return v, (v[0], v[3], v[1], v[2])


@inner
def wide_right_conjugated(v):  # type: ignore[no-untyped-def]
    """The conjugate of a wide factor on the right, likewise."""
    zero = splat(v[0], 0.0)
    v = (v[0], zero - v[1], zero - v[2], zero - v[3])
    return v, (v[0], v[2], v[3], v[1])


@inner
def add_outer(hats, plain, places, row, tokens, quaternions, wide, factor, width, sums):  # type: ignore[no-untyped-def]
    """The eight sums (I, 8, O) of Σ_tokens narrow_i with wide_o, added to what is there; `places` and `factor` say on
    which side each stands. Two narrow quaternions share the loads of the wide ones; sums over tokens are in order."""
    for i in range(0, quaternions, 2):
        other = min(i + 1, quaternions - 1)
        for column in range(0, width, WIDE):
            zero = splat(load_wide(wide, column), 0.0)
            none = (zero, zero, zero, zero)
            a, b, c, d = none, none, none, none
            for token in range(tokens):
                v, w = factor(load_four(wide, 4 * token * width + column, width))
                h, at, to = transformed(v), token * row + 4 * i, token * row + 4 * other
                a = add_four_products(a, hats, hat_places(at), h)
                b = add_four_products(b, plain, places(at), w)
                c = add_four_products(c, hats, hat_places(to), h)
                d = add_four_products(d, plain, places(to), w)
            place = 8 * i * width + column
            add_four(sums, place, width, a)
            add_four(sums, place + 4 * width, width, b)
            if other > i:
                add_four(sums, place + 8 * width, width, c)
                add_four(sums, place + 12 * width, width, d)
