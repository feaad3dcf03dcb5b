"""Interpolation between shells in Triton kernels, on whole rows of a vertex: Σ_m w_im x_n(i,m) and its adjoint."""

import triton.language as tl

from quatsphere.kernels.gpu.kernels.quaternions import jit

NOTHING, SAME_ROW, INTERPOLATED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@jit
def mixed_row(
    table, mixing, image, vertex, sources, offset, valid,
    ROW: tl.constexpr, TERMS: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Row of a vertex from a table (B, sources, ROW): mixing = (indices, weights), or its own row without TERMS."""
    if TERMS == 0:
        return tl.load(table + (image * sources + vertex).to(tl.int64) * ROW + offset, valid, 0.0).to(ACCUMULATE)
    else:  # noqa: RET505 (Triton prunes branches, not code after a return)
        row = tl.zeros(offset.shape, ACCUMULATE)
        for term in tl.static_range(TERMS):
            source = image * sources + tl.load(mixing[0] + vertex * TERMS + term).to(tl.int32)
            weight = tl.load(mixing[1] + vertex * TERMS + term).to(ACCUMULATE)
            row += weight * tl.load(table + source.to(tl.int64) * ROW + offset, valid, 0.0).to(ACCUMULATE)
        return row


@jit
def adjoint_row(
    gradient, reverse, image, vertex, targets, offset, valid, ROW: tl.constexpr, TERMS: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Σ over the targets that mix a vertex's row of weight times gradient (B, targets, ROW).

    reverse = (offsets, edges, weights): edges[offsets[j]:offsets[j + 1]] are those of vertex j, in their order.
    """
    row = tl.zeros(offset.shape, ACCUMULATE)
    start, stop = tl.load(reverse[0] + vertex).to(tl.int32), tl.load(reverse[0] + vertex + 1).to(tl.int32)
    for index in range(start, stop):
        edge = tl.load(reverse[1] + index).to(tl.int32)
        target = (image * targets + edge // TERMS).to(tl.int64)
        weight = tl.load(reverse[2] + edge).to(ACCUMULATE)
        row += weight * tl.load(gradient + target * ROW + offset, valid, 0.0).to(ACCUMULATE)
    return row
