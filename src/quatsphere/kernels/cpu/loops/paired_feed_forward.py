"""Products of the Hamilton block in bfloat16: real matrices, whose factors are rounded and whose sums are in float32.

A register holds sixteen pairs, so a real matrix takes as many multiplications as quaternion products by eight
(`hamilton_products`), without their transforms. Products with a wide result pair neighbouring channels, those that sum
over the wide rows neighbouring wide elements, and the gradients of the weights neighbouring tokens. The recomputed
activation and its gradient stay in registers until they are rounded.
"""

from typing import Any, NamedTuple

from quatsphere.kernels.cpu.loops.bfloat16 import add_products, adjacent_pairs, lane_pairs
from quatsphere.kernels.cpu.loops.elementwise import short_gelu_with_slope
from quatsphere.kernels.cpu.loops.hamilton_products import load_four, write_four
from quatsphere.kernels.cpu.loops.jit import inlined
from quatsphere.kernels.cpu.loops.simd import WIDE_LANES, broadcast_wide, load_wide, shifted, splat, store

COLUMNS = 4 * WIDE_LANES
"""Wide elements at a time; rows have a multiple of it."""


class PairedWeights(NamedTuple):
    """Flat real matrices of pairs per head: up and down* (C / 2, M), down and up* (M / 2, C)."""

    up: Any
    down_conj: Any
    down: Any
    up_conj: Any


class PairedBlock(NamedTuple):
    """Scratch of a block of tokens: rows (tokens, C) and their result, their pairs of channels (tokens, C / 2) and
    of tokens (tokens / 2, C), and pairs of wide elements (tokens, M / 2) and of tokens (tokens / 2, M)."""

    x: Any
    gradient: Any
    result: Any
    x_pairs: Any
    gradient_pairs: Any
    x_tokens: Any
    gradient_tokens: Any
    wide_pairs: Any
    activation_tokens: Any
    wide_tokens: Any


