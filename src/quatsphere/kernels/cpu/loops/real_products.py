"""Products of small real matrices in register tiles of four or eight rows by sixteen columns."""

from quatsphere.kernels.cpu.loops.hamilton_products import write_four
from quatsphere.kernels.cpu.loops.jit import has_avx512, inlined
from quatsphere.kernels.cpu.loops.simd import WIDE_LANES, broadcast_wide, fma, load_wide, splat, store

USE_EIGHT_ROWS = has_avx512()
"""True for register tiles of eight rows, False for four; does not affect the result."""


@inlined
def add_rows(rows, x, at, step, right):
    """Four rows of the tile plus x[at + r step] times one row of the right matrix."""
    return (
        fma(broadcast_wide(x, at), right, rows[0]),
        fma(broadcast_wide(x, at + step), right, rows[1]),
        fma(broadcast_wide(x, at + 2 * step), right, rows[2]),
        fma(broadcast_wide(x, at + 3 * step), right, rows[3]),
    )


@inlined
def matmul_tile(x, at, row, w, column, width, count):
    """Σ_k x[at + r row + k] w[k width + column + (0..15)] for the rows r of a tile, held in registers."""
    zero = splat(load_wide(w, column), 0.0)
    top, bottom = (zero, zero, zero, zero), (zero, zero, zero, zero)
    for _ in range(count):
        right = load_wide(w, column)
        top = add_rows(top, x, at, row, right)
        if USE_EIGHT_ROWS:
            bottom = add_rows(bottom, x, at + 4 * row, row, right)
        at += 1
        column += width
    return top, bottom


@inlined
def matmul(left, right, rows, width, columns, out):
    """out (rows, columns) = left (rows, width) @ right (width, columns), summed in order."""
    for row in range(0, rows, 8 if USE_EIGHT_ROWS else 4):
        for column in range(0, columns, WIDE_LANES):
            top, bottom = matmul_tile(left, row * width, width, right, column, columns, width)
            at = row * columns + column
            write_four(store, out, at, columns, top)
            if USE_EIGHT_ROWS:
                write_four(store, out, at + 4 * columns, columns, bottom)
