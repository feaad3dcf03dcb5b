"""The gradients of the field's perturbation, with everything of `numba_field` recomputed, g the gradient of q, s = θ²:

    h = b* ⊗ g,  dω = sinc h_v + ω (2 sinc' ⟨h_v, ω⟩ - sinc h_w)
    S = Σ_images g ⊗ e*,  dq_base = (S - b ⟨b, S⟩) / |q_base|
    dε = Σ ⟨dω, tanh⟩,  draw = ε (1 - tanh²) dω
    d(inner_i + hidden_i) = gelu'(inner_i + hidden_i) ⟨W_i, draw⟩
    dW_i = Σ gelu(inner_i + hidden_i) draw,  dbias = Σ draw

A gradient along e has no part in dω and one along b none in dq_base, so the first need not be projected away and the
second only once, after the sum over images. The vertices of a tile first leave gelu, draw and their own gradient; then
the sums over them are made with one load and store for eight.
"""

from typing import Any, NamedTuple

from quatsphere.kernels.numba_field import (
    TRIPLE,
    FieldArrays,
    FieldScratch,
    FieldSizes,
    add_product,
    block_heads,
    exponential,
    lay_out_base,
    load_triple,
    make_scratch,
    mix_rows,
    power_series,
    store_triple,
    take_numbers,
    tanh_of_raw,
    tile_count,
    turn_square,
)
from quatsphere.kernels.numba_gelu import gelu_with_slope
from quatsphere.kernels.numba_math import SINC_SLOPE
from quatsphere.kernels.numba_quaternions import load_quaternions, store_quaternions
from quatsphere.kernels.numba_rows import add_row
from quatsphere.kernels.numba_threads import Part, Room, compiled, rooms, share_out
from quatsphere.kernels.numba_transport import TILE, conjugate, dot, load_tile, multiply, store_tile
from quatsphere.kernels.numba_vector import (
    LANES,
    fetch,
    fma,
    halves,
    inner,
    insert,
    lane,
    load,
    load_wide,
    splat,
    store,
)


class FieldKept(NamedTuple):
    """A thread's own: gelu and its slope, later the vertices' own gradient (8, I, 8 each), S (8, blocks, 4, 8)."""

    value: Any
    slope: Any
    sums: Any


class FieldGradients(NamedTuple):
    """Flat arrays: hidden (B, V, H, I) of every vertex, base (V, H, 4), sums in one part per tile: inner (tiles,
    blocks, I, 8), weight (tiles, blocks, I, 3, 8), bias (tiles, blocks, 3, 8), bound (tiles, 8)."""

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
def network_kept(sizes, number, block, arrays, scratch, kept):  # type: ignore[no-untyped-def]
    """raw of one block of heads of a vertex, as in `network`; gelu and its slope stay."""
    (head, count), weight = block_heads(sizes, block), block * sizes.width * TRIPLE
    take_numbers(scratch.rows, (number * sizes.heads + head) * sizes.width, count, sizes.width, scratch.numbers)
    zero, at = splat(arrays.base, 0.0), number * sizes.width
    even, odd = load_triple(arrays.bias, block * TRIPLE, LANES), (zero, zero, zero)
    for i in range(0, sizes.width, 2):
        value, slope = gelu_with_slope(load_wide(scratch.numbers, i * LANES))
        store(kept.value, (at + i) * LANES, value)
        store(kept.slope, (at + i) * LANES, slope)
        one, other = halves(value)
        even = add_product(even, one, load_triple(arrays.weight, weight + i * TRIPLE, LANES))
        odd = add_product(odd, other, load_triple(arrays.weight, weight + (i + 1) * TRIPLE, LANES))
    store_triple(scratch.raw, number * TRIPLE, LANES, (even[0] + odd[0], even[1] + odd[1], even[2] + odd[2]))


@inner
def tangent_gradient(omega, square, sinc, h):  # type: ignore[no-untyped-def]
    """dω from h = b* ⊗ g."""
    x, y, z = omega
    slope = power_series(square, SINC_SLOPE)
    along = fma(h[1], x, fma(h[2], y, h[3] * z))
    radial = fma(slope + slope, along, splat(slope, 0.0) - sinc * h[0])
    return fma(sinc, h[1], radial * x), fma(sinc, h[2], radial * y), fma(sinc, h[3], radial * z)


@inner
def quaternion_gradient(g, place, bound, t, scratch, kept):  # type: ignore[no-untyped-def]
    """(draw, ⟨dω, tanh⟩) of one block of heads of a vertex; S is added to."""
    omega, square, sinc, e = exponential(t, bound)
    s, found = load_tile(kept.sums, place), multiply(g, conjugate(e))
    store_tile(kept.sums, place, (s[0] + found[0], s[1] + found[1], s[2] + found[2], s[3] + found[3]))
    h = multiply(conjugate(load_tile(scratch.unit, place)), g)
    dx, dy, dz = tangent_gradient(omega, square, sinc, h)
    one, zero = splat(bound, 1.0), splat(bound, 0.0)
    draw = (
        bound * dx * fma(zero - t[0], t[0], one),
        bound * dy * fma(zero - t[1], t[1], one),
        bound * dz * fma(zero - t[2], t[2], one),
    )
    return draw, fma(dx, t[0], fma(dy, t[1], dz * t[2]))


