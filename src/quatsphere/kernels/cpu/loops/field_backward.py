"""Gradient loops of the field's perturbation; the forward values are recomputed, g is the gradient of q, s = θ²:

    h = b* ⊗ g,  dω = sinc h_v + ω (2 sinc' ⟨h_v, ω⟩ - sinc h_w)
    S = Σ_images g ⊗ e*,  dq_base = (S - b ⟨b, S⟩) / |q_base|
    dε = Σ ⟨dω, tanh⟩,  draw = ε (1 - tanh²) dω
    d(inner_i + hidden_i) = gelu'(inner_i + hidden_i) ⟨W_i, draw⟩
    dW_i = Σ gelu(inner_i + hidden_i) draw,  dbias = Σ draw

A gradient along e does not contribute to dω nor one along b to dq_base, so the first is not projected out and the
second only once, after the sum over images. The vertices of a tile first store gelu, draw and their own gradient; the
sums over them then need one load and store per eight vertices.
"""

from typing import Any, NamedTuple

from quatsphere.kernels.cpu.loops import LANES
from quatsphere.kernels.cpu.loops.elementwise import SINC_SLOPE, gelu_of_rows, power_series
from quatsphere.kernels.cpu.loops.field import (
    TRIPLE,
    FieldArrays,
    FieldScratch,
    FieldSizes,
    add_product,
    allocate_field_scratch,
    block_heads,
    exponential,
    load_hidden,
    load_triple,
    mix_rows,
    normalize_base,
    store_triple,
    tanh_of_raw,
    tile_count,
    transpose8,
)
from quatsphere.kernels.cpu.loops.jit import compiled, inlined
from quatsphere.kernels.cpu.loops.neighbour_sums import axpy_row
from quatsphere.kernels.cpu.loops.partial_vectors import store_partial
from quatsphere.kernels.cpu.loops.quaternions import (
    TILE_SIZE,
    conj,
    dot,
    hamilton_product,
    load_quaternions,
    load_tile,
    store_quaternions,
    store_tile,
)
from quatsphere.kernels.cpu.loops.simd import (
    fma,
    insert,
    load,
    load_wide,
    pointers,
    prefetch_range,
    splat,
    split_halves,
    store,
)
from quatsphere.kernels.cpu.loops.threads import ScratchSpec, allocate, parallel_for


class FieldSaved(NamedTuple):
    """Scratch of a thread: gelu; its slope and then the vertices' own gradient (8, I, 8 each); S (8, blocks, 4, 8)."""

    value: Any
    slope: Any
    sums: Any


class FieldGrads(NamedTuple):
    """Flat output arrays: hidden (B, V, H, I) per vertex, base (V, H, 4), and partial sums per tile: inner (tiles,
    blocks, I, 8), weight (tiles, blocks, I, 3, 8), bias (tiles, blocks, 3, 8), bound (tiles, 8)."""

    hidden: Any
    base: Any
    inner: Any
    weight: Any
    bias: Any
    bound: Any


class MixingGrad(NamedTuple):
    """Gradient (B, T, H, I) of target vertices that sum rows of this shell, their number, the reversed graph and its
    weights; without such vertices the graph has no edges."""

    gradient: Any
    vertices: int
    graph: Any
    mix_weights: Any


@inlined
def network_with_slope(sizes, local, block, arrays, scratch, saved):
    """raw of one block of heads of a vertex, as in `network`; saves gelu and its slope."""
    (head, heads), weight = block_heads(sizes, block), block * sizes.width * TRIPLE
    load_hidden(scratch.rows, (local * sizes.heads + head) * sizes.width, heads, sizes.width, scratch.block)
    zero, at = splat(arrays.base, 0.0), local * sizes.width
    even, odd = load_triple(arrays.bias, block * TRIPLE), (zero, zero, zero)
    for i in range(0, sizes.width, 2):
        value, slope = gelu_of_rows(load_wide(scratch.block, i * LANES), arrays.hidden)
        store(saved.value, (at + i) * LANES, value)
        store(saved.slope, (at + i) * LANES, slope)
        first, second = split_halves(value)
        even = add_product(even, first, load_triple(arrays.weight, weight + i * TRIPLE))
        odd = add_product(odd, second, load_triple(arrays.weight, weight + (i + 1) * TRIPLE))
    store_triple(scratch.raw, local * TRIPLE, (even[0] + odd[0], even[1] + odd[1], even[2] + odd[2]))


@inlined
def tangent_gradient(omega, square, sinc, h):
    """dω from h = b* ⊗ g."""
    x, y, z = omega
    slope = power_series(square, SINC_SLOPE)
    along = fma(h[1], x, fma(h[2], y, h[3] * z))
    radial = fma(slope + slope, along, splat(slope, 0.0) - sinc * h[0])
    return fma(sinc, h[1], radial * x), fma(sinc, h[2], radial * y), fma(sinc, h[3], radial * z)


