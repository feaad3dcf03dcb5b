"""Triton kernels of sums over the edges of irregular graphs; launched by `gpu.ragged`.

Triton reads TRITON_INTERPRET at its import, so this module is imported late.
"""

import triton as triton
import triton.language as tl

from quatsphere.kernels.gpu.kernels.quaternions import jit


@jit
def pair_dot_kernel(
    a,
    b,
    i,
    j,
    out,
    items,
    targets,
    sources,
    H: tl.constexpr,
    C: tl.constexpr,
    CHANNELS: tl.constexpr,
    ITEMS: tl.constexpr,
):
    """ITEMS pairs of an edge and a head of one image -> out (B, E, H)."""
    image = tl.program_id(1).to(tl.int64)
    item, channel = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS), tl.arange(0, CHANNELS)
    real = item < items
    edge, head = item // H, item % H
    target, source = tl.load(i + edge, real, 0), tl.load(j + edge, real, 0)
    both = real[:, None] & (channel < C)[None, :]
    row_a = ((image * targets + target) * H + head)[:, None] * C + channel[None, :]
    row_b = ((image * sources + source) * H + head)[:, None] * C + channel[None, :]
    products = tl.load(a + row_a, both, 0.0) * tl.load(b + row_b, both, 0.0)
    tl.store(out + image * items + item, tl.sum(products, 1), real)


@jit
def pair_sum_kernel(
    weights,
    b,
    j,
    offsets,
    order,
    out,
    edges,
    sources,
    count,
    H: tl.constexpr,
    C: tl.constexpr,
    ROW: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Σ over the edges order[offsets[n] : offsets[n + 1]] of vertex n of one image -> out (B, count, H, C)."""
    vertex, image = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    column, slot = tl.arange(0, ROW), tl.arange(0, CHUNK)
    inside, head = column < H * C, column // C
    total = tl.zeros((ROW,), out.dtype.element_ty)
    start, stop = tl.load(offsets + vertex), tl.load(offsets + vertex + 1)
    for first in range(start, stop, CHUNK):
        real = first + slot < stop
        edge = tl.load(order + first + slot, real, 0)
        source = tl.load(j + edge, real, 0)
        both = real[:, None] & inside[None, :]
        weight = tl.load(weights + (image * edges + edge)[:, None] * H + head[None, :], both, 0.0)
        row = tl.load(b + (image * sources + source)[:, None] * (H * C) + column[None, :], both, 0.0)
        total += tl.sum(weight * row, 0)
    tl.store(out + (image * count + vertex) * (H * C) + column, total, inside)
