"""The loops of the field's perturbation (eq:perturb, eq:perturb-omega), with b = q_base / |q_base|:

    raw = Σ_i gelu(inner_i + hidden_i) W_i + bias,  ω = ε tanh(raw),  e = exp(ω) = (cos θ, sinc θ ω) with θ = |ω|
    q = normalize(q_base ⊗ e) = b ⊗ e, since |e| = 1

A vertex takes its row of hidden or, on a shell that has no tokens yet, a mixture of a few sources' rows: `interp`
commutes with the network's first product, and its shares sum to one, so the inner bias is added once, after it.

A lane is a head, as in the kernel: eight rows of eight numbers are turned on their way from memory, and from there to
the quaternion no sum runs across lanes. A *tile* is eight vertices: a thread owns some tiles for all images, and every
sum runs over images, then tiles, in order. Numbers of the next image are fetched ahead, since the processor does not
guess the jump.
"""

from typing import Any, NamedTuple

from numba import types
from numba.core import cgutils
from numba.extending import overload

from quatsphere.kernels.numba_gelu import gelu
from quatsphere.kernels.numba_math import COS, SINC, series, tanh
from quatsphere.kernels.numba_quaternions import load_quaternions, store_quaternions
from quatsphere.kernels.numba_rows import add_row
from quatsphere.kernels.numba_threads import Room, compiled, rooms, share_out
from quatsphere.kernels.numba_transport import TILE, dot, load_tile, multiply, store_tile
from quatsphere.kernels.numba_vector import (
    LANES,
    fetch,
    fma,
    halves,
    inner,
    instruction,
    load,
    load_some,
    load_wide,
    shuffle_mask,
    splat,
    sqrt,
    store,
)

TRIPLE = 3 * LANES


