"""The loops of the field's perturbation (eq:perturb, eq:perturb-omega), with b = q_base / |q_base|:

    raw = Σ_i gelu(inner_i + hidden_i) W_i + bias,  ω = ε tanh(raw),  e = exp(ω) = (cos θ, sinc θ ω) with θ = |ω|
    q = normalize(q_base ⊗ e) = b ⊗ e, since |e| = 1

A vertex takes its row of hidden or, on a shell that has no tokens yet, a mixture of a few sources' rows: `interp`
commutes with the network's first product, and its shares sum to one, so the inner bias is added once, after it.

Lanes are eight numbers i of one head for the network, so that hidden is read and written as it lies, and eight vertices
of one head for the quaternions. A *tile* is eight vertices: a thread owns some tiles for all images, and every sum runs
over images, then tiles, in order. The heads of a tile are taken in groups, one short loop per stage: dependent
operations overlap only if the processor sees the next turn before it ends this one. Numbers of the next image are
fetched ahead, since the processor does not guess the jump.
"""

from typing import Any, NamedTuple

from numba import types
from numba.core import cgutils
from numba.extending import overload

from quatsphere.kernels.numba_gelu import gelu
from quatsphere.kernels.numba_math import COS, SINC, series, tanh
from quatsphere.kernels.numba_quaternions import load_quaternions, store_quaternions
from quatsphere.kernels.numba_threads import Part, compiled, room, share_out
from quatsphere.kernels.numba_transport import TILE, dot, load_tile, multiply, store_tile
from quatsphere.kernels.numba_vector import (
    LANES,
    WIDE,
    fetch,
    fma,
    inner,
    instruction,
    ir,
    load,
    load_some,
    load_wide,
    splat,
    spread,
    sqrt,
    store,
)

GROUP = 16
"""Heads that go through the stages together; their numbers stay in the nearest caches."""
TRIPLE, ROWS = 3 * LANES, 3 * LANES * LANES


class FieldSizes(NamedTuple):
    """Images, vertices, heads H, width I of the network per head and the next multiple of eight, rows of hidden per
    image, rows that a vertex mixes (0: it has one of its own)."""

    images: int
    vertices: int
    heads: int
    width: int
    padded: int
    rows: int
    terms: int


class FieldArrays(NamedTuple):
    """Flat arrays: hidden (B, rows, H, I), inner bias (H, I), weight (H, I, 3), bias (H, 3), base (V, H, 4), out or its
    gradient (B, V, H, 4), which rows are mixed (V, terms) and their shares."""

    hidden: Any
    inner: Any
    weight: Any
    bias: Any
    base: Any
    out: Any
    indices: Any
    shares: Any


class FieldScratch(NamedTuple):
    """A thread's own: weight (H, 3, padded), partial sums of raw (GROUP, 3, 8, 8), tanh(raw), later draw (GROUP, 3, 8),
    b (H, 4, 8), 1 / |q_base| (H, 8), the rows of a tile (8, H, I)."""

    weight: Any
    partial: Any
    raw: Any
    unit: Any
    share: Any
    rows: Any


@instruction
def sum_lanes(typingctx: Any, rows: Any) -> Any:
    """Lane l is the sum of the eight lanes of row l."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def fold(a: Any, b: Any, first: list[int], second: list[int]) -> Any:
            masks = [ir.Constant(ir.VectorType(ir.IntType(32), LANES), order) for order in (first, second)]
            return builder.fadd(*(builder.shuffle_vector(a, b, mask) for mask in masks))

        r = cgutils.unpack_tuple(builder, args[0], LANES)
        r = [fold(r[n], r[n + 4], [0, 1, 2, 3, 12, 13, 14, 15], [4, 5, 6, 7, 8, 9, 10, 11]) for n in range(4)]
        r = [fold(r[n], r[n + 1], [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]) for n in (0, 2)]
        return fold(r[0], r[1], [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15])

    return rows.dtype(rows), code


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
def load_numbers(table, at, i, width):  # type: ignore[no-untyped-def]
    """Numbers i..i+7 of the head at `at`, zeros beyond its end."""
    if width % LANES == 0:
        return load(table, at + i)
    return load_some(table, at + i, min(LANES, width - i))


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
def lay_out_weight(sizes, arrays, scratch):  # type: ignore[no-untyped-def]
    """(H, I, 3) -> (H, 3, padded), zeros beyond I."""
    for head in range(sizes.heads):
        for axis in range(3):
            row = (3 * head + axis) * sizes.padded
            for i in range(sizes.padded):
                inside = i < sizes.width
                scratch.weight[row + i] = arrays.weight[3 * (head * sizes.width + i) + axis] if inside else 0.0


@inner
def lay_out_base(sizes, first, lanes, arrays, scratch):  # type: ignore[no-untyped-def]
    """b and 1 / |q_base| of a tile."""
    for head in range(sizes.heads):
        q = load_quaternions(arrays.base, 4 * (first * sizes.heads + head), 4 * sizes.heads, lanes)
        share = splat(arrays.base, 1.0) / sqrt(dot(q, q))
        store_tile(scratch.unit, head * TILE, (q[0] * share, q[1] * share, q[2] * share, q[3] * share))
        store(scratch.share, head * LANES, share)


@inner
def clear_absent(lanes, scratch):  # type: ignore[no-untyped-def]
    """Zeros in the partial sums of the vertices that the last tile lacks."""
    if lanes < LANES:
        scratch.partial[:] = 0.0


@inner
def sum_rows(scratch, at, arrays, bias):  # type: ignore[no-untyped-def]
    """One component of raw of eight vertices from its partial sums."""
    rows = load_tile(scratch.partial, at) + load_tile(scratch.partial, at + TILE)
    return sum_lanes(rows) + spread(arrays.bias, bias)


@inner
def finish_network(heads, arrays, scratch):  # type: ignore[no-untyped-def]
    """tanh(raw) of a group of heads from the partial sums."""
    count = 3 * (heads[1] - heads[0])
    for n in range(count):
        store(scratch.raw, n * LANES, sum_rows(scratch, n * LANES * LANES, arrays, 3 * heads[0] + n))
    for n in range(count):
        store(scratch.raw, n * LANES, tanh(load(scratch.raw, n * LANES)))


@inner
def exponential(t, bound):  # type: ignore[no-untyped-def]
    """(ω, θ², sinc θ, exp(ω)) from t = tanh(raw)."""
    x, y, z = bound * t[0], bound * t[1], bound * t[2]
    square = fma(x, x, fma(y, y, z * z))
    sinc = power_series(square, SINC)
    return (x, y, z), square, sinc, (power_series(square, COS), sinc * x, sinc * y, sinc * z)


@inner
def add_row(width, share, row, at, onto, base, out, to):  # type: ignore[no-untyped-def]
    """out[to:] = onto[base:] + share row[at:], `width` numbers."""
    whole = width - width % WIDE
    for channel in range(0, whole, WIDE):
        numbers = load_wide(row, at + channel)
        store(out, to + channel, fma(splat(numbers, share), numbers, load_wide(onto, base + channel)))
    for channel in range(whole, width):
        out[to + channel] = onto[base + channel] + share * row[at + channel]


@inner
def mix_row(sizes, arrays, image, vertex, to, rows):  # type: ignore[no-untyped-def]
    """rows[to:] = inner + hidden of a vertex, its own row or a mixture; the next image's row is fetched."""
    width, zero = sizes.heads * sizes.width, vertex - vertex
    if sizes.terms == 0:
        own = (image * sizes.rows + vertex) * width
        fetch(arrays.hidden, own + sizes.rows * width, width)
        add_row(width, 1.0, arrays.hidden, own, arrays.inner, zero, rows, to)
    for term in range(sizes.terms):
        place = vertex * sizes.terms + term
        own = (image * sizes.rows + arrays.indices[place]) * width
        if term == 0:
            fetch(arrays.hidden, own + sizes.rows * width, width)
            add_row(width, arrays.shares[place], arrays.hidden, own, arrays.inner, zero, rows, to)
        else:
            add_row(width, arrays.shares[place], arrays.hidden, own, rows, to, rows, to)


