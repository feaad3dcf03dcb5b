"""The loops of the field's perturbation, eight quaternions at a time (eq:perturb, eq:perturb-omega):

    raw = Σ_i gelu(hidden_i) W_i + bias,  ω = ε tanh(raw),  e = exp(ω) = (cos θ, sinc θ ω) with θ = |ω|
    p = q_base ⊗ e,  q = p / |p|

Backward, with everything recomputed and s = θ²:

    dp = (g - q ⟨q, g⟩) / |p|,  de = q_base* ⊗ dp,  dq_base = Σ_b dp ⊗ e*
    dω = sinc de_v + ω (2 sinc' ⟨de_v, ω⟩ - sinc de_w),  dε = Σ ⟨dω, tanh⟩,  draw = ε (1 - tanh²) dω
    dhidden_i = gelu'(hidden_i) ⟨W_i, draw⟩,  dW_i = Σ gelu(hidden_i) draw,  dbias = Σ draw

Vertices and heads are one axis of N = V H quaternions, and lanes are eight neighbours on it. So the weights of a block
of eight are those of heads 8n..8n+7 modulo H: a table with as many *phases* as there are different blocks. A thread
owns some chunks of blocks for all images; every sum runs over images and blocks in order.
"""

from typing import Any, NamedTuple

import numpy as np

from quatsphere.kernels.numba_gelu import gelu, gelu_with_slope
from quatsphere.kernels.numba_math import COS, SINC, SINC_SLOPE, series, tanh
from quatsphere.kernels.numba_threads import Part, compiled, share_out
from quatsphere.kernels.numba_transport import conjugate, dot, multiply
from quatsphere.kernels.numba_vector import (
    LANES,
    fma,
    inner,
    insert,
    load,
    load_quaternions,
    splat,
    sqrt,
    store,
    store_quaternions,
)

CHUNK = 16
"""Blocks of eight whose parts of the sums are added up together; part of the result."""


class FieldSizes(NamedTuple):
    """Images, quaternions N per image, width I of the network per head, phases of the weights' table."""

    images: int
    quaternions: int
    width: int
    phases: int


class FieldArrays(NamedTuple):
    """Flat arrays: hidden (B, N, I), weight (phases, I, 3, 8), bias (phases, 3, 8), base (N, 4), out (B, N, 4)."""

    hidden: Any
    weight: Any
    bias: Any
    base: Any
    out: Any


class FieldGradients(NamedTuple):
    """Flat arrays: of the output (B, N, 4), then where the others go; sums in one part per chunk: weight
    (chunks, phases, I, 3, 8), bias (chunks, phases, 3, 8), bound (chunks, 8)."""

    out: Any
    hidden: Any
    base: Any
    weight: Any
    bias: Any
    bound: Any


@inner
def load_triple(table, at):  # type: ignore[no-untyped-def]
    """Three vectors."""
    return load(table, at), load(table, at + LANES), load(table, at + 2 * LANES)


@inner
def add_triple(table, at, factor, triple):  # type: ignore[no-untyped-def]
    """table[at:] += factor times three vectors."""
    store(table, at, fma(factor, triple[0], load(table, at)))
    store(table, at + LANES, fma(factor, triple[1], load(table, at + LANES)))
    store(table, at + 2 * LANES, fma(factor, triple[2], load(table, at + 2 * LANES)))


@inner
def add_product(triple, factor, table, at):  # type: ignore[no-untyped-def]
    """triple + factor times three vectors of a table."""
    x, y, z = load_triple(table, at)
    return fma(factor, x, triple[0]), fma(factor, y, triple[1]), fma(factor, z, triple[2])


@inner
def block_place(sizes, block):  # type: ignore[no-untyped-def]
    """(first quaternion, number of them, place in the weights, place in the biases) of a block."""
    first, phase = block * LANES, block % sizes.phases
    return first, min(LANES, sizes.quaternions - first), phase * sizes.width * 3 * LANES, phase * 3 * LANES


