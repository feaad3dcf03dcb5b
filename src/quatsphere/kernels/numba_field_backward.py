"""The gradients of the field's perturbation, with everything of `numba_field` recomputed, g the gradient of q, s = θ²:

    h = b* ⊗ g,  dω = sinc h_v + ω (2 sinc' ⟨h_v, ω⟩ - sinc h_w)
    S = Σ_images g ⊗ e*,  dq_base = (S - b ⟨b, S⟩) / |q_base|
    dε = Σ ⟨dω, tanh⟩,  draw = ε (1 - tanh²) dω
    d(inner_i + hidden_i) = gelu'(inner_i + hidden_i) ⟨W_i, draw⟩
    dW_i = Σ gelu(inner_i + hidden_i) draw,  dbias = Σ draw

A gradient along e has no part in dω and one along b none in dq_base, so the first need not be projected away and the
second only once, after the sum over images.
"""

from typing import Any, NamedTuple

from quatsphere.kernels.numba_field import (
    GROUP,
    ROWS,
    TRIPLE,
    FieldArrays,
    FieldSizes,
    add_product,
    add_row,
    clear_absent,
    exponential,
    finish_network,
    lay_out_base,
    lay_out_weight,
    load_numbers,
    load_triple,
    make_scratch,
    mix_rows,
    power_series,
    store_triple,
    tile_count,
)
from quatsphere.kernels.numba_gelu import gelu_with_slope
from quatsphere.kernels.numba_math import SINC_SLOPE
from quatsphere.kernels.numba_quaternions import load_quaternions, store_quaternions
from quatsphere.kernels.numba_threads import Part, compiled, room, share_out
from quatsphere.kernels.numba_transport import TILE, conjugate, dot, load_tile, multiply, store_tile
from quatsphere.kernels.numba_vector import (
    LANES,
    WIDE,
    fetch,
    fma,
    inner,
    insert,
    lane,
    load,
    load_wide,
    splat,
    spread,
    store,
)


class FieldKept(NamedTuple):
    """A thread's own: gelu and its slope (GROUP, 8, padded), S (H, 4, 8), own gradients of a tile's rows (8, H, I)."""

    value: Any
    slope: Any
    sums: Any
    rows: Any


class FieldGradients(NamedTuple):
    """Flat arrays: hidden (B, V, H, I) of every vertex, base (V, H, 4), sums in one part per tile: inner (tiles, H,
    I), weight (tiles, H, 3, padded), bias (tiles, H, 3, 8), bound (tiles, 8)."""

    hidden: Any
    base: Any
    inner: Any
    weight: Any
    bias: Any
    bound: Any


class FieldMixed(NamedTuple):
    """What vertices that mixed rows of this shell tell them back: their gradient (B, T, H, I), how many they are, the
    reversed graph and its shares; without such vertices a graph without edges."""

    gradient: Any
    vertices: int
    graph: Any
    shares: Any


@inner
def copy_row(width, row, at, out, to):  # type: ignore[no-untyped-def]
    """out[to:] = row[at:], `width` numbers."""
    whole = width - width % WIDE
    for channel in range(0, whole, WIDE):
        store(out, to + channel, load_wide(row, at + channel))
    for channel in range(whole, width):
        out[to + channel] = row[at + channel]


@inner
def finish_row(sizes, mixed, image, vertex, at, part, kept, gradients):  # type: ignore[no-untyped-def]
    """The gradient of hidden of a vertex: its own, kept.rows[at:], which is also added to the inner bias's at `part`,
    plus share * gradient of the vertices that mixed its row, in the order of the edges."""
    width = sizes.heads * sizes.width
    to = (image * sizes.vertices + vertex) * width
    fetch(gradients.hidden, to + sizes.vertices * width, width)
    add_row(width, 1.0, kept.rows, at, gradients.inner, part, gradients.inner, part)
    copy_row(width, kept.rows, at, gradients.hidden, to)
    for number in range(mixed.graph.offsets[vertex], mixed.graph.offsets[vertex + 1]):
        row = (image * mixed.vertices + mixed.graph.listeners[number]) * width
        share = mixed.shares[mixed.graph.edges[number]]
        add_row(width, share, mixed.gradient, row, gradients.hidden, to, gradients.hidden, to)


