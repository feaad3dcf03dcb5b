"""The loops of the Hamilton feed-forward block: y = keep W_down gelu(W_up x), one small pair of matrices per head.

A block of tokens of one head passes through both matrices while it is in the cache; the four times wide activation is
never written to memory, and recomputed for the gradient. Every product is the same register tile, four rows by sixteen
columns. Weights are expanded quaternion blocks, filled up with zeros to whole tiles (no change: gelu(0) = 0).
"""

from typing import Any, NamedTuple

import numpy as np

from quatsphere.kernels.numba_gelu import gelu, gelu_with_slope
from quatsphere.kernels.numba_threads import compiled, share_out
from quatsphere.kernels.numba_vector import LANES, fma, inner, load, splat, spread, store

TOKENS = 32
"""Tokens of one head that pass together: activations and weights fit the first cache."""
CHUNK = 2048
"""Tokens whose part of the weight gradients is summed together; part of the result, a multiple of TOKENS."""
HEADS = 4
"""Heads of one item: a token's numbers are read in pieces of several cache lines, and small batches are shared out."""
COLUMNS = 2 * LANES


class Widths(NamedTuple):
    """Tokens, heads, channels C per head, C and M in whole tiles, whether some of the output is dropped."""

    tokens: int
    heads: int
    channels: int
    narrow: int
    wide: int
    dropped: bool


class Matrices(NamedTuple):
    """Flat weights per head: up (C, M) and down (M, C), and for gradients their transposes (M, C) and (C, M)."""

    up: Any
    down: Any
    up_back: Any
    down_back: Any


class Block(NamedTuple):
    """Room for a block of tokens: narrow ones (TOKENS, C), wide ones (TOKENS, M)."""

    x: Any
    gradient: Any
    result: Any
    activation: Any
    wide_gradient: Any


@inner
def add_row(row, x, left, right):  # type: ignore[no-untyped-def]
    """One row of the tile: two vectors plus x times two vectors."""
    return fma(x, left, row[0]), fma(x, right, row[1])


@inner
def tile(x, at, row, step, w, column, width, count):  # type: ignore[no-untyped-def]
    """Σ_k x[at + r row + k step] w[k width + column + (0..15)] for four rows r: eight vectors held in registers."""
    zero = splat(w, 0.0)
    a, b, c, d = (zero, zero), (zero, zero), (zero, zero), (zero, zero)
    for _ in range(count):
        left, right = load(w, column), load(w, column + LANES)
        a = add_row(a, spread(x, at), left, right)
        b = add_row(b, spread(x, at + row), left, right)
        c = add_row(c, spread(x, at + 2 * row), left, right)
        d = add_row(d, spread(x, at + 3 * row), left, right)
        at += step
        column += width
    return a, b, c, d


@inner
def store_pair(table, at, pair):  # type: ignore[no-untyped-def]
    """Sixteen numbers."""
    store(table, at, pair[0])
    store(table, at + LANES, pair[1])


@inner
def add_pair(table, at, pair):  # type: ignore[no-untyped-def]
    """Sixteen numbers, added to what is there."""
    store(table, at, load(table, at) + pair[0])
    store(table, at + LANES, load(table, at + LANES) + pair[1])


@inner
def whole(widths, first):  # type: ignore[no-untyped-def]
    """Whether a block is full and its rows are whole vectors, so that it is copied eight numbers at a time."""
    return widths.channels == widths.narrow and first + TOKENS <= widths.tokens


@inner
def read_block(tensor, widths, head, first, table):  # type: ignore[no-untyped-def]
    """Tokens first.. of one head from (N, H, C) into (TOKENS, C), zero beyond the last token and channel."""
    C, vectors = widths.narrow, whole(widths, first)
    for token in range(TOKENS):
        at = ((first + token) * widths.heads + head) * widths.channels
        if vectors:
            for channel in range(0, C, LANES):
                store(table, token * C + channel, load(tensor, at + channel))
        else:
            for channel in range(C):
                inside = first + token < widths.tokens and channel < widths.channels
                table[token * C + channel] = tensor[at + channel] if inside else 0.0


@inner
def write_block(table, widths, head, first, tensor):  # type: ignore[no-untyped-def]
    """The inverse of `read_block`."""
    C, vectors = widths.narrow, whole(widths, first)
    for token in range(min(TOKENS, widths.tokens - first)):
        at = ((first + token) * widths.heads + head) * widths.channels
        if vectors:
            for channel in range(0, C, LANES):
                store(tensor, at + channel, load(table, token * C + channel))
        else:
            for channel in range(widths.channels):
                tensor[at + channel] = table[token * C + channel]


@inner
def multiply_block(x, w, x_width, w_width, count, out):  # type: ignore[no-untyped-def]
    """out (TOKENS, w_width) = x (TOKENS, x_width) @ w (count, w_width)."""
    for token in range(0, TOKENS, 4):
        for column in range(0, w_width, COLUMNS):
            rows = tile(x, token * x_width, x_width, 1, w, column, w_width, count)
            at = token * w_width + column
            store_pair(out, at, rows[0])
            store_pair(out, at + w_width, rows[1])
            store_pair(out, at + 2 * w_width, rows[2])
            store_pair(out, at + 3 * w_width, rows[3])


@inner
def add_outer(left, right, left_width, right_width, rows, into):  # type: ignore[no-untyped-def]
    """into (rows, right_width) += leftᵀ right, summed over the block's tokens in order."""
    for row in range(0, rows, 4):
        for column in range(0, right_width, COLUMNS):
            sums = tile(left, row, 1, left_width, right, column, right_width, TOKENS)
            at = row * right_width + column
            add_pair(into, at, sums[0])
            add_pair(into, at + right_width, sums[1])
            add_pair(into, at + 2 * right_width, sums[2])
            add_pair(into, at + 3 * right_width, sums[3])