@inner
def network(arrays, sizes, at, lanes, weight, bias):  # type: ignore[no-untyped-def]
    """raw of eight quaternions."""
    raw = load_triple(arrays.bias, bias)
    for i in range(0, sizes.width, 4):
        a, b, c, d = load_quaternions(arrays.hidden, at * sizes.width + i, sizes.width, lanes)
        place = weight + 3 * LANES * i
        raw = add_product(raw, gelu(a), arrays.weight, place)
        raw = add_product(raw, gelu(b), arrays.weight, place + 3 * LANES)
        raw = add_product(raw, gelu(c), arrays.weight, place + 6 * LANES)
        raw = add_product(raw, gelu(d), arrays.weight, place + 9 * LANES)
    return raw


@inner
def exponential(raw, bound):  # type: ignore[no-untyped-def]
    """(tanh(raw), ω, θ², exp(ω))."""
    t = tanh(raw[0]), tanh(raw[1]), tanh(raw[2])
    x, y, z = bound * t[0], bound * t[1], bound * t[2]
    square = fma(x, x, fma(y, y, z * z))
    sinc = series(square, SINC)
    return t, (x, y, z), square, (series(square, COS), sinc * x, sinc * y, sinc * z)


@compiled
def perturb(chunks, sizes, bound, arrays):  # type: ignore[no-untyped-def]
    """q = normalize(q_base ⊗ exp(ε tanh(raw))) for these chunks of the N quaternions."""
    blocks = (sizes.quaternions + LANES - 1) // LANES
    for image in range(sizes.images):
        for block in range(chunks[0] * CHUNK, min(chunks[1] * CHUNK, blocks)):
            first, lanes, weight, bias = block_place(sizes, block)
            at = image * sizes.quaternions + first
            raw = network(arrays, sizes, at, lanes, weight, bias)
            _, _, _, e = exponential(raw, splat(arrays.base, bound))
            p = multiply(load_quaternions(arrays.base, 4 * first, 4, lanes), e)
            share = splat(arrays.base, 1.0) / sqrt(dot(p, p))
            q = (p[0] * share, p[1] * share, p[2] * share, p[3] * share)
            store_quaternions(arrays.out, 4 * at, 4, lanes, q)


@inner
def tangent_gradient(omega, square, de):  # type: ignore[no-untyped-def]
    """dω from the gradient of exp(ω)."""
    x, y, z = omega
    sinc, slope = series(square, SINC), series(square, SINC_SLOPE)
    along = fma(de[1], x, fma(de[2], y, de[3] * z))
    radial = fma(slope + slope, along, splat(slope, 0.0) - sinc * de[0])
    return fma(sinc, de[1], radial * x), fma(sinc, de[2], radial * y), fma(sinc, de[3], radial * z)


@inner
def product_gradient(base, e, q, g):  # type: ignore[no-untyped-def]
    """dp of p = q_base ⊗ e from the gradient g of q = p / |p|."""
    p = multiply(base, e)
    share = splat(e[0], 1.0) / sqrt(dot(p, p))
    along = splat(e[0], 0.0) - dot(q, g)
    return (
        share * fma(along, q[0], g[0]),
        share * fma(along, q[1], g[1]),
        share * fma(along, q[2], g[2]),
        share * fma(along, q[3], g[3]),
    )


@inner
def network_kept(arrays, sizes, at, lanes, weight, bias, scratch):  # type: ignore[no-untyped-def]
    """raw of eight quaternions; gelu (I, 8) and its slope (I, 8) stay in the scratch."""
    raw = load_triple(arrays.bias, bias)
    for i in range(0, sizes.width, 4):
        four = load_quaternions(arrays.hidden, at * sizes.width + i, sizes.width, lanes)
        for component, x in enumerate(four):
            value, slope = gelu_with_slope(x)
            number = i + component
            store(scratch, number * LANES, value)
            store(scratch, (sizes.width + number) * LANES, slope)
            raw = add_product(raw, value, arrays.weight, weight + 3 * LANES * number)
    return raw


@inner
def hidden_gradient(arrays, sizes, weight, scratch, number, draw):  # type: ignore[no-untyped-def]
    """dhidden_i of eight quaternions."""
    x, y, z = load_triple(arrays.weight, weight + 3 * LANES * number)
    return load(scratch, (sizes.width + number) * LANES) * fma(draw[0], x, fma(draw[1], y, draw[2] * z))