@inner
def finish_rows(sizes, mixed, image, tile, lanes, kept, gradients):  # type: ignore[no-untyped-def]
    """The gradient of hidden of a tile."""
    width = sizes.heads * sizes.width
    for number in range(lanes):
        finish_row(sizes, mixed, image, tile * LANES + number, number * width, tile * width, kept, gradients)


@inner
def store_numbers(table, at, i, width, vector):  # type: ignore[no-untyped-def]
    """Numbers i..i+7 of the head at `at`, none beyond its end."""
    if width % LANES == 0:
        store(table, at + i, vector)
    else:
        for number in range(min(LANES, width - i)):
            table[at + i + number] = lane(vector, number)


@inner
def present(like, lanes):  # type: ignore[no-untyped-def]
    """One in the lanes that hold a vertex, zero beyond."""
    ones = splat(like, 1.0)
    for number in range(lanes, LANES):
        ones = insert(ones, number, 0.0)
    return ones


@inner
def network_kept(heads, sizes, lanes, arrays, scratch, kept):  # type: ignore[no-untyped-def]
    """Partial sums of raw for a group of heads of eight vertices; gelu and its slope stay in the scratch."""
    for number in range(lanes):
        for head in range(*heads):
            place = (number * sizes.heads + head) * sizes.width
            there = ((head - heads[0]) * LANES + number) * sizes.padded
            raw = splat(arrays.base, 0.0), splat(arrays.base, 0.0), splat(arrays.base, 0.0)
            for i in range(0, sizes.width, LANES):
                value, slope = gelu_with_slope(load_numbers(scratch.rows, place, i, sizes.width))
                store(kept.value, there + i, value)
                store(kept.slope, there + i, slope)
                raw = add_product(raw, value, load_triple(scratch.weight, 3 * head * sizes.padded + i, sizes.padded))
            store_triple(scratch.partial, (head - heads[0]) * ROWS + number * LANES, LANES * LANES, raw)


@inner
def network_gradient(sizes, lanes, head, n, part, scratch, kept, gradients):  # type: ignore[no-untyped-def]
    """The vertices' own gradient of one head, into kept.rows; dW is added to this part."""
    for i in range(0, sizes.width, LANES):
        row = 3 * head * sizes.padded + i
        x, y, z = load_triple(scratch.weight, row, sizes.padded)
        total = load_triple(gradients.weight, part + row, sizes.padded)
        for number in range(lanes):
            place = n * TRIPLE + number
            dx, dy, dz = (
                spread(scratch.raw, place),
                spread(scratch.raw, place + LANES),
                spread(scratch.raw, place + 2 * LANES),
            )
            there = (n * LANES + number) * sizes.padded + i
            found = load(kept.slope, there) * fma(dx, x, fma(dy, y, dz * z))
            store_numbers(kept.rows, (number * sizes.heads + head) * sizes.width, i, sizes.width, found)
            total = add_product(total, load(kept.value, there), (dx, dy, dz))
        store_triple(gradients.weight, part + row, sizes.padded, total)


@inner
def tangent_gradient(omega, square, sinc, h):  # type: ignore[no-untyped-def]
    """dω from h = b* ⊗ g."""
    x, y, z = omega
    slope = power_series(square, SINC_SLOPE)
    along = fma(h[1], x, fma(h[2], y, h[3] * z))
    radial = fma(slope + slope, along, splat(slope, 0.0) - sinc * h[0])
    return fma(sinc, h[1], radial * x), fma(sinc, h[2], radial * y), fma(sinc, h[3], radial * z)


@inner
def quaternion_gradient(sizes, at, lanes, head, bound, one, t, arrays, scratch, kept):  # type: ignore[no-untyped-def]
    """(draw, ⟨dω, tanh⟩) of one head of eight vertices; S is added to."""
    omega, square, sinc, e = exponential(t, bound)
    g = load_quaternions(arrays.out, 4 * at, 4 * sizes.heads, lanes)
    s, found = load_tile(kept.sums, head * TILE), multiply(g, conjugate(e))
    store_tile(kept.sums, head * TILE, (s[0] + found[0], s[1] + found[1], s[2] + found[2], s[3] + found[3]))
    h = multiply(conjugate(load_tile(scratch.unit, head * TILE)), g)
    dx, dy, dz = tangent_gradient(omega, square, sinc, h)
    scaled, zero = bound * one, splat(bound, 0.0)
    draw = (
        scaled * dx * fma(zero - t[0], t[0], one),
        scaled * dy * fma(zero - t[1], t[1], one),
        scaled * dz * fma(zero - t[2], t[2], one),
    )
    return draw, one * fma(dx, t[0], fma(dy, t[1], dz * t[2]))


