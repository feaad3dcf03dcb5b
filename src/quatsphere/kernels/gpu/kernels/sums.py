"""Triton kernel that adds up the parts of all parameter gradients of a step, in a fixed order and one launch."""

import triton.language as tl

from quatsphere.kernels.gpu.kernels.hamilton import weight_gradient
from quatsphere.kernels.gpu.kernels.quaternions import jit


@jit
def sum_columns(
    parts, sums, block, rows, columns, stride, TALL: tl.constexpr, WIDE: tl.constexpr, ACCUMULATE: tl.constexpr
):  # fmt: skip
    """Σ over rows, `stride` numbers apart, of the first columns of parts -> sums: WIDE columns, TALL rows at once."""
    column = block * WIDE + tl.arange(0, WIDE)[None, :]
    total = tl.zeros((TALL, WIDE), ACCUMULATE)
    for first in range(0, rows, TALL):
        row = first + tl.arange(0, TALL)[:, None]
        valid = (row < rows) & (column < columns)
        total += tl.load(parts + row.to(tl.int64) * stride + column, valid, 0.0)
    tl.store(sums + column, tl.sum(total, 0, keep_dims=True), column < columns)


@jit
def sum_parts_kernel(
    parts, sums, base_parts, base_sums, up_parts, up_gradient, down_parts, down_gradient,
    rows, columns, stride, groups, base_columns, count, blocks, base_blocks,
    H: tl.constexpr, C: tl.constexpr, M: tl.constexpr, N: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """`blocks` programs for the field's parameters, `base_blocks` for the quaternions, the others for up and down."""
    program = tl.program_id(0)
    if program < blocks:
        sum_columns(parts, sums, program, rows, columns, stride, 128, 8, ACCUMULATE)
    elif program < blocks + base_blocks:
        sum_columns(base_parts, base_sums, program - blocks, groups, base_columns, base_columns, 16, 64, ACCUMULATE)
    else:
        head, first = (program - blocks - base_blocks) % (2 * H), (program - blocks - base_blocks) // (2 * H) * N
        if head < H:
            weight_gradient(up_parts, up_gradient, count, head, first, H, M, C, N, ACCUMULATE)
        else:
            weight_gradient(down_parts, down_gradient, count, head - H, first, H, C, M, N, ACCUMULATE)
