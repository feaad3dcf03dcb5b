"""The loops of the Hamilton feed-forward block: y = keep W_down gelu(W_up x), one small pair of matrices per head.

A block of tokens of one head passes through both matrices while it is in the cache; the four times wide activation is
never written to memory, and recomputed for the gradient. Products whose result is wide, and the gradients of the
weights, take eight multiplications per quaternion (`numba_eight`); those that sum over the wide rows are real register
tiles, four or eight rows by sixteen columns. Gradients are finished (times the slope) before they are stored, and the
next block of tokens is fetched ahead. Wide rows are component first, filled up with zeros to whole vectors (no change:
gelu(0) = 0).
"""

from typing import Any, NamedTuple

from quatsphere.kernels.numba_eight import (
    add_outer,
    conjugate_block,
    narrow_left,
    narrow_right,
    transform_block,
    wide_left,
    wide_right_conjugated,
    widen,
)
from quatsphere.kernels.numba_gelu import gelu, gelu_with_slope
from quatsphere.kernels.numba_rows import Onto, add_residual, fetch_residual
from quatsphere.kernels.numba_threads import Room, compiled, rooms, share_out
from quatsphere.kernels.numba_vector import (
    WIDE,
    fma,
    inner,
    keep_whole,
    load_wide,
    many_registers,
    prefetch,
    splat,
    spread_wide,
    store,
)

TOKENS = 48
"""Tokens of one head that pass together: activations and weights fit the first cache."""
CHUNK = 3072
"""At most so many tokens have their part of the weight gradients summed together; part of the result, a multiple of
TOKENS."""
HEADS = 4
"""Heads of one item: a token's numbers are read in pieces of several cache lines, and small batches are shared out."""
TALL = many_registers()
"""Whether a tile has eight rows instead of four: as many sums as the registers hold; no part of the result."""


class Widths(NamedTuple):
    """Tokens in all and per chunk, heads, channels C per head, C in whole tiles and M = 4 O in whole vectors, whether
    some of the output is dropped and what the rest is then worth."""

    tokens: int
    chunk: int
    heads: int
    channels: int
    narrow: int
    wide: int
    dropped: bool
    keep_scale: float


class Matrices(NamedTuple):
    """Flat weights per head, packed for `widen`: up and down* (Q, 8, O); real: down and up* (M, C)."""

    up: Any
    down_back: Any
    down: Any
    up_back: Any


class Block(NamedTuple):
    """Room for a block of tokens: narrow rows (TOKENS, C) with transforms and conjugates, wide ones (TOKENS, M)."""

    x: Any
    x_hat: Any
    gradient: Any
    gradient_hat: Any
    conjugate: Any
    conjugate_hat: Any
    result: Any
    activation: Any
    wide_gradient: Any


@inner
def add_rows(rows, x, at, step, right):  # type: ignore[no-untyped-def]
    """Four rows of the tile plus x[at + r step] times one row of the right matrix."""
    return (
        fma(spread_wide(x, at), right, rows[0]),
        fma(spread_wide(x, at + step), right, rows[1]),
        fma(spread_wide(x, at + 2 * step), right, rows[2]),
        fma(spread_wide(x, at + 3 * step), right, rows[3]),
    )


@inner
def tile(x, at, row, step, w, column, width, count):  # type: ignore[no-untyped-def]
    """Σ_k x[at + r row + k step] w[k width + column + (0..15)] for the rows r of a tile, held in registers."""
    zero = splat(load_wide(w, column), 0.0)
    top, bottom = (zero, zero, zero, zero), (zero, zero, zero, zero)
    for _ in range(count):
        right = load_wide(w, column)
        top = add_rows(top, x, at, row, right)
        if TALL:
            bottom = add_rows(bottom, x, at + 4 * row, row, right)
        at += step
        column += width
    return top, bottom


@inner
def activate(table, count):  # type: ignore[no-untyped-def]
    """gelu in place."""
    for at in range(0, count, WIDE):
        store(table, at, gelu(load_wide(table, at)))


@inner
def store_with_slope(tables, at, vector):  # type: ignore[no-untyped-def]
    """tables = (activation, its gradient): gelu in place, and the gradient, given as the vector, times its slope."""
    activation, gradient = tables
    value, slope = gelu_with_slope(load_wide(activation, at))
    store(activation, at, value)
    store(gradient, at, slope * vector)


@inner
def whole(widths, first):  # type: ignore[no-untyped-def]
    """Whether a block is full and its rows are whole tiles, so that it is copied sixteen numbers at a time."""
    return widths.channels == widths.narrow and first + TOKENS <= widths.tokens


@inner
def place(widths, head, first):  # type: ignore[no-untyped-def]
    """(index of the first number of a block in (N, H, C), step from token to token)."""
    row = widths.heads * widths.channels
    return first * row + head * widths.channels, row


@inner
def fetch_next(tensor, widths, head, first):  # type: ignore[no-untyped-def]
    """Ask for this head's numbers of the tokens after this block."""
    start, row = place(widths, head, first + TOKENS)
    for token in range(TOKENS):
        for channel in range(0, widths.channels, WIDE):
            prefetch(tensor, start + token * row + channel)


