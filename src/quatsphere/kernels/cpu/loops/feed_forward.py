"""Loops of the Hamilton feed-forward block y = keep W_down gelu(W_up x), one small pair of matrices per head.

A block of tokens of one head passes through both matrices while it is in the cache; the wider activation is never
written to memory and is recomputed for the gradient. Products with a wide result and the gradients of the weights take
eight multiplications per quaternion (`hamilton_products`); those that sum over the wide rows are real matrix products
in register tiles of four or eight rows by sixteen columns. The next block of tokens is prefetched. Wide rows are
component first and padded with zeros to whole vectors (gelu(0) = 0). With `PairedWeights` the products are in bfloat16
(`paired_feed_forward`).
"""

from typing import Any, NamedTuple

from quatsphere.kernels.cpu.loops.elementwise import gelu, gelu_with_slope
from quatsphere.kernels.cpu.loops.hamilton_products import (
    add_outer,
    conjugate_block,
    hadamard_block,
    left_factor_indices,
    multiply_wide,
    right_factor_indices,
    wide_left,
    wide_right_conjugated,
)
from quatsphere.kernels.cpu.loops.jit import chosen_by_type, compiled, inlined
from quatsphere.kernels.cpu.loops.neighbour_sums import ResidualInput, add_residual, prefetch_residual
from quatsphere.kernels.cpu.loops.paired_feed_forward import (
    PairedBlock,
    PairedWeights,
    add_paired_weight_gradients,
    paired_row_gradients,
    paired_values,
    weights_of_head,
)
from quatsphere.kernels.cpu.loops.real_products import matmul
from quatsphere.kernels.cpu.loops.simd import (
    COLUMN_LANES,
    WIDE_LANES,
    load_columns,
    load_scalar,
    load_wide,
    mask_vector,
    pointers,
    prefetch,
    shifted,
    store,
    store_scalar,
)
from quatsphere.kernels.cpu.loops.threads import ScratchSpec, allocate, parallel_for

BLOCK_TOKENS = 48
"""Tokens of one head processed together: activations and weights fit the first-level cache."""
MAX_CHUNK_TOKENS = 3072
"""Maximum number of tokens per partial sum of the weight gradients, a multiple of BLOCK_TOKENS; affects the result."""
HEADS_PER_ITEM = 4
"""Heads per unit of work: several cache lines of a token are read at once, and small batches still split."""


class FeedForwardSizes(NamedTuple):
    """Number of tokens in all and per chunk, heads, channels C per head, C padded to tiles, M = 4 O padded to vectors,
    whether the output has dropout, and the scale of kept elements."""

    tokens: int
    chunk: int
    heads: int
    channels: int
    narrow: int
    wide: int
    dropped: bool
    keep_scale: float


class PackedWeights(NamedTuple):
    """Flat weights per head: up and down* (Q, 8, O), packed for `multiply_wide`; down and up* (M, C), real matrices."""

    up: Any
    down_conj: Any
    down: Any
    up_conj: Any


class TokenBlock(NamedTuple):
    """Scratch of a block of tokens: narrow rows (tokens, C) with transforms and conjugates, wide rows (tokens, M)."""

    x: Any
    x_hat: Any
    gradient: Any
    gradient_hat: Any
    conjugate: Any
    conjugate_hat: Any
    result: Any
    activation: Any
    wide_gradient: Any


@inlined
def activate(table, count):
    """gelu in place."""
    for at in range(0, count, COLUMN_LANES):
        store(table, at, gelu(load_columns(table, at)))


@inlined
def store_with_slope(tables, at, vector):
    """tables = (activation, its gradient): gelu of the activation in place, gradient = vector times gelu's slope."""
    activation, gradient = tables
    value, slope = gelu_with_slope(load_columns(activation, at))
    store(activation, at, value)
    store(gradient, at, slope * vector)


@inlined
def is_full_block(sizes, first):
    """True if a block has all its tokens and rows of whole tiles, so that it is copied sixteen elements at a time."""
    return sizes.channels == sizes.narrow and first + BLOCK_TOKENS <= sizes.tokens


@inlined
def block_offset(sizes, head, first):
    """(offset of a block in (N, H, C), stride between tokens)."""
    row = sizes.heads * sizes.channels
    return first * row + head * sizes.channels, row