@inner
def network_gradient(arrays, sizes, at, lanes, weight, scratch, draw, gradients, part):  # type: ignore[no-untyped-def]
    """dhidden of eight quaternions; dW is added to this part."""
    for i in range(0, sizes.width, 4):
        a = hidden_gradient(arrays, sizes, weight, scratch, i, draw)
        b = hidden_gradient(arrays, sizes, weight, scratch, i + 1, draw)
        c = hidden_gradient(arrays, sizes, weight, scratch, i + 2, draw)
        d = hidden_gradient(arrays, sizes, weight, scratch, i + 3, draw)
        store_quaternions(gradients.hidden, at * sizes.width + i, sizes.width, lanes, (a, b, c, d))
        for number in range(i, i + 4):
            add_triple(gradients.weight, part + 3 * LANES * number, load(scratch, number * LANES), draw)


@inner
def present(like, lanes):  # type: ignore[no-untyped-def]
    """One in the lanes that hold a quaternion, zero beyond."""
    ones = splat(like, 1.0)
    for number in range(lanes, LANES):
        ones = insert(ones, number, 0.0)
    return ones


@inner
def add_quaternions(table, at, lanes, q):  # type: ignore[no-untyped-def]
    """Eight quaternions added to those that are there."""
    w, x, y, z = load_quaternions(table, at, 4, lanes)
    store_quaternions(table, at, 4, lanes, (w + q[0], x + q[1], y + q[2], z + q[3]))


@inner
def differentiate_block(image, block, chunk, sizes, bound, arrays, scratch, gradients):  # type: ignore[no-untyped-def]
    """Gradients of eight quaternions of one image, sums added to the chunk's; returns the part of dε, lane by lane."""
    first, lanes, weight, bias = block_place(sizes, block)
    at, part = image * sizes.quaternions + first, chunk * sizes.phases * 3 * LANES
    base = load_quaternions(arrays.base, 4 * first, 4, lanes)
    raw = network_kept(arrays, sizes, at, lanes, weight, bias, scratch)
    t, omega, square, e = exponential(raw, bound)
    q = load_quaternions(arrays.out, 4 * at, 4, lanes)
    dp = product_gradient(base, e, q, load_quaternions(gradients.out, 4 * at, 4, lanes))
    add_quaternions(gradients.base, 4 * first, lanes, multiply(dp, conjugate(e)))
    dx, dy, dz = tangent_gradient(omega, square, multiply(conjugate(base), dp))
    one = present(bound, lanes)
    scaled, zero = bound * one, splat(bound, 0.0)
    draw = (
        scaled * dx * fma(zero - t[0], t[0], one),
        scaled * dy * fma(zero - t[1], t[1], one),
        scaled * dz * fma(zero - t[2], t[2], one),
    )
    network_gradient(arrays, sizes, at, lanes, weight, scratch, draw, gradients, part * sizes.width + weight)
    add_triple(gradients.bias, part + bias, one, draw)
    return one * fma(dx, t[0], fma(dy, t[1], dz * t[2]))


@compiled
def differentiate(chunks, sizes, bound, arrays, scratch, gradients):  # type: ignore[no-untyped-def]
    """All gradients of these chunks; the sums' places hold zeros before."""
    blocks = (sizes.quaternions + LANES - 1) // LANES
    for chunk in range(*chunks):
        total = splat(arrays.base, 0.0)
        for image in range(sizes.images):
            for block in range(chunk * CHUNK, min((chunk + 1) * CHUNK, blocks)):
                total = total + differentiate_block(
                    image, block, chunk, sizes, splat(arrays.base, bound), arrays, scratch, gradients
                )
        store(gradients.bound, chunk * LANES, total)


def chunk_count(sizes: FieldSizes) -> int:
    """Chunks of sixteen blocks of eight."""
    return -(-sizes.quaternions // (LANES * CHUNK))


def perturb_all(sizes: FieldSizes, bound: float, arrays: FieldArrays) -> None:
    """The field of all images."""
    share_out(perturb, chunk_count(sizes), sizes, bound, arrays)


def differentiate_all(sizes: FieldSizes, bound: float, arrays: FieldArrays, gradients: FieldGradients) -> None:
    """All gradients of the field."""

    def run(part: Part) -> None:
        scratch = np.empty(2 * sizes.width * LANES, arrays.base.dtype)
        differentiate(part, sizes, bound, arrays, scratch, gradients)

    share_out(run, chunk_count(sizes))