class FieldSizes(NamedTuple):
    """Images, vertices, heads H, width I of the network per head, rows of hidden per image, rows that a vertex mixes
    (0: it has one of its own)."""

    images: int
    vertices: int
    heads: int
    width: int
    rows: int
    terms: int

    @property
    def blocks(self) -> int:
        """Blocks of eight heads, the last one perhaps not full."""
        return -(-self.heads // LANES)

    @property
    def numbers(self) -> int:
        """Numbers of a block of heads, filled up to whole squares."""
        return (self.width + -self.width % LANES) * LANES


class FieldArrays(NamedTuple):
    """Flat arrays: hidden (B, rows, H, I), inner bias (H, I), by lanes weight (blocks, I, 3, 8) and bias (blocks, 3,
    8), base (V, H, 4), out or its gradient (B, V, H, 4), which rows are mixed (V, terms) and their shares."""

    hidden: Any
    inner: Any
    weight: Any
    bias: Any
    base: Any
    out: Any
    indices: Any
    shares: Any


class FieldScratch(NamedTuple):
    """A thread's own: the rows of a tile (8, H, I), a vertex's numbers (I, 8), raw, later its tanh (8, 3, 8), b (8,
    blocks, 4, 8) and 1 / |q_base| (8, blocks, 8) of a tile."""

    rows: Any
    numbers: Any
    raw: Any
    unit: Any
    share: Any


@instruction
def turn_square(typingctx: Any, rows: Any) -> Any:
    """Eight vectors: lane l of vector j becomes lane j of vector l."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        low, high = shuffle_mask([0, 8, 1, 9, 4, 12, 5, 13]), shuffle_mask([2, 10, 3, 11, 6, 14, 7, 15])
        even, odd = shuffle_mask([0, 1, 8, 9, 4, 5, 12, 13]), shuffle_mask([2, 3, 10, 11, 6, 7, 14, 15])
        left, right = shuffle_mask([0, 1, 2, 3, 8, 9, 10, 11]), shuffle_mask([4, 5, 6, 7, 12, 13, 14, 15])
        a, halves = cgutils.unpack_tuple(builder, args[0], LANES), []
        for first in (0, 4):
            pairs = [[builder.shuffle_vector(a[n], a[n + 1], m) for n in (first, first + 2)] for m in (low, high)]
            halves.append([builder.shuffle_vector(*pair, m) for pair in pairs for m in (even, odd)])
        turned = [builder.shuffle_vector(x, y, m) for m in (left, right) for x, y in zip(*halves, strict=True)]
        return context.make_tuple(builder, sig.return_type, turned)

    return rows(rows), code


@inner
def load_numbers(table, at, i, width):  # type: ignore[no-untyped-def]
    """Numbers i..i+7 of the head at `at`, zeros beyond its end."""
    if width % LANES == 0:
        return load(table, at + i)
    return load_some(table, at + i, min(LANES, width - i))


@inner
def take_numbers(rows, at, count, width, numbers):  # type: ignore[no-untyped-def]
    """numbers (I, 8) of `count` heads from their rows at `at`; further lanes repeat the last head."""
    last = count - 1
    for i in range(0, width, LANES):
        square = turn_square(
            (
                load_numbers(rows, at, i, width),
                load_numbers(rows, at + min(1, last) * width, i, width),
                load_numbers(rows, at + min(2, last) * width, i, width),
                load_numbers(rows, at + min(3, last) * width, i, width),
                load_numbers(rows, at + min(4, last) * width, i, width),
                load_numbers(rows, at + min(5, last) * width, i, width),
                load_numbers(rows, at + min(6, last) * width, i, width),
                load_numbers(rows, at + last * width, i, width),
            )
        )
        store_tile(numbers, i * LANES, square[:4])
        store_tile(numbers, i * LANES + TILE, square[4:])


@inner
def load_triple(table, at, step):  # type: ignore[no-untyped-def]
    """Three vectors."""
    return load(table, at), load(table, at + step), load(table, at + 2 * step)


@inner
def store_triple(table, at, step, triple):  # type: ignore[no-untyped-def]
    """Three vectors."""
    store(table, at, triple[0])
    store(table, at + step, triple[1])
    store(table, at + 2 * step, triple[2])


@inner
def add_product(triple, factor, other):  # type: ignore[no-untyped-def]
    """triple + factor times another triple."""
    return fma(factor, other[0], triple[0]), fma(factor, other[1], triple[1]), fma(factor, other[2], triple[2])


@inner
def _short_series(s, c):  # type: ignore[no-untyped-def]
    """Σ c_n sⁿ, the eight terms that count in float32 up to s = 3."""
    s2 = s * s
    low = fma(fma(s, splat(s, c[3]), splat(s, c[2])), s2, fma(s, splat(s, c[1]), splat(s, c[0])))
    high = fma(fma(s, splat(s, c[7]), splat(s, c[6])), s2, fma(s, splat(s, c[5]), splat(s, c[4])))
    return fma(high, s2 * s2, low)


def power_series(s: Any, c: Any) -> Any:
    """Σ c_n sⁿ for s in [0, 3]."""
    raise NotImplementedError("compiled code only")


@overload(power_series, strict=False)
def _(s: Any, c: Any) -> Any:
    if s.scalar == types.float32:
        return lambda s, c: _short_series(s, c)
    return lambda s, c: series(s, c)


@inner
def block_heads(sizes, block):  # type: ignore[no-untyped-def]
    """(first head, number of heads) of a block."""
    return block * LANES, min(LANES, sizes.heads - block * LANES)


@inner
def lay_out_base(blocks, sizes, first, lanes, arrays, scratch):  # type: ignore[no-untyped-def]
    """b and 1 / |q_base| of these blocks of a tile."""
    every = (sizes.heads + LANES - 1) // LANES
    for number in range(lanes):
        for block in range(*blocks):
            head, count = block_heads(sizes, block)
            q = load_quaternions(arrays.base, 4 * ((first + number) * sizes.heads + head), 4, count)
            share, place = splat(arrays.base, 1.0) / sqrt(dot(q, q)), number * every + block
            store_tile(scratch.unit, place * TILE, (q[0] * share, q[1] * share, q[2] * share, q[3] * share))
            store(scratch.share, place * LANES, share)


@inner
def mix_row(blocks, sizes, arrays, image, vertex, to, rows):  # type: ignore[no-untyped-def]
    """rows[to:] = inner + hidden of these blocks of a vertex, its own row or a mixture; the next image's is fetched."""
    width, left = sizes.heads * sizes.width, blocks[0] * LANES * sizes.width
    count = min(blocks[1] * LANES * sizes.width, width) - left
    if sizes.terms == 0:
        own = (image * sizes.rows + vertex) * width + left
        fetch(arrays.hidden, own + sizes.rows * width, count)
        add_row(count, 1.0, arrays.hidden, own, arrays.inner, left, rows, to + left)
    for term in range(sizes.terms):
        place = vertex * sizes.terms + term
        own = (image * sizes.rows + arrays.indices[place]) * width + left
        if term == 0:
            fetch(arrays.hidden, own + sizes.rows * width, count)
            add_row(count, arrays.shares[place], arrays.hidden, own, arrays.inner, left, rows, to + left)
        else:
            add_row(count, arrays.shares[place], arrays.hidden, own, rows, to + left, rows, to + left)


@inner
def mix_rows(blocks, sizes, arrays, image, first, lanes, scratch):  # type: ignore[no-untyped-def]
    """The rows of a tile into the scratch."""
    for number in range(lanes):
        mix_row(blocks, sizes, arrays, image, first + number, number * sizes.heads * sizes.width, scratch.rows)


@inner
def exponential(t, bound):  # type: ignore[no-untyped-def]
    """(ω, θ², sinc θ, exp(ω)) from t = tanh(raw)."""
    x, y, z = bound * t[0], bound * t[1], bound * t[2]
    square = fma(x, x, fma(y, y, z * z))
    sinc = power_series(square, SINC)
    return (x, y, z), square, sinc, (power_series(square, COS), sinc * x, sinc * y, sinc * z)


@inner
def network(sizes, number, block, arrays, scratch):  # type: ignore[no-untyped-def]
    """raw of one block of heads of a vertex, by two sums so that one need not wait for the other."""
    (head, count), weight = block_heads(sizes, block), block * sizes.width * TRIPLE
    take_numbers(scratch.rows, (number * sizes.heads + head) * sizes.width, count, sizes.width, scratch.numbers)
    zero = splat(arrays.base, 0.0)
    even, odd = load_triple(arrays.bias, block * TRIPLE, LANES), (zero, zero, zero)
    for i in range(0, sizes.width, 2):
        one, other = halves(gelu(load_wide(scratch.numbers, i * LANES)))
        even = add_product(even, one, load_triple(arrays.weight, weight + i * TRIPLE, LANES))
        odd = add_product(odd, other, load_triple(arrays.weight, weight + (i + 1) * TRIPLE, LANES))
    store_triple(scratch.raw, number * TRIPLE, LANES, (even[0] + odd[0], even[1] + odd[1], even[2] + odd[2]))


@inner
def tanh_of_raw(lanes, scratch):  # type: ignore[no-untyped-def]
    """tanh(raw) of a tile, in place."""
    for n in range(3 * lanes):
        store(scratch.raw, n * LANES, tanh(load(scratch.raw, n * LANES)))


@inner
def perturb_block(sizes, image, first, lanes, block, bound, arrays, scratch):  # type: ignore[no-untyped-def]
    """q of one block of heads of one image's tile: a short loop per stage, since dependent operations overlap only if
    the processor sees the next turn before it ends this one."""
    (head, count), blocks = block_heads(sizes, block), (sizes.heads + LANES - 1) // LANES
    for number in range(lanes):
        network(sizes, number, block, arrays, scratch)
    tanh_of_raw(lanes, scratch)
    for number in range(lanes):
        _, _, _, e = exponential(load_triple(scratch.raw, number * TRIPLE, LANES), splat(arrays.base, bound))
        q = multiply(load_tile(scratch.unit, (number * blocks + block) * TILE), e)
        vertex = image * sizes.vertices + first + number
        store_quaternions(arrays.out, 4 * (vertex * sizes.heads + head), 4, count, q)


@inner
def perturb_part(tiles, images, blocks, sizes, bound, arrays, scratch):  # type: ignore[no-untyped-def]
    """q = b ⊗ exp(ε tanh(raw)) for these tiles, images and blocks of heads."""
    for tile in range(*tiles):
        first = tile * LANES
        lanes = min(LANES, sizes.vertices - first)
        lay_out_base(blocks, sizes, first, lanes, arrays, scratch)
        for image in range(*images):
            mix_rows(blocks, sizes, arrays, image, first, lanes, scratch)
            for block in range(*blocks):
                perturb_block(sizes, image, first, lanes, block, bound, arrays, scratch)


@compiled
def perturb(tiles, sizes, bound, arrays, scratch):  # type: ignore[no-untyped-def]
    """q for these tiles."""
    blocks = 0, (sizes.heads + LANES - 1) // LANES
    perturb_part(tiles, (0, sizes.images), blocks, sizes, bound, arrays, scratch)


def tile_count(sizes: FieldSizes) -> int:
    """Tiles of eight vertices."""
    return -(-sizes.vertices // LANES)


def make_scratch(sizes: FieldSizes, dtype: Any, shares: int = 1) -> tuple[FieldScratch]:
    """What a share needs for itself."""
    tile = LANES * sizes.blocks
    counts = (LANES * sizes.heads * sizes.width, sizes.numbers, LANES * TRIPLE, tile * TILE, tile * LANES)
    return (FieldScratch(*rooms(counts, dtype, shares)),)


def perturb_all(sizes: FieldSizes, bound: float, arrays: FieldArrays) -> None:
    """The field of all images."""
    if sizes.vertices > 0:
        room = Room(make_scratch, (sizes, arrays.base.dtype))
        share_out(perturb, tile_count(sizes), arrays.out.size * sizes.width // 4, sizes, bound, arrays, room=room)