@inner
def mix_rows(sizes, arrays, image, first, lanes, scratch):  # type: ignore[no-untyped-def]
    """The rows of a tile into the scratch."""
    for number in range(lanes):
        mix_row(sizes, arrays, image, first + number, number * sizes.heads * sizes.width, scratch.rows)


@inner
def network(heads, sizes, lanes, arrays, scratch):  # type: ignore[no-untyped-def]
    """Partial sums of raw for a group of heads of eight vertices."""
    for number in range(lanes):
        for head in range(*heads):
            place = (number * sizes.heads + head) * sizes.width
            raw = splat(arrays.base, 0.0), splat(arrays.base, 0.0), splat(arrays.base, 0.0)
            for i in range(0, sizes.width, LANES):
                value = gelu(load_numbers(scratch.rows, place, i, sizes.width))
                raw = add_product(raw, value, load_triple(scratch.weight, 3 * head * sizes.padded + i, sizes.padded))
            store_triple(scratch.partial, (head - heads[0]) * ROWS + number * LANES, LANES * LANES, raw)


@compiled
def perturb(tiles, sizes, bound, arrays, scratch):  # type: ignore[no-untyped-def]
    """q = b ⊗ exp(ε tanh(raw)) for these tiles."""
    lay_out_weight(sizes, arrays, scratch)
    for tile in range(*tiles):
        first = tile * LANES
        lanes = min(LANES, sizes.vertices - first)
        clear_absent(lanes, scratch)
        lay_out_base(sizes, first, lanes, arrays, scratch)
        for image in range(sizes.images):
            at = (image * sizes.vertices + first) * sizes.heads
            mix_rows(sizes, arrays, image, first, lanes, scratch)
            for group in range(0, sizes.heads, GROUP):
                heads = group, min(group + GROUP, sizes.heads)
                network(heads, sizes, lanes, arrays, scratch)
                finish_network(heads, arrays, scratch)
                for head in range(*heads):
                    t = load_triple(scratch.raw, (head - group) * TRIPLE, LANES)
                    _, _, _, e = exponential(t, splat(arrays.base, bound))
                    q = multiply(load_tile(scratch.unit, head * TILE), e)
                    store_quaternions(arrays.out, 4 * (at + head), 4 * sizes.heads, lanes, q)


def tile_count(sizes: FieldSizes) -> int:
    """Tiles of eight vertices."""
    return -(-sizes.vertices // LANES)


def make_scratch(sizes: FieldSizes, dtype: Any) -> FieldScratch:
    """What a thread needs for itself."""
    heads = sizes.heads
    network = 3 * heads * sizes.padded, GROUP * ROWS, GROUP * TRIPLE
    counts = (*network, heads * TILE, heads * LANES, LANES * heads * sizes.width)
    return FieldScratch(*(room(count, dtype) for count in counts))


def perturb_all(sizes: FieldSizes, bound: float, arrays: FieldArrays) -> None:
    """The field of all images."""

    def run(part: Part) -> None:
        perturb(part, sizes, bound, arrays, make_scratch(sizes, arrays.base.dtype))

    share_out(run, tile_count(sizes), arrays.out.size * sizes.width // 4)