@inlined
def quaternion_gradient(g, at, bound, t, scratch, saved):
    """(draw, ⟨dω, tanh⟩) of one block of heads of a vertex; adds to S."""
    omega, square, sinc, e = exponential(t, bound)
    s, product = load_tile(saved.sums, at), hamilton_product(g, conj(e))
    store_tile(saved.sums, at, (s[0] + product[0], s[1] + product[1], s[2] + product[2], s[3] + product[3]))
    h = hamilton_product(conj(load_tile(scratch.unit, at)), g)
    dx, dy, dz = tangent_gradient(omega, square, sinc, h)
    one, zero = splat(bound, 1.0), splat(bound, 0.0)
    draw = (
        bound * dx * fma(zero - t[0], t[0], one),
        bound * dy * fma(zero - t[1], t[1], one),
        bound * dz * fma(zero - t[2], t[2], one),
    )
    return draw, fma(dx, t[0], fma(dy, t[1], dz * t[2]))


@inlined
def store_hidden(block, block_at, count, width, rows, at):
    """Inverse of `load_hidden`: block (I, 8) at `block_at` -> the rows of `count` heads at `at`."""
    for i in range(0, width, LANES):
        source, valid = block_at + i * LANES, min(LANES, width - i)
        square = transpose8(load_tile(block, source) + load_tile(block, source + TILE_SIZE))
        store_partial(rows, at + i, valid, square[0])
        if count > 1:
            store_partial(rows, at + width + i, valid, square[1])
        if count > 2:
            store_partial(rows, at + 2 * width + i, valid, square[2])
        if count > 3:
            store_partial(rows, at + 3 * width + i, valid, square[3])
        if count > 4:
            store_partial(rows, at + 4 * width + i, valid, square[4])
        if count > 5:
            store_partial(rows, at + 5 * width + i, valid, square[5])
        if count > 6:
            store_partial(rows, at + 6 * width + i, valid, square[6])
        if count > 7:
            store_partial(rows, at + 7 * width + i, valid, square[7])


@inlined
def head_mask(like, count):
    """1 in the lanes that hold a head, 0 in the others."""
    ones = splat(like, 1.0)
    for lane in range(count, LANES):
        ones = insert(ones, lane, 0.0)
    return ones


@inlined
def hidden_gradient(sizes, vertex, local, block, arrays, scratch, saved, gradients):
    """Gradient of one block of heads of a vertex's hidden row, saved for the sums and written."""
    (head, heads), at = block_heads(sizes, block), local * sizes.width
    dx, dy, dz = load_triple(scratch.raw, local * TRIPLE)
    for i in range(sizes.width):
        x, y, z = load_triple(arrays.weight, (block * sizes.width + i) * TRIPLE)
        gradient = load(saved.slope, (at + i) * LANES) * fma(dx, x, fma(dy, y, dz * z))
        store(saved.slope, (at + i) * LANES, gradient)
    row = (vertex * sizes.heads + head) * sizes.width
    store_hidden(saved.slope, at * LANES, heads, sizes.width, gradients.hidden, row)


@inlined
def block_gradients(sizes, image, first, count, block, bound, arrays, scratch, saved, gradients):
    """One block of heads of one image's tile, stage by stage; scratch.raw ends as draw. Return its part of dε."""
    (head, heads), blocks = block_heads(sizes, block), (sizes.heads + LANES - 1) // LANES
    vertex, total, limit = image * sizes.vertices + first, splat(arrays.base, 0.0), splat(arrays.base, bound)
    for local in range(count):
        network_with_slope(sizes, local, block, arrays, scratch, saved)
    tanh_of_raw(count, scratch)
    for local in range(count):
        g = load_quaternions(arrays.out, 4 * ((vertex + local) * sizes.heads + head), 4, heads)
        t, at = load_triple(scratch.raw, local * TRIPLE), (local * blocks + block) * TILE_SIZE
        draw, bound_gradient = quaternion_gradient(g, at, limit, t, scratch, saved)
        store_triple(scratch.raw, local * TRIPLE, draw)
        total = total + bound_gradient
    for local in range(count):
        hidden_gradient(sizes, vertex + local, local, block, arrays, scratch, saved, gradients)
    return total * head_mask(arrays.base, heads)


@inlined
def add_sums(sizes, count, part, scratch, saved, gradients):
    """Add the sums over a tile's vertices to part (tile, block); two hidden elements share the loads of draw."""
    for i in range(0, sizes.width, 2):
        first, second = part * sizes.width + i, part * sizes.width + i + 1
        weight, inner = load_triple(gradients.weight, first * TRIPLE), load(gradients.inner, first * LANES)
        weight2, inner2 = load_triple(gradients.weight, second * TRIPLE), load(gradients.inner, second * LANES)
        for local in range(count):
            at, draw = (local * sizes.width + i) * LANES, load_triple(scratch.raw, local * TRIPLE)
            weight = add_product(weight, load(saved.value, at), draw)
            weight2 = add_product(weight2, load(saved.value, at + LANES), draw)
            inner = inner + load(saved.slope, at)
            inner2 = inner2 + load(saved.slope, at + LANES)
        store_triple(gradients.weight, first * TRIPLE, weight)
        store_triple(gradients.weight, second * TRIPLE, weight2)
        store(gradients.inner, first * LANES, inner)
        store(gradients.inner, second * LANES, inner2)
    total, one = load_triple(gradients.bias, part * TRIPLE), splat(scratch.raw, 1.0)
    for local in range(count):
        total = add_product(total, one, load_triple(scratch.raw, local * TRIPLE))
    store_triple(gradients.bias, part * TRIPLE, total)