@inner
def store_some(table, at, count, vector):  # type: ignore[no-untyped-def]
    """The first `count` lanes."""
    if count == LANES:
        store(table, at, vector)
    else:
        for number in range(count):
            table[at + number] = lane(vector, number)


@inner
def put_numbers(numbers, at, count, width, rows, to):  # type: ignore[no-untyped-def]
    """The inverse of `take_numbers`: numbers (I, 8) at `at` into the rows of `count` heads."""
    for i in range(0, width, LANES):
        place, some = at + i * LANES, min(LANES, width - i)
        square = turn_square(load_tile(numbers, place) + load_tile(numbers, place + TILE))
        store_some(rows, to + i, some, square[0])
        if count > 1:
            store_some(rows, to + width + i, some, square[1])
        if count > 2:
            store_some(rows, to + 2 * width + i, some, square[2])
        if count > 3:
            store_some(rows, to + 3 * width + i, some, square[3])
        if count > 4:
            store_some(rows, to + 4 * width + i, some, square[4])
        if count > 5:
            store_some(rows, to + 5 * width + i, some, square[5])
        if count > 6:
            store_some(rows, to + 6 * width + i, some, square[6])
        if count > 7:
            store_some(rows, to + 7 * width + i, some, square[7])


@inner
def present(like, count):  # type: ignore[no-untyped-def]
    """One in the lanes that hold a head, zero beyond."""
    ones = splat(like, 1.0)
    for number in range(count, LANES):
        ones = insert(ones, number, 0.0)
    return ones


@inner
def own_gradient(sizes, vertex, number, block, arrays, scratch, kept, gradients):  # type: ignore[no-untyped-def]
    """One block of heads of a vertex: its own gradient of hidden, kept for the sums and written."""
    (head, count), at = block_heads(sizes, block), number * sizes.width
    dx, dy, dz = load_triple(scratch.raw, number * TRIPLE, LANES)
    for i in range(sizes.width):
        x, y, z = load_triple(arrays.weight, (block * sizes.width + i) * TRIPLE, LANES)
        back = load(kept.slope, (at + i) * LANES) * fma(dx, x, fma(dy, y, dz * z))
        store(kept.slope, (at + i) * LANES, back)
    to = (vertex * sizes.heads + head) * sizes.width
    put_numbers(kept.slope, at * LANES, count, sizes.width, gradients.hidden, to)


@inner
def block_gradients(sizes, image, first, lanes, block, bound, arrays, scratch, kept, gradients):  # type: ignore[no-untyped-def]
    """One block of heads of one image's tile, stage by stage; scratch.raw ends as draw. Returns its part of dε."""
    (head, count), blocks = block_heads(sizes, block), (sizes.heads + LANES - 1) // LANES
    vertex, total, limit = image * sizes.vertices + first, splat(arrays.base, 0.0), splat(arrays.base, bound)
    for number in range(lanes):
        network_kept(sizes, number, block, arrays, scratch, kept)
    tanh_of_raw(lanes, scratch)
    for number in range(lanes):
        g = load_quaternions(arrays.out, 4 * ((vertex + number) * sizes.heads + head), 4, count)
        t, place = load_triple(scratch.raw, number * TRIPLE, LANES), (number * blocks + block) * TILE
        draw, found = quaternion_gradient(g, place, limit, t, scratch, kept)
        store_triple(scratch.raw, number * TRIPLE, LANES, draw)
        total = total + found
    for number in range(lanes):
        own_gradient(sizes, vertex + number, number, block, arrays, scratch, kept, gradients)
    return total * present(arrays.base, count)


@inner
def add_sums(sizes, lanes, part, scratch, kept, gradients):  # type: ignore[no-untyped-def]
    """The tile's sums over its vertices, added to this part (tile, block); two numbers share the loads of draw."""
    for i in range(0, sizes.width, 2):
        one, other = part * sizes.width + i, part * sizes.width + i + 1
        weight, inner_bias = load_triple(gradients.weight, one * TRIPLE, LANES), load(gradients.inner, one * LANES)
        weight2, inner_bias2 = (
            load_triple(gradients.weight, other * TRIPLE, LANES),
            load(gradients.inner, other * LANES),
        )
        for number in range(lanes):
            at, draw = (number * sizes.width + i) * LANES, load_triple(scratch.raw, number * TRIPLE, LANES)
            weight = add_product(weight, load(kept.value, at), draw)
            weight2 = add_product(weight2, load(kept.value, at + LANES), draw)
            inner_bias = inner_bias + load(kept.slope, at)
            inner_bias2 = inner_bias2 + load(kept.slope, at + LANES)
        store_triple(gradients.weight, one * TRIPLE, LANES, weight)
        store_triple(gradients.weight, other * TRIPLE, LANES, weight2)
        store(gradients.inner, one * LANES, inner_bias)
        store(gradients.inner, other * LANES, inner_bias2)
    total, unit = load_triple(gradients.bias, part * TRIPLE, LANES), splat(scratch.raw, 1.0)
    for number in range(lanes):
        total = add_product(total, unit, load_triple(scratch.raw, number * TRIPLE, LANES))
    store_triple(gradients.bias, part * TRIPLE, LANES, total)