@inner
def read_block(tensor, widths, head, first, table):  # type: ignore[no-untyped-def]
    """Tokens first.. of one head from (N, H, C) into (TOKENS, C), zero beyond the last token and channel."""
    C, (start, row) = widths.narrow, place(widths, head, first)
    if whole(widths, first):
        for token in range(TOKENS):
            for channel in range(0, C, WIDE):
                store(table, token * C + channel, load_wide(tensor, start + token * row + channel))
    else:
        for token in range(TOKENS):
            for channel in range(C):
                inside = first + token < widths.tokens and channel < widths.channels
                table[token * C + channel] = tensor[start + token * row + channel] if inside else 0.0


@inner
def write_block(table, widths, head, first, tensor):  # type: ignore[no-untyped-def]
    """The inverse of `read_block`."""
    C, (start, row) = widths.narrow, place(widths, head, first)
    if whole(widths, first):
        for token in range(TOKENS):
            for channel in range(0, C, WIDE):
                store(tensor, start + token * row + channel, load_wide(table, token * C + channel))
    else:
        for token in range(min(TOKENS, widths.tokens - first)):
            for channel in range(widths.channels):
                tensor[start + token * row + channel] = table[token * C + channel]


@inner
def drop(table, keep, widths, head, first):  # type: ignore[no-untyped-def]
    """A block (TOKENS, C) times its keep mask, if there is one."""
    C, (start, row) = widths.narrow, place(widths, head, first)
    if widths.dropped:
        fetch_next(keep, widths, head, first)
    if widths.dropped and whole(widths, first):
        for token in range(TOKENS):
            for channel in range(0, C, WIDE):
                kept = keep_whole(keep, start + token * row + channel, load_wide(table, token * C + channel))
                store(table, token * C + channel, kept * widths.keep_scale)
    elif widths.dropped:
        for token in range(min(TOKENS, widths.tokens - first)):
            for channel in range(widths.channels):
                at, kept = token * C + channel, keep[start + token * row + channel] != 0
                table[at] = table[at] * widths.keep_scale if kept else 0.0


@inner
def store_rows(into, at, width, rows):  # type: ignore[no-untyped-def]
    """Four rows of a finished tile."""
    store(into, at, rows[0])
    store(into, at + width, rows[1])
    store(into, at + 2 * width, rows[2])
    store(into, at + 3 * width, rows[3])


@inner
def narrow_down(left, right, width, columns, out):  # type: ignore[no-untyped-def]
    """out (TOKENS, columns) = left (TOKENS, width) @ right (width, columns); the sum over the width is in order."""
    for row in range(0, TOKENS, 8 if TALL else 4):
        for column in range(0, columns, WIDE):
            top, bottom = tile(left, row * width, width, 1, right, column, columns, width)
            at = row * columns + column
            store_rows(out, at, columns, top)
            if TALL:
                store_rows(out, at + 4 * columns, columns, bottom)


@inner
def item_place(item, widths):  # type: ignore[no-untyped-def]
    """(first token, token after the last, first head, head after the last) of an item."""
    groups = (widths.heads + HEADS - 1) // HEADS
    start, head = item // groups * widths.chunk, item % groups * HEADS
    return start, min(start + widths.chunk, widths.tokens), head, min(head + HEADS, widths.heads)