@inlined
def prefetch_next(tensor, sizes, head, first):
    """Prefetch this head's elements of the next block of tokens."""
    start, row = block_offset(sizes, head, first + BLOCK_TOKENS)
    for token in range(BLOCK_TOKENS):
        for channel in range(0, sizes.channels, WIDE_LANES):
            prefetch(tensor, start + token * row + channel)


@inlined
def read_block(tensor, sizes, head, first, table):
    """Tokens first.. of one head from (N, H, C) into (BLOCK_TOKENS, C), zero beyond the last token and channel."""
    C, (start, row) = sizes.narrow, block_offset(sizes, head, first)
    if is_full_block(sizes, first):
        for token in range(BLOCK_TOKENS):
            for channel in range(0, C, WIDE_LANES):
                store(table, token * C + channel, load_wide(tensor, start + token * row + channel))
    else:
        for token in range(BLOCK_TOKENS):
            for channel in range(C):
                inside = first + token < sizes.tokens and channel < sizes.channels
                table[token * C + channel] = load_scalar(tensor, start + token * row + channel) if inside else 0.0


@inlined
def write_block(table, sizes, head, first, tensor):
    """Inverse of `read_block`."""
    C, (start, row) = sizes.narrow, block_offset(sizes, head, first)
    if is_full_block(sizes, first):
        for token in range(BLOCK_TOKENS):
            for channel in range(0, C, WIDE_LANES):
                store(tensor, start + token * row + channel, load_wide(table, token * C + channel))
    else:
        for token in range(min(BLOCK_TOKENS, sizes.tokens - first)):
            for channel in range(sizes.channels):
                store_scalar(tensor, start + token * row + channel, table[token * C + channel])


@inlined
def apply_dropout(table, keep, sizes, head, first):
    """Apply the dropout mask, if there is one, to a block (BLOCK_TOKENS, C) in place."""
    C, (start, row) = sizes.narrow, block_offset(sizes, head, first)
    if sizes.dropped:
        prefetch_next(keep, sizes, head, first)
    if sizes.dropped and is_full_block(sizes, first):
        for token in range(BLOCK_TOKENS):
            for channel in range(0, C, WIDE_LANES):
                kept = mask_vector(keep, start + token * row + channel, load_wide(table, token * C + channel))
                store(table, token * C + channel, kept * sizes.keep_scale)
    elif sizes.dropped:
        for token in range(min(BLOCK_TOKENS, sizes.tokens - first)):
            for channel in range(sizes.channels):
                at, kept = token * C + channel, keep[start + token * row + channel] != 0
                table[at] = table[at] * sizes.keep_scale if kept else 0.0


@inlined
def item_range(item, sizes):
    """(first token, last token + 1, first head, last head + 1) of an item."""
    groups = (sizes.heads + HEADS_PER_ITEM - 1) // HEADS_PER_ITEM
    start, head = item // groups * sizes.chunk, item % groups * HEADS_PER_ITEM
    return start, min(start + sizes.chunk, sizes.tokens), head, min(head + HEADS_PER_ITEM, sizes.heads)