@inner
def add_told_back(sizes, mixed, image, vertex, hidden):  # type: ignore[no-untyped-def]
    """The gradient of a vertex's row plus share * gradient of the vertices that mixed it, in the order of the edges."""
    width = sizes.heads * sizes.width
    to = (image * sizes.vertices + vertex) * width
    fetch(hidden, to + sizes.vertices * width, width)
    for number in range(mixed.graph.offsets[vertex], mixed.graph.offsets[vertex + 1]):
        row = (image * mixed.vertices + mixed.graph.listeners[number]) * width
        share = mixed.shares[mixed.graph.edges[number]]
        add_row(width, share, mixed.gradient, row, hidden, to, hidden, to)


@inner
def base_gradient(sizes, first, lanes, scratch, kept, gradients):  # type: ignore[no-untyped-def]
    """dq_base of a tile from S."""
    blocks = (sizes.heads + LANES - 1) // LANES
    for number in range(lanes):
        for block in range(blocks):
            (head, count), place = block_heads(sizes, block), number * blocks + block
            b, s = load_tile(scratch.unit, place * TILE), load_tile(kept.sums, place * TILE)
            share, along = load(scratch.share, place * LANES), splat(s[0], 0.0) - dot(b, s)
            q = (
                share * fma(along, b[0], s[0]),
                share * fma(along, b[1], s[1]),
                share * fma(along, b[2], s[2]),
                share * fma(along, b[3], s[3]),
            )
            store_quaternions(gradients.base, 4 * ((first + number) * sizes.heads + head), 4, count, q)


@inner
def differentiate_tile(sizes, image, tile, lanes, bound, arrays, scratch, kept, mixed, gradients):  # type: ignore[no-untyped-def]
    """Gradients of one image's tile, sums added to the tile's; returns its part of dε by lanes."""
    blocks, first, total = (sizes.heads + LANES - 1) // LANES, tile * LANES, splat(arrays.base, 0.0)
    mix_rows((0, blocks), sizes, arrays, image, first, lanes, scratch)
    for block in range(blocks):
        total = total + block_gradients(sizes, image, first, lanes, block, bound, arrays, scratch, kept, gradients)
        add_sums(sizes, lanes, tile * blocks + block, scratch, kept, gradients)
    for number in range(lanes):
        add_told_back(sizes, mixed, image, first + number, gradients.hidden)
    return total


@compiled
def differentiate(tiles, sizes, bound, arrays, scratch, kept, mixed, gradients):  # type: ignore[no-untyped-def]
    """All gradients of these tiles; the sums' places hold zeros before."""
    for tile in range(*tiles):
        first = tile * LANES
        lanes, total = min(LANES, sizes.vertices - first), splat(arrays.base, 0.0)
        lay_out_base((0, (sizes.heads + LANES - 1) // LANES), sizes, first, lanes, arrays, scratch)
        kept.sums[:] = 0.0
        for image in range(sizes.images):
            total = total + differentiate_tile(
                sizes, image, tile, lanes, bound, arrays, scratch, kept, mixed, gradients
            )
        store(gradients.bound, tile * LANES, total)
        base_gradient(sizes, first, lanes, scratch, kept, gradients)


def differentiate_all(
    sizes: FieldSizes, bound: float, arrays: FieldArrays, mixed: FieldMixed, gradients: FieldGradients
) -> None:
    """All gradients of a shell's field."""

    def run(part: Part, scratch: FieldScratch, kept: FieldKept) -> None:
        differentiate(part, sizes, bound, arrays, scratch, kept, mixed, gradients)

    room = Room(_make_room, (sizes, arrays.base.dtype))
    share_out(run, tile_count(sizes), gradients.hidden.size, room=room)


def _make_room(sizes: FieldSizes, dtype: Any) -> tuple[FieldScratch, FieldKept]:
    """What a share needs for itself; the last square of numbers may reach beyond the last vertex's."""
    tile = LANES * sizes.width * LANES + LANES * LANES
    return *make_scratch(sizes, dtype), FieldKept(*rooms((tile, tile, LANES * sizes.blocks * TILE), dtype))