@inner
def feed_block(widths, matrices, block, head, first, x, keep, onto, out):  # type: ignore[no-untyped-def]
    """y of one block of tokens of one head."""
    C, M, Q, size = widths.narrow, widths.wide, widths.channels // 4, TOKENS * widths.narrow
    here, packed = slice(head * C * M, (head + 1) * C * M), slice(head * 2 * Q * M, (head + 1) * 2 * Q * M)
    read_block(x, widths, head, first, block.x)
    fetch_next(x, widths, head, first)
    transform_block(block.x, size, block.x_hat)
    widen(block.x_hat, block.x, C, TOKENS, Q, matrices.up[packed], M // 4, store, block.activation)
    activate(block.activation, TOKENS * M)
    fetch_next(out, widths, head, first)
    narrow_down(block.activation, matrices.down[here], M, C, block.result)
    drop(block.result, keep, widths, head, first)
    if onto.sources > 0:
        count, row = min(TOKENS, widths.tokens - first), widths.heads * widths.channels
        fetch_residual(onto, first + TOKENS, TOKENS, row, head * widths.channels)
        add_residual(onto, first, count, row, head * widths.channels, widths.channels, block.result, C)
    write_block(block.result, widths, head, first, out)


@inner
def feed_part(tokens, heads, widths, matrices, block, x, keep, onto, out):  # type: ignore[no-untyped-def]
    """y of these tokens and heads, which need not be whole chunks or groups; blocks end where the tokens end."""
    for start in range(tokens[0], tokens[1], widths.chunk):
        for group in range(heads[0], heads[1], HEADS):
            for first in range(start, min(start + widths.chunk, tokens[1]), TOKENS):
                for head in range(group, min(group + HEADS, heads[1])):
                    feed_block(widths, matrices, block, head, first, x, keep, onto, out)


@compiled
def feed_forward(items, widths, matrices, block, x, keep, onto, out):  # type: ignore[no-untyped-def]
    """y for items (chunk of tokens, group of heads)."""
    for item in range(*items):
        start, stop, first_head, last_head = item_place(item, widths)
        feed_part((start, stop), (first_head, last_head), widths, matrices, block, x, keep, onto, out)


@inner
def differentiate_block(widths, matrices, block, head, first, inputs, into, part):  # type: ignore[no-untyped-def]
    """Gradients of one block of tokens of one head; those of the weights are added to this part."""
    C, M, Q, size = widths.narrow, widths.wide, widths.channels // 4, TOKENS * widths.narrow
    here, packed = slice(head * C * M, (head + 1) * C * M), slice(head * 2 * Q * M, (head + 1) * 2 * Q * M)
    sums = slice(part * 2 * Q * M, (part + 1) * 2 * Q * M)
    x, keep, gradient = inputs
    read_block(x, widths, head, first, block.x)
    read_block(gradient, widths, head, first, block.gradient)
    drop(block.gradient, keep, widths, head, first)
    fetch_next(x, widths, head, first)
    transform_block(block.x, size, block.x_hat)
    transform_block(block.gradient, size, block.gradient_hat)
    widen(block.x_hat, block.x, C, TOKENS, Q, matrices.up[packed], M // 4, store, block.activation)
    fetch_next(gradient, widths, head, first)
    wide, back = (block.activation, block.wide_gradient), matrices.down_back[packed]
    widen(block.gradient_hat, block.gradient, C, TOKENS, Q, back, M // 4, store_with_slope, wide)
    narrow_down(block.wide_gradient, matrices.up_back[here], M, C, block.result)
    write_block(block.result, widths, head, first, into[0])
    fetch_next(into[0], widths, head, first)
    conjugate_block(block.x, size, block.conjugate)
    transform_block(block.conjugate, size, block.conjugate_hat)
    add_outer(
        block.conjugate_hat, block.conjugate, narrow_right, C, TOKENS, Q, block.wide_gradient, wide_left, M // 4,
        into[1][sums],
    )  # fmt: skip
    add_outer(
        block.gradient_hat, block.gradient, narrow_left, C, TOKENS, Q, block.activation, wide_right_conjugated, M // 4,
        into[2][sums],
    )  # fmt: skip


@compiled
def differentiate(items, widths, matrices, block, inputs, into):  # type: ignore[no-untyped-def]
    """Gradients for items from inputs = (x, keep, gradient of y).

    into = (dx, eight sums of dup and of ddown* in parts (chunks, H, Q, 8, O)).
    """
    size = 2 * (widths.channels // 4) * widths.wide
    for item in range(*items):
        start, stop, first_head, last_head = item_place(item, widths)
        part = start // widths.chunk * widths.heads
        into[1][(part + first_head) * size : (part + last_head) * size] = 0.0
        into[2][(part + first_head) * size : (part + last_head) * size] = 0.0
        for first in range(start, stop, TOKENS):
            for head in range(first_head, last_head):
                differentiate_block(widths, matrices, block, head, first, inputs, into, part + head)


def chunk_count(widths: Widths) -> int:
    """Chunks of tokens, each with a part of the weight gradients of its own."""
    return -(-widths.tokens // widths.chunk)


def even_chunk(tokens: int) -> int:
    """Tokens per chunk: no more than CHUNK, whole blocks, and all chunks alike, so that threads get as much to do."""
    chunks = max(1, -(-tokens // CHUNK))
    return max(1, -(-tokens // (chunks * TOKENS))) * TOKENS


def item_count(widths: Widths) -> int:
    """Chunks of tokens times groups of heads."""
    return chunk_count(widths) * -(-widths.heads // HEADS)


def make_block(widths: Widths, dtype: Any, shares: int = 1) -> tuple[Block]:
    """What a share needs for itself."""
    narrow, wide = TOKENS * widths.narrow, TOKENS * widths.wide
    return (Block(*rooms((*[narrow] * 7, wide, wide), dtype, shares)),)


def feed_forward_all(widths: Widths, matrices: Matrices, x: Any, keep: Any, onto: Onto, out: Any) -> None:
    """y (N, H, C) from x (N, H, C)."""
    share_out(
        lambda items, block: feed_forward(items, widths, matrices, block, x, keep, onto, out),
        item_count(widths),
        out.size,
        room=Room(make_block, (widths, x.dtype)),
    )


def differentiate_all(widths: Widths, matrices: Matrices, inputs: tuple[Any, Any, Any], into: Any) -> None:
    """Gradients of x and, in parts, of the weights, from (x, keep, gradient of y)."""
    share_out(
        lambda items, block: differentiate(items, widths, matrices, block, inputs, into),
        item_count(widths),
        inputs[0].size,
        room=Room(make_block, (widths, inputs[0].dtype)),
    )