@inlined
def head_offsets(sizes, head):
    """Offsets of one head's weights: real matrices and packed ones."""
    return head * sizes.narrow * sizes.wide, head * 2 * (sizes.channels // 4) * sizes.wide


@inlined
def packed_block_values(sizes, weights, block, head, first, out):
    """block.result from block.x, by quaternion products."""
    C, M, Q, (real, packed) = sizes.narrow, sizes.wide, sizes.channels // 4, head_offsets(sizes, head)
    hadamard_block(block.x, BLOCK_TOKENS * C, block.x_hat)
    multiply_wide(
        block.x_hat, block.x, C, BLOCK_TOKENS, Q, shifted(weights.up, packed), M // 4, store, block.activation
    )
    activate(block.activation, BLOCK_TOKENS * M)
    prefetch_next(out, sizes, head, first)
    matmul(block.activation, shifted(weights.down, real), BLOCK_TOKENS, M, C, block.result)


@inlined
def paired_block_values(sizes, weights, block, head, first, out):
    """The same in bfloat16."""
    prefetch_next(out, sizes, head, first)
    paired_values(sizes, weights_of_head(weights, head, sizes), block, BLOCK_TOKENS)


def block_values(sizes: Any, weights: Any, block: Any, head: Any, first: Any, out: Any) -> None:
    """block.result = down gelu(up x) for the rows in block.x; prefetches the next rows of `out`."""
    raise NotImplementedError("compiled code only")


@chosen_by_type(block_values)
def _(sizes: Any, weights: Any, block: Any, head: Any, first: Any, out: Any) -> Any:
    values = paired_block_values if weights.instance_class is PairedWeights else packed_block_values
    return lambda sizes, weights, block, head, first, out: values(sizes, weights, block, head, first, out)


@inlined
def feed_forward_block(sizes, weights, block, head, first, x, keep, residual, out):
    """y of one block of tokens of one head."""
    C = sizes.narrow
    read_block(x, sizes, head, first, block.x)
    prefetch_next(x, sizes, head, first)
    block_values(sizes, weights, block, head, first, out)
    apply_dropout(block.result, keep, sizes, head, first)
    if residual.sources > 0:
        count, row, shift = min(BLOCK_TOKENS, sizes.tokens - first), sizes.heads * sizes.channels, head * sizes.channels
        prefetch_residual(residual, first + BLOCK_TOKENS, BLOCK_TOKENS, row, shift)
        add_residual(residual, first, count, row, shift, sizes.channels, block.result, C)
    write_block(block.result, sizes, head, first, out)


@inlined
def feed_forward_range(tokens, heads, sizes, weights, block, x, keep, residual, out):
    """y of a range of tokens and heads, not necessarily whole chunks or groups; blocks end where the tokens end."""
    for start in range(tokens[0], tokens[1], sizes.chunk):
        for group in range(heads[0], heads[1], HEADS_PER_ITEM):
            for first in range(start, min(start + sizes.chunk, tokens[1]), BLOCK_TOKENS):
                for head in range(group, min(group + HEADS_PER_ITEM, heads[1])):
                    feed_forward_block(sizes, weights, block, head, first, x, keep, residual, out)


@compiled
def feed_forward_items(items, sizes, weights, x, keep, residual, out, block):
    """y of a range of items (chunk of tokens, group of heads)."""
    weights, x, keep, residual, out, block = pointers((weights, x, keep, residual, out, block))
    for item in range(*items):
        start, stop, first_head, last_head = item_range(item, sizes)
        feed_forward_range((start, stop), (first_head, last_head), sizes, weights, block, x, keep, residual, out)


@inlined
def packed_block_gradients(sizes, weights, block, head, first, inputs, into, part):
    """Gradients of one block by quaternion products."""
    C, M, Q, (real, packed) = sizes.narrow, sizes.wide, sizes.channels // 4, head_offsets(sizes, head)
    size, (_, sums) = BLOCK_TOKENS * C, head_offsets(sizes, part)
    hadamard_block(block.x, size, block.x_hat)
    hadamard_block(block.gradient, size, block.gradient_hat)
    multiply_wide(
        block.x_hat, block.x, C, BLOCK_TOKENS, Q, shifted(weights.up, packed), M // 4, store, block.activation
    )
    prefetch_next(inputs[2], sizes, head, first)
    wide, down = (block.activation, block.wide_gradient), shifted(weights.down_conj, packed)
    multiply_wide(
        block.gradient_hat, block.gradient, C, BLOCK_TOKENS, Q, down, M // 4, store_with_slope, wide
    )  # fmt: skip
    matmul(block.wide_gradient, shifted(weights.up_conj, real), BLOCK_TOKENS, M, C, block.result)
    write_block(block.result, sizes, head, first, into[0])
    prefetch_next(into[0], sizes, head, first)
    conjugate_block(block.x, size, block.conjugate)
    hadamard_block(block.conjugate, size, block.conjugate_hat)
    add_outer(
        block.conjugate_hat, block.conjugate, right_factor_indices, C, BLOCK_TOKENS, Q, block.wide_gradient, wide_left,
        M // 4, shifted(into[1], sums),
    )  # fmt: skip
    add_outer(
        block.gradient_hat, block.gradient, left_factor_indices, C, BLOCK_TOKENS, Q, block.activation,
        wide_right_conjugated, M // 4, shifted(into[2], sums),
    )  # fmt: skip


@inlined
def paired_block_gradients(sizes, weights, block, head, first, inputs, into, part):
    """Gradients of one block in bfloat16."""
    prefetch_next(inputs[2], sizes, head, first)
    paired_row_gradients(sizes, weights_of_head(weights, head, sizes), block, BLOCK_TOKENS)
    write_block(block.result, sizes, head, first, into[0])
    prefetch_next(into[0], sizes, head, first)
    sums, _ = head_offsets(sizes, part)
    add_paired_weight_gradients(sizes, block, BLOCK_TOKENS, shifted(into[1], sums), shifted(into[2], sums))


def block_backward(
    sizes: Any, weights: Any, block: Any, head: Any, first: Any, inputs: Any, into: Any, part: Any
) -> None:
    """Gradients of one block of tokens, read before; those of the weights are added to this part of the sums."""
    raise NotImplementedError("compiled code only")


@chosen_by_type(block_backward)
def _(sizes: Any, weights: Any, block: Any, head: Any, first: Any, inputs: Any, into: Any, part: Any) -> Any:
    function = paired_block_gradients if weights.instance_class is PairedWeights else packed_block_gradients
    return lambda sizes, weights, block, head, first, inputs, into, part: function(
        sizes, weights, block, head, first, inputs, into, part
    )


@compiled
def feed_forward_backward_items(items, sizes, weights, inputs, into, block):
    """Gradients for a range of items from inputs = (x, keep, gradient of y).

    into = (dx, sums of dup and of ddown* in parts (chunks, H, ·): eight sums (Q, 8, O) or, of pairs, matrices (C, M)).
    """
    size = len(into[1]) // (((sizes.tokens + sizes.chunk - 1) // sizes.chunk) * sizes.heads)
    weights, inputs, into, block = pointers((weights, inputs, into, block))
    for item in range(*items):
        start, stop, first_head, last_head = item_range(item, sizes)
        part = start // sizes.chunk * sizes.heads
        for at in range((part + first_head) * size, (part + last_head) * size):
            into[1][at] = 0.0
            into[2][at] = 0.0
        for first in range(start, stop, BLOCK_TOKENS):
            for head in range(first_head, last_head):
                read_block(inputs[0], sizes, head, first, block.x)
                read_block(inputs[2], sizes, head, first, block.gradient)
                apply_dropout(block.gradient, inputs[1], sizes, head, first)
                prefetch_next(inputs[0], sizes, head, first)
                block_backward(sizes, weights, block, head, first, inputs, into, part + head)


def token_chunks(sizes: FeedForwardSizes) -> int:
    """Number of chunks of tokens, each with partial sums of the weight gradients."""
    return -(-sizes.tokens // sizes.chunk)


def even_chunk(tokens: int) -> int:
    """Tokens per chunk: at most MAX_CHUNK_TOKENS, whole blocks, and chunks of equal size for an even split."""
    chunks = max(1, -(-tokens // MAX_CHUNK_TOKENS))
    return max(1, -(-tokens // (chunks * BLOCK_TOKENS))) * BLOCK_TOKENS


def allocate_block(sizes: FeedForwardSizes, dtype: Any, paired: bool, threads: int = 1) -> tuple[Any]:
    """Scratch of a thread."""
    narrow, wide = BLOCK_TOKENS * sizes.narrow, BLOCK_TOKENS * sizes.wide
    if paired:
        return (PairedBlock(*allocate((*[narrow] * 3, *[narrow // 2] * 4, *[wide // 2] * 3), dtype, threads)),)
    return (TokenBlock(*allocate((*[narrow] * 7, wide, wide), dtype, threads)),)


def _run_items(function: Any, sizes: FeedForwardSizes, size: int, dtype: Any, weights: Any, *arguments: Any) -> None:
    items, paired = token_chunks(sizes) * -(-sizes.heads // HEADS_PER_ITEM), isinstance(weights, PairedWeights)
    scratch = ScratchSpec(allocate_block, (sizes, dtype, paired))
    parallel_for(function, items, size, sizes, weights, *arguments, scratch=scratch)


def run_feed_forward(
    sizes: FeedForwardSizes, weights: Any, x: Any, keep: Any, residual: ResidualInput, out: Any
) -> None:
    """y (N, H, C) from x (N, H, C)."""
    _run_items(feed_forward_items, sizes, out.size, out.dtype, weights, x, keep, residual, out)


def run_feed_forward_backward(
    sizes: FeedForwardSizes, weights: Any, inputs: tuple[Any, Any, Any], into: tuple[Any, Any, Any]
) -> None:
    """Gradients of x and partial sums of the weights' from (x, keep, gradient of y)."""
    _run_items(feed_forward_backward_items, sizes, inputs[0].size, inputs[2].dtype, weights, inputs, into)
