"""Loops of the field's perturbation (eq:perturb, eq:perturb-omega), with b = q_base / |q_base|:

    raw = Σ_i gelu(inner_i + hidden_i) W_i + bias,  ω = ε tanh(raw),  e = exp(ω) = (cos θ, sinc θ ω) with θ = |ω|
    q = normalize(q_base ⊗ e) = b ⊗ e, since |e| = 1

A vertex uses its own row of hidden or, on a shell without tokens, a weighted sum of a few sources' rows: `interp`
commutes with the network's first product, and its weights sum to one, so the inner bias is added once, after it.

A lane is a head: 8 x 8 squares are transposed on their way from memory, and no sum runs across lanes. With at most four
heads several vertices, which are adjacent in memory, are packed into one with that many times the heads: "vertices" and
"heads" below are these. A *tile* is eight vertices: a thread owns some tiles for all images, and sums run over images,
then tiles, in order. Rows of the next image are prefetched, since hardware prefetchers miss that stride.
"""

from typing import Any, NamedTuple

from numba.core import cgutils

from quatsphere.kernels.cpu.loops import LANES
from quatsphere.kernels.cpu.loops.elementwise import COS, SINC, gelu_of_rows, power_series, tanh
from quatsphere.kernels.cpu.loops.jit import compiled, inlined, instruction
from quatsphere.kernels.cpu.loops.neighbour_sums import axpy_row
from quatsphere.kernels.cpu.loops.partial_vectors import load_partial
from quatsphere.kernels.cpu.loops.quaternions import (
    TILE_SIZE,
    dot,
    hamilton_product,
    load_quaternions,
    load_tile,
    store_quaternions,
    store_tile,
)
from quatsphere.kernels.cpu.loops.simd import (
    fma,
    load,
    load_wide,
    pointers,
    prefetch_range,
    shuffle_mask,
    splat,
    split_halves,
    sqrt,
    store,
)
from quatsphere.kernels.cpu.loops.threads import ScratchSpec, allocate, parallel_for

TRIPLE = 3 * LANES
"""Elements of a 3-vector of eight heads."""