@inner
def base_gradient(sizes, first, lanes, scratch, kept, gradients):  # type: ignore[no-untyped-def]
    """dq_base of a tile from S."""
    for head in range(sizes.heads):
        b, s = load_tile(scratch.unit, head * TILE), load_tile(kept.sums, head * TILE)
        share, along = load(scratch.share, head * LANES), splat(s[0], 0.0) - dot(b, s)
        q = (
            share * fma(along, b[0], s[0]),
            share * fma(along, b[1], s[1]),
            share * fma(along, b[2], s[2]),
            share * fma(along, b[3], s[3]),
        )
        store_quaternions(gradients.base, 4 * (first * sizes.heads + head), 4 * sizes.heads, lanes, q)


@inner
def differentiate_group(heads, sizes, image, tile, lanes, bound, arrays, scratch, kept, gradients):  # type: ignore[no-untyped-def]
    """Gradients of a group of heads of one image's tile, sums added to the tile's; returns the part of dε by lanes."""
    at = (image * sizes.vertices + tile * LANES) * sizes.heads
    one, total, limit = present(arrays.base, lanes), splat(arrays.base, 0.0), splat(arrays.base, bound)
    network_kept(heads, sizes, lanes, arrays, scratch, kept)
    finish_network(heads, arrays, scratch)
    for head in range(*heads):
        place, bias = (head - heads[0]) * TRIPLE, (tile * sizes.heads + head) * TRIPLE
        t = load_triple(scratch.raw, place, LANES)
        draw, found = quaternion_gradient(sizes, at + head, lanes, head, limit, one, t, arrays, scratch, kept)
        store_triple(scratch.raw, place, LANES, draw)
        store_triple(gradients.bias, bias, LANES, add_product(load_triple(gradients.bias, bias, LANES), one, draw))
        total = total + found
    part = 3 * tile * sizes.heads * sizes.padded
    for head in range(*heads):
        network_gradient(sizes, lanes, head, head - heads[0], part, scratch, kept, gradients)
    return total


@compiled
def differentiate(tiles, sizes, bound, arrays, scratch, kept, mixed, gradients):  # type: ignore[no-untyped-def]
    """All gradients of these tiles; the sums' places hold zeros before."""
    lay_out_weight(sizes, arrays, scratch)
    for tile in range(*tiles):
        first = tile * LANES
        lanes, total = min(LANES, sizes.vertices - first), splat(arrays.base, 0.0)
        clear_absent(lanes, scratch)
        lay_out_base(sizes, first, lanes, arrays, scratch)
        kept.sums[:] = 0.0
        for image in range(sizes.images):
            mix_rows(sizes, arrays, image, first, lanes, scratch)
            for group in range(0, sizes.heads, GROUP):
                heads = group, min(group + GROUP, sizes.heads)
                total = total + differentiate_group(
                    heads, sizes, image, tile, lanes, bound, arrays, scratch, kept, gradients
                )
            finish_rows(sizes, mixed, image, tile, lanes, kept, gradients)
        store(gradients.bound, tile * LANES, total)
        base_gradient(sizes, first, lanes, scratch, kept, gradients)


def differentiate_all(
    sizes: FieldSizes, bound: float, arrays: FieldArrays, mixed: FieldMixed, gradients: FieldGradients
) -> None:
    """All gradients of a shell's field."""

    def run(part: Part) -> None:
        dtype, count, width = arrays.base.dtype, GROUP * LANES * sizes.padded, sizes.heads * sizes.width
        kept = FieldKept(*(room(size, dtype) for size in (count, count, sizes.heads * TILE, LANES * width)))
        differentiate(part, sizes, bound, arrays, make_scratch(sizes, dtype), kept, mixed, gradients)

    share_out(run, tile_count(sizes), gradients.hidden.size)