@inner
def activate(table, count):  # type: ignore[no-untyped-def]
    """gelu in place."""
    for at in range(0, count, LANES):
        store(table, at, gelu(load(table, at)))


@inner
def activate_with_gradient(table, gradient, count):  # type: ignore[no-untyped-def]
    """gelu in place, and gradient *= its slope."""
    for at in range(0, count, LANES):
        value, slope = gelu_with_slope(load(table, at))
        store(table, at, value)
        store(gradient, at, load(gradient, at) * slope)


@inner
def item_place(item, widths):  # type: ignore[no-untyped-def]
    """(first token, token after the last, first head, head after the last) of an item."""
    groups = (widths.heads + HEADS - 1) // HEADS
    start, head = item // groups * CHUNK, item % groups * HEADS
    return start, min(start + CHUNK, widths.tokens), head, min(head + HEADS, widths.heads)


@inner
def drop(table, keep, widths, head, first, room):  # type: ignore[no-untyped-def]
    """A block (TOKENS, C) times its keep mask, which is read into `room`."""
    if widths.dropped:
        read_block(keep, widths, head, first, room)
        for at in range(0, TOKENS * widths.narrow, LANES):
            store(table, at, load(table, at) * load(room, at))


@compiled
def feed_forward(items, widths, matrices, block, x, keep, out):  # type: ignore[no-untyped-def]
    """y for items (chunk of tokens, group of heads)."""
    C, M = widths.narrow, widths.wide
    for item in range(*items):
        start, stop, first_head, last_head = item_place(item, widths)
        for first in range(start, stop, TOKENS):
            for head in range(first_head, last_head):
                here = slice(head * C * M, (head + 1) * C * M)
                read_block(x, widths, head, first, block.x)
                multiply_block(block.x, matrices.up[here], C, M, widths.channels, block.activation)
                activate(block.activation, TOKENS * M)
                multiply_block(block.activation, matrices.down[here], M, C, M, block.result)
                drop(block.result, keep, widths, head, first, block.gradient)
                write_block(block.result, widths, head, first, out)


@inner
def differentiate_block(widths, matrices, block, head, first, inputs, into, part):  # type: ignore[no-untyped-def]
    """Gradients of one block of tokens of one head; those of the weights are added to this part."""
    C, M, channels = widths.narrow, widths.wide, widths.channels
    here, sums = slice(head * C * M, (head + 1) * C * M), slice(part * C * M, (part + 1) * C * M)
    x, keep, gradient = inputs
    read_block(x, widths, head, first, block.x)
    read_block(gradient, widths, head, first, block.gradient)
    drop(block.gradient, keep, widths, head, first, block.result)
    multiply_block(block.x, matrices.up[here], C, M, channels, block.activation)
    multiply_block(block.gradient, matrices.down_back[here], C, M, channels, block.wide_gradient)
    activate_with_gradient(block.activation, block.wide_gradient, TOKENS * M)
    multiply_block(block.wide_gradient, matrices.up_back[here], M, C, M, block.result)
    write_block(block.result, widths, head, first, into[0])
    add_outer(block.x, block.wide_gradient, C, M, channels, into[1][sums])
    add_outer(block.activation, block.gradient, M, C, M, into[2][sums])


@compiled
def differentiate(items, widths, matrices, block, inputs, into):  # type: ignore[no-untyped-def]
    """Gradients for items from inputs = (x, keep, gradient of y).

    into = (dx, parts of dup (chunks, H, C, M), parts of ddown (chunks, H, M, C)).
    """
    size = widths.narrow * widths.wide
    for item in range(*items):
        start, stop, first_head, last_head = item_place(item, widths)
        part = start // CHUNK * widths.heads
        into[1][(part + first_head) * size : (part + last_head) * size] = 0.0
        into[2][(part + first_head) * size : (part + last_head) * size] = 0.0
        for first in range(start, stop, TOKENS):
            for head in range(first_head, last_head):
                differentiate_block(widths, matrices, block, head, first, inputs, into, part + head)


def chunk_count(widths: Widths) -> int:
    """Chunks of tokens, each with a part of the weight gradients of its own."""
    return -(-widths.tokens // CHUNK)


def item_count(widths: Widths) -> int:
    """Chunks of tokens times groups of heads."""
    return chunk_count(widths) * -(-widths.heads // HEADS)


def empty_block(widths: Widths, dtype: Any) -> Block:
    """Room for one thread."""
    narrow, wide = TOKENS * widths.narrow, TOKENS * widths.wide
    return Block(*(np.empty(count, dtype) for count in (narrow, narrow, narrow, wide, wide)))


def feed_forward_all(widths: Widths, matrices: Matrices, x: Any, keep: Any, out: Any) -> None:
    """y (N, H, C) from x (N, H, C)."""
    share_out(
        lambda items: feed_forward(items, widths, matrices, empty_block(widths, x.dtype), x, keep, out),
        item_count(widths),
    )


def differentiate_all(widths: Widths, matrices: Matrices, inputs: tuple[Any, Any, Any], into: Any) -> None:
    """Gradients of x and, in parts, of the weights, from (x, keep, gradient of y)."""
    dtype = inputs[0].dtype
    share_out(
        lambda items: differentiate(items, widths, matrices, empty_block(widths, dtype), inputs, into),
        item_count(widths),
    )