@inlined
def add_mixing_grad(sizes, mixing, image, row, hidden):
    """Add weight * gradient of the targets that interpolate a row to its gradient, in edge order."""
    width, rows = sizes.heads * sizes.width // sizes.packed, sizes.vertices * sizes.packed
    at = (image * rows + row) * width
    prefetch_range(hidden, at + rows * width, width)
    for index in range(mixing.graph.offsets[row], mixing.graph.offsets[row + 1]):
        target = (image * mixing.vertices + mixing.graph.targets[index]) * width
        weight = mixing.mix_weights[mixing.graph.edges[index]]
        axpy_row(width, weight, mixing.gradient, target, hidden, at, hidden, at)


@inlined
def base_gradient(sizes, first, count, scratch, saved, gradients):
    """dq_base of a tile from S."""
    blocks = (sizes.heads + LANES - 1) // LANES
    for local in range(count):
        for block in range(blocks):
            (head, heads), at = block_heads(sizes, block), local * blocks + block
            b, s = load_tile(scratch.unit, at * TILE_SIZE), load_tile(saved.sums, at * TILE_SIZE)
            scale, along = load(scratch.inverse_norm, at * LANES), splat(s[0], 0.0) - dot(b, s)
            q = (
                scale * fma(along, b[0], s[0]),
                scale * fma(along, b[1], s[1]),
                scale * fma(along, b[2], s[2]),
                scale * fma(along, b[3], s[3]),
            )
            store_quaternions(gradients.base, 4 * ((first + local) * sizes.heads + head), 4, heads, q)


@inlined
def tile_gradients(sizes, image, tile, count, bound, arrays, scratch, saved, mixing, gradients):
    """Gradients of one image's tile, sums added to the tile's; return its part of dε per lane."""
    blocks, first, total = (sizes.heads + LANES - 1) // LANES, tile * LANES, splat(arrays.base, 0.0)
    mix_rows((0, blocks), sizes, arrays, image, first, count, scratch)
    for block in range(blocks):
        total = total + block_gradients(sizes, image, first, count, block, bound, arrays, scratch, saved, gradients)
        add_sums(sizes, count, tile * blocks + block, scratch, saved, gradients)
    for row in range(first * sizes.packed, (first + count) * sizes.packed):
        add_mixing_grad(sizes, mixing, image, row, gradients.hidden)
    return total


@compiled
def perturb_backward_tiles(tiles, sizes, bound, arrays, mixing, gradients, scratch, saved):
    """All gradients of a range of tiles; the partial sums are zero on entry."""
    sums = len(saved.sums)
    arrays, mixing, gradients = pointers(arrays), pointers(mixing), pointers(gradients)
    scratch, saved = pointers(scratch), pointers(saved)
    for tile in range(*tiles):
        first = tile * LANES
        count, total = min(LANES, sizes.vertices - first), splat(arrays.base, 0.0)
        normalize_base((0, (sizes.heads + LANES - 1) // LANES), sizes, first, count, arrays, scratch)
        for at in range(sums):
            saved.sums[at] = 0.0
        for image in range(sizes.images):
            total = total + tile_gradients(sizes, image, tile, count, bound, arrays, scratch, saved, mixing, gradients)
        store(gradients.bound, tile * LANES, total)
        base_gradient(sizes, first, count, scratch, saved, gradients)


def run_perturb_backward(
    sizes: FieldSizes, bound: float, arrays: FieldArrays, mixing: MixingGrad, gradients: FieldGrads
) -> None:
    """All gradients of a shell's field."""
    arguments, spec = (sizes, bound, arrays, mixing, gradients), ScratchSpec(_allocate, (sizes, arrays.base.dtype))
    parallel_for(perturb_backward_tiles, tile_count(sizes), gradients.hidden.size, *arguments, scratch=spec)


def _allocate(sizes: FieldSizes, dtype: Any) -> tuple[FieldScratch, FieldSaved]:
    """Scratch of a thread; the last 8 x 8 square may extend beyond the last vertex."""
    tile = LANES * sizes.width * LANES + LANES * LANES
    saved = FieldSaved(*allocate((tile, tile, LANES * sizes.blocks * TILE_SIZE), dtype))
    return *allocate_field_scratch(sizes, dtype), saved