class FieldSizes(NamedTuple):
    """Images, vertices, heads H, width I of the network per head, rows of hidden per image, rows that are summed for a
    row (0: it is its own), and rows that are packed into one vertex."""

    images: int
    vertices: int
    heads: int
    width: int
    rows: int
    terms: int
    packed: int

    @property
    def blocks(self) -> int:
        """Number of blocks of eight heads; the last one may be partial."""
        return -(-self.heads // LANES)

    @property
    def block_elements(self) -> int:
        """Elements of a block of heads, padded to whole 8 x 8 squares."""
        return (self.width + -self.width % LANES) * LANES


class FieldArrays(NamedTuple):
    """Flat arrays: hidden (B, rows, H, I), maybe in bfloat16, inner bias (H, I), by lanes weight (blocks, I, 3, 8) and
    bias (blocks, 3, 8), base (V, H, 4), out or its gradient (B, V, H, 4), indices and weights (V, packed, terms) of the
    summed rows."""

    hidden: Any
    inner: Any
    weight: Any
    bias: Any
    base: Any
    out: Any
    indices: Any
    mix_weights: Any


class FieldScratch(NamedTuple):
    """Scratch of a thread: the rows of a tile (8, H, I), a vertex's hidden block (I, 8), raw and then its tanh (8, 3,
    8), b (8, blocks, 4, 8) and 1 / |q_base| (8, blocks, 8) of a tile."""

    rows: Any
    block: Any
    raw: Any
    unit: Any
    inverse_norm: Any


@instruction
def transpose8(typingctx: Any, rows: Any) -> Any:
    """Transpose of eight vectors: lane l of vector j becomes lane j of vector l."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        low, high = shuffle_mask([0, 8, 1, 9, 4, 12, 5, 13]), shuffle_mask([2, 10, 3, 11, 6, 14, 7, 15])
        even, odd = shuffle_mask([0, 1, 8, 9, 4, 5, 12, 13]), shuffle_mask([2, 3, 10, 11, 6, 7, 14, 15])
        left, right = shuffle_mask([0, 1, 2, 3, 8, 9, 10, 11]), shuffle_mask([4, 5, 6, 7, 12, 13, 14, 15])
        a, halves = cgutils.unpack_tuple(builder, args[0], LANES), []
        for first in (0, 4):
            pairs = [[builder.shuffle_vector(a[n], a[n + 1], m) for n in (first, first + 2)] for m in (low, high)]
            halves.append([builder.shuffle_vector(*pair, m) for pair in pairs for m in (even, odd)])
        columns = [builder.shuffle_vector(x, y, m) for m in (left, right) for x, y in zip(*halves, strict=True)]
        return context.make_tuple(builder, sig.return_type, columns)

    return rows(rows), code


@inlined
def load_head(table, at, i, width):
    """Elements i..i+7 of the head at `at`, zeros beyond its end."""
    if width % LANES == 0:
        return load(table, at + i)
    return load_partial(table, at + i, min(LANES, width - i))


@inlined
def load_hidden(rows, at, count, width, block):
    """Transpose the rows of `count` heads at `at` into block (I, 8); further lanes repeat the last head."""
    last = count - 1
    for i in range(0, width, LANES):
        square = transpose8(
            (
                load_head(rows, at, i, width),
                load_head(rows, at + min(1, last) * width, i, width),
                load_head(rows, at + min(2, last) * width, i, width),
                load_head(rows, at + min(3, last) * width, i, width),
                load_head(rows, at + min(4, last) * width, i, width),
                load_head(rows, at + min(5, last) * width, i, width),
                load_head(rows, at + min(6, last) * width, i, width),
                load_head(rows, at + last * width, i, width),
            )
        )
        store_tile(block, i * LANES, square[:4])
        store_tile(block, i * LANES + TILE_SIZE, square[4:])


@inlined
def load_triple(table, at):
    """3-vector of eight heads at `at` of a lane table (..., 3, 8)."""
    return load(table, at), load(table, at + LANES), load(table, at + 2 * LANES)


@inlined
def store_triple(table, at, triple):
    """Inverse of `load_triple`."""
    store(table, at, triple[0])
    store(table, at + LANES, triple[1])
    store(table, at + 2 * LANES, triple[2])


@inlined
def add_product(triple, factor, other):
    """triple + factor * other."""
    return fma(factor, other[0], triple[0]), fma(factor, other[1], triple[1]), fma(factor, other[2], triple[2])


@inlined
def block_heads(sizes, block):
    """(first head, number of heads) of a block."""
    return block * LANES, min(LANES, sizes.heads - block * LANES)


@inlined
def normalize_base(blocks, sizes, first, count, arrays, scratch):
    """b and 1 / |q_base| of a range of blocks of a tile with `count` vertices."""
    all_blocks = (sizes.heads + LANES - 1) // LANES
    for local in range(count):
        for block in range(*blocks):
            head, heads = block_heads(sizes, block)
            q = load_quaternions(arrays.base, 4 * ((first + local) * sizes.heads + head), 4, heads)
            scale, at = splat(arrays.base, 1.0) / sqrt(dot(q, q)), local * all_blocks + block
            store_tile(scratch.unit, at * TILE_SIZE, (q[0] * scale, q[1] * scale, q[2] * scale, q[3] * scale))
            store(scratch.inverse_norm, at * LANES, scale)


@inlined
def mix_row(blocks, sizes, arrays, image, vertex, at, rows):
    """rows[at:] = inner + hidden of a range of blocks of a vertex, its own row or a sum; prefetch the next image's."""
    width, shift = sizes.heads * sizes.width // sizes.packed, blocks[0] * LANES * sizes.width
    count = min(blocks[1] * LANES * sizes.width, sizes.heads * sizes.width) - shift
    if sizes.terms == 0:
        row = (image * sizes.rows + vertex * sizes.packed) * width + shift
        prefetch_range(arrays.hidden, row + sizes.rows * width, count)
        axpy_row(count, 1.0, arrays.hidden, row, arrays.inner, shift, rows, at + shift)
        return
    count = min(count, width)
    for index in range(vertex * sizes.packed, (vertex + 1) * sizes.packed):
        place = at + (index - vertex * sizes.packed) * width + shift
        for term in range(index * sizes.terms, (index + 1) * sizes.terms):
            row, weight = (image * sizes.rows + arrays.indices[term]) * width + shift, arrays.mix_weights[term]
            if term == index * sizes.terms:
                prefetch_range(arrays.hidden, row + sizes.rows * width, count)
                axpy_row(count, weight, arrays.hidden, row, arrays.inner, shift, rows, place)
            else:
                axpy_row(count, weight, arrays.hidden, row, rows, place, rows, place)


@inlined
def mix_rows(blocks, sizes, arrays, image, first, count, scratch):
    """`mix_row` for the vertices of a tile."""
    for local in range(count):
        mix_row(blocks, sizes, arrays, image, first + local, local * sizes.heads * sizes.width, scratch.rows)


@inlined
def exponential(t, bound):
    """(ω, θ², sinc θ, exp(ω)) from t = tanh(raw)."""
    x, y, z = bound * t[0], bound * t[1], bound * t[2]
    square = fma(x, x, fma(y, y, z * z))
    sinc = power_series(square, SINC)
    return (x, y, z), square, sinc, (power_series(square, COS), sinc * x, sinc * y, sinc * z)


@inlined
def network(sizes, local, block, arrays, scratch):
    """raw of one block of heads of a vertex, with two independent sums to hide latency."""
    (head, heads), weight = block_heads(sizes, block), block * sizes.width * TRIPLE
    load_hidden(scratch.rows, (local * sizes.heads + head) * sizes.width, heads, sizes.width, scratch.block)
    zero = splat(arrays.base, 0.0)
    even, odd = load_triple(arrays.bias, block * TRIPLE), (zero, zero, zero)
    for i in range(0, sizes.width, 2):
        first, second = split_halves(gelu_of_rows(load_wide(scratch.block, i * LANES), arrays.hidden)[0])
        even = add_product(even, first, load_triple(arrays.weight, weight + i * TRIPLE))
        odd = add_product(odd, second, load_triple(arrays.weight, weight + (i + 1) * TRIPLE))
    store_triple(scratch.raw, local * TRIPLE, (even[0] + odd[0], even[1] + odd[1], even[2] + odd[2]))


@inlined
def tanh_of_raw(count, scratch):
    """tanh(raw) of a tile, in place."""
    for n in range(3 * count):
        store(scratch.raw, n * LANES, tanh(load(scratch.raw, n * LANES)))


@inlined
def perturb_block(sizes, image, first, count, block, bound, arrays, scratch):
    """q of one block of heads of one image's tile, in one short loop per stage so that iterations overlap."""
    (head, heads), blocks = block_heads(sizes, block), (sizes.heads + LANES - 1) // LANES
    for local in range(count):
        network(sizes, local, block, arrays, scratch)
    tanh_of_raw(count, scratch)
    for local in range(count):
        _, _, _, e = exponential(load_triple(scratch.raw, local * TRIPLE), splat(arrays.base, bound))
        q = hamilton_product(load_tile(scratch.unit, (local * blocks + block) * TILE_SIZE), e)
        vertex = image * sizes.vertices + first + local
        store_quaternions(arrays.out, 4 * (vertex * sizes.heads + head), 4, heads, q)


@inlined
def perturb_range(tiles, images, blocks, sizes, bound, arrays, scratch):
    """q = b ⊗ exp(ε tanh(raw)) for a range of tiles, images and blocks of heads."""
    for tile in range(*tiles):
        first = tile * LANES
        count = min(LANES, sizes.vertices - first)
        normalize_base(blocks, sizes, first, count, arrays, scratch)
        for image in range(*images):
            mix_rows(blocks, sizes, arrays, image, first, count, scratch)
            for block in range(*blocks):
                perturb_block(sizes, image, first, count, block, bound, arrays, scratch)


@compiled
def perturb_tiles(tiles, sizes, bound, arrays, scratch):
    """q for a range of tiles."""
    blocks = 0, (sizes.heads + LANES - 1) // LANES
    perturb_range(tiles, (0, sizes.images), blocks, sizes, bound, pointers(arrays), pointers(scratch))


def tile_count(sizes: FieldSizes) -> int:
    """Number of tiles of eight vertices."""
    return -(-sizes.vertices // LANES)


def allocate_field_scratch(sizes: FieldSizes, dtype: Any, threads: int = 1) -> tuple[FieldScratch]:
    """Scratch of a thread."""
    tile = LANES * sizes.blocks
    counts = (LANES * sizes.heads * sizes.width, sizes.block_elements, LANES * TRIPLE, tile * TILE_SIZE, tile * LANES)
    return (FieldScratch(*allocate(counts, dtype, threads)),)


def run_perturb(sizes: FieldSizes, bound: float, arrays: FieldArrays) -> None:
    """Field of all images of a shell."""
    if sizes.vertices > 0:
        size, spec = arrays.out.size * sizes.width // 4, ScratchSpec(allocate_field_scratch, (sizes, arrays.base.dtype))
        parallel_for(perturb_tiles, tile_count(sizes), size, sizes, bound, arrays, scratch=spec)