@inlined
def pair_channels(table, count, out):
    """Rows of `count` elements in all as pairs of neighbours."""
    for at in range(0, count, 2 * WIDE_LANES):
        store(out, at // 2, adjacent_pairs(load_wide(table, at), load_wide(table, at + WIDE_LANES)))


@inlined
def pair_tokens(table, row, tokens, out):
    """Rows (tokens, row) as pairs of each element with the next token's, (tokens / 2, row)."""
    for token in range(0, tokens, 2):
        for column in range(0, row, WIDE_LANES):
            at = token * row + column
            pairs = lane_pairs(load_wide(table, at), load_wide(table, at + row))
            store(out, token // 2 * row + column, pairs)


@inlined
def add_row(sums, x, at, weights):
    """Four sums plus one pair x[at] times four vectors of weights."""
    pair = broadcast_wide(x, at)
    return (
        add_products(sums[0], pair, weights[0]),
        add_products(sums[1], pair, weights[1]),
        add_products(sums[2], pair, weights[2]),
        add_products(sums[3], pair, weights[3]),
    )


@inlined
def add_column(sums, x, at, step, right):
    """Four sums plus the pairs x[at + n step] times one vector."""
    return (
        add_products(sums[0], broadcast_wide(x, at), right),
        add_products(sums[1], broadcast_wide(x, at + step), right),
        add_products(sums[2], broadcast_wide(x, at + 2 * step), right),
        add_products(sums[3], broadcast_wide(x, at + 3 * step), right),
    )


@inlined
def gelu_of_four(sums):
    """(gelu, its slope) of four vectors."""
    a, b = short_gelu_with_slope(sums[0]), short_gelu_with_slope(sums[1])
    c, d = short_gelu_with_slope(sums[2]), short_gelu_with_slope(sums[3])
    return (a[0], b[0], c[0], d[0]), (a[1], b[1], c[1], d[1])


@inlined
def multiply_four(a, b):
    """Products of four vectors with four."""
    return a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3]


@inlined
def store_adjacent(into, at, four):
    """Four adjacent vectors as pairs of neighbours."""
    store(into, at, adjacent_pairs(four[0], four[1]))
    store(into, at + WIDE_LANES, adjacent_pairs(four[2], four[3]))


@inlined
def store_tokens(into, at, four, next_four):
    """Four adjacent vectors as pairs with the next token's."""
    store(into, at, lane_pairs(four[0], next_four[0]))
    store(into, at + WIDE_LANES, lane_pairs(four[1], next_four[1]))
    store(into, at + 2 * WIDE_LANES, lane_pairs(four[2], next_four[2]))
    store(into, at + 3 * WIDE_LANES, lane_pairs(four[3], next_four[3]))


@inlined
def activate_wide(x, up, pairs, tokens, width, into):
    """gelu(up x) of rows of `pairs` pairs, as pairs of neighbours; four tokens share the loads of weights."""
    for token in range(0, tokens, 4):
        for column in range(0, width, COLUMNS):
            zero, at = splat(load_wide(up, column), 0.0), token * pairs
            none = (zero, zero, zero, zero)
            a, b, c, d = none, none, none, none
            for pair in range(pairs):
                weights = load_four(up, pair * width + column, WIDE_LANES)
                a = add_row(a, x, at + pair, weights)
                b = add_row(b, x, at + pairs + pair, weights)
                c = add_row(c, x, at + 2 * pairs + pair, weights)
                d = add_row(d, x, at + 3 * pairs + pair, weights)
            place, half = (token * width + column) // 2, width // 2
            store_adjacent(into, place, gelu_of_four(a)[0])
            store_adjacent(into, place + half, gelu_of_four(b)[0])
            store_adjacent(into, place + 2 * half, gelu_of_four(c)[0])
            store_adjacent(into, place + 3 * half, gelu_of_four(d)[0])


@inlined
def activate_with_gradient(block, weights, pairs, tokens, width):
    """The activation and the gradient of its argument, as pairs for the other products; two tokens at a time."""
    for token in range(0, tokens, 2):
        for column in range(0, width, COLUMNS):
            zero, at = splat(load_wide(weights.up, column), 0.0), token * pairs
            none = (zero, zero, zero, zero)
            a, b, c, d = none, none, none, none
            for pair in range(pairs):
                up = load_four(weights.up, pair * width + column, WIDE_LANES)
                a = add_row(a, block.x_pairs, at + pair, up)
                b = add_row(b, block.x_pairs, at + pairs + pair, up)
                down = load_four(weights.down_conj, pair * width + column, WIDE_LANES)
                c = add_row(c, block.gradient_pairs, at + pair, down)
                d = add_row(d, block.gradient_pairs, at + pairs + pair, down)
            (a, slope), (b, next_slope) = gelu_of_four(a), gelu_of_four(b)
            c, d, place = multiply_four(c, slope), multiply_four(d, next_slope), token * width // 2 + column
            store_tokens(block.activation_tokens, place, a, b)
            store_tokens(block.wide_tokens, place, c, d)
            place = (token * width + column) // 2
            store_adjacent(block.wide_pairs, place, c)
            store_adjacent(block.wide_pairs, place + width // 2, d)


@inlined
def multiply_narrow(x, weights, pairs, tokens, columns, out):
    """out (tokens, columns) = the sum over `pairs` pairs of rows x with weights (pairs, columns), twelve tokens at a
    time."""
    for token in range(0, tokens, 12):
        for column in range(0, columns, WIDE_LANES):
            zero, at = splat(load_wide(weights, column), 0.0), token * pairs
            none = (zero, zero, zero, zero)
            a, b, c = none, none, none
            for pair in range(pairs):
                right = load_wide(weights, pair * columns + column)
                a = add_column(a, x, at + pair, pairs, right)
                b = add_column(b, x, at + 4 * pairs + pair, pairs, right)
                c = add_column(c, x, at + 8 * pairs + pair, pairs, right)
            place = token * columns + column
            write_four(store, out, place, columns, a)
            write_four(store, out, place + 4 * columns, columns, b)
            write_four(store, out, place + 8 * columns, columns, c)


@inlined
def accumulate_four(into, at, four):
    """into[at:] += four adjacent vectors."""
    before = load_four(into, at, WIDE_LANES)
    sums = before[0] + four[0], before[1] + four[1], before[2] + four[2], before[3] + four[3]
    write_four(store, into, at, WIDE_LANES, sums)


@inlined
def add_outer_pairs(narrow, row, tokens, wide, width, sums):
    """sums (row, width) += the products of narrow and wide rows, both as pairs of tokens; sums over tokens in order."""
    for channel in range(0, row, 4):
        for column in range(0, width, COLUMNS):
            zero = splat(load_wide(wide, column), 0.0)
            none = (zero, zero, zero, zero)
            a, b, c, d = none, none, none, none
            for pair in range(tokens // 2):
                right, at = load_four(wide, pair * width + column, WIDE_LANES), pair * row + channel
                a = add_row(a, narrow, at, right)
                b = add_row(b, narrow, at + 1, right)
                c = add_row(c, narrow, at + 2, right)
                d = add_row(d, narrow, at + 3, right)
            at = channel * width + column
            accumulate_four(sums, at, a)
            accumulate_four(sums, at + width, b)
            accumulate_four(sums, at + 2 * width, c)
            accumulate_four(sums, at + 3 * width, d)


@inlined
def weights_of_head(weights, head, sizes):
    """The weights from one head on."""
    at = head * sizes.narrow * sizes.wide // 2
    up, down_conj = shifted(weights.up, at), shifted(weights.down_conj, at)
    return PairedWeights(up, down_conj, shifted(weights.down, at), shifted(weights.up_conj, at))


@inlined
def paired_values(sizes, weights, block, tokens):
    """block.result = down gelu(up x) for the rows in block.x."""
    C, M = sizes.narrow, sizes.wide
    pair_channels(block.x, tokens * C, block.x_pairs)
    activate_wide(block.x_pairs, weights.up, C // 2, tokens, M, block.wide_pairs)
    multiply_narrow(block.wide_pairs, weights.down, M // 2, tokens, C, block.result)


@inlined
def paired_row_gradients(sizes, weights, block, tokens):
    """block.result = gradient of the rows in block.x from block.gradient."""
    C, M = sizes.narrow, sizes.wide
    pair_channels(block.x, tokens * C, block.x_pairs)
    pair_channels(block.gradient, tokens * C, block.gradient_pairs)
    activate_with_gradient(block, weights, C // 2, tokens, M)
    multiply_narrow(block.wide_pairs, weights.up_conj, M // 2, tokens, C, block.result)


@inlined
def add_paired_weight_gradients(sizes, block, tokens, up, down):
    """Add the gradients of the real matrices, (C, M), to `up` and `down`; after `paired_row_gradients`."""
    C, M = sizes.narrow, sizes.wide
    pair_tokens(block.x, C, tokens, block.x_tokens)
    pair_tokens(block.gradient, C, tokens, block.gradient_tokens)
    add_outer_pairs(block.x_tokens, C, tokens, block.wide_tokens, M, up)
    add_outer_pairs(block.gradient_tokens, C, tokens, block.activation_tokens, M, down)
