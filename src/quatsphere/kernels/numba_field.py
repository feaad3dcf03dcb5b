"""The loops of the field's perturbation, eight quaternions at a time (eq:perturb, eq:perturb-omega):

    ω = ε tanh(raw),  e = exp(ω) = (cos θ, sinc θ ω) with θ = |ω|,  p = q_base ⊗ e,  q = p / |p|

Backward, with everything recomputed and s = θ²:

    dp = (g - q ⟨q, g⟩) / |p|,  de = q_base* ⊗ dp,  dq_base = Σ_b dp ⊗ e*
    dω = sinc de_v + ω (2 sinc' ⟨de_v, ω⟩ - sinc de_w),  dε = Σ ⟨dω, tanh⟩,  draw = ε (1 - tanh²) dω

Vertices and heads are one axis of N = V H quaternions. A thread owns some of them for all images, so that the base's
gradient is summed over images in order, in registers.
"""

from typing import Any, NamedTuple

from quatsphere.kernels.numba_math import COS, SINC, SINC_SLOPE, series, tanh
from quatsphere.kernels.numba_threads import compiled, share_out
from quatsphere.kernels.numba_transport import conjugate, dot, multiply
from quatsphere.kernels.numba_vector import (
    LANES,
    fma,
    inner,
    insert,
    lane,
    load_quaternions,
    load_triples,
    splat,
    sqrt,
    store,
    store_quaternions,
    store_triples,
)

CHUNK = 16
"""Blocks of eight whose part of the bound's gradient is summed together; part of the result."""


class FieldArrays(NamedTuple):
    """Flat arrays: raw (B, N, 3), base (N, 4), out (B, N, 4)."""

    raw: Any
    base: Any
    out: Any


class FieldGradients(NamedTuple):
    """Flat arrays: of the output (B, N, 4), then where those of raw, base and bound (chunks, 8) go."""

    out: Any
    raw: Any
    base: Any
    bound: Any


@inner
def read_triples(array, at, count):  # type: ignore[no-untyped-def]
    """Eight triples as three vectors; lanes >= count are zero."""
    if count == LANES:
        return load_triples(array, at)
    x, y, z = splat(array, 0.0), splat(array, 0.0), splat(array, 0.0)
    for number in range(count):
        x = insert(x, number, array[at + 3 * number])
        y = insert(y, number, array[at + 3 * number + 1])
        z = insert(z, number, array[at + 3 * number + 2])
    return x, y, z


@inner
def write_triples(array, at, count, triple):  # type: ignore[no-untyped-def]
    """The first `count` lanes of three vectors as triples."""
    if count == LANES:
        store_triples(array, at, triple)
    else:
        for number in range(count):
            array[at + 3 * number] = lane(triple[0], number)
            array[at + 3 * number + 1] = lane(triple[1], number)
            array[at + 3 * number + 2] = lane(triple[2], number)


@inner
def exponential(raw, bound):  # type: ignore[no-untyped-def]
    """(tanh(raw), ω, θ², exp(ω))."""
    t = tanh(raw[0]), tanh(raw[1]), tanh(raw[2])
    x, y, z = bound * t[0], bound * t[1], bound * t[2]
    square = fma(x, x, fma(y, y, z * z))
    sinc = series(square, SINC)
    return t, (x, y, z), square, (series(square, COS), sinc * x, sinc * y, sinc * z)


@compiled
def perturb(blocks, images, count, bound, arrays):  # type: ignore[no-untyped-def]
    """q = normalize(q_base ⊗ exp(ε tanh(raw))) for these blocks of eight of the `count` = N quaternions."""
    for block in range(*blocks):
        first = block * LANES
        lanes = min(LANES, count - first)
        base = load_quaternions(arrays.base, 4 * first, 4, lanes)
        for image in range(images):
            at = image * count + first
            _, _, _, e = exponential(read_triples(arrays.raw, 3 * at, lanes), splat(arrays.raw, bound))
            p = multiply(base, e)
            share = splat(arrays.raw, 1.0) / sqrt(dot(p, p))
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
def differentiate_block(block, images, count, bound, arrays, gradients):  # type: ignore[no-untyped-def]
    """Gradients of raw and base of eight quaternions; returns their part of dε, lane by lane."""
    first = block * LANES
    lanes = min(LANES, count - first)
    base = load_quaternions(arrays.base, 4 * first, 4, lanes)
    zero, one = splat(bound, 0.0), splat(bound, 1.0)
    total = zero
    bw, bx, by, bz = zero, zero, zero, zero
    for image in range(images):
        at = image * count + first
        t, omega, square, e = exponential(read_triples(arrays.raw, 3 * at, lanes), bound)
        q = load_quaternions(arrays.out, 4 * at, 4, lanes)
        dp = product_gradient(base, e, q, load_quaternions(gradients.out, 4 * at, 4, lanes))
        part = multiply(dp, conjugate(e))
        bw, bx, by, bz = bw + part[0], bx + part[1], by + part[2], bz + part[3]
        dx, dy, dz = tangent_gradient(omega, square, multiply(conjugate(base), dp))
        total = fma(dx, t[0], fma(dy, t[1], fma(dz, t[2], total)))
        raw = (
            bound * dx * fma(zero - t[0], t[0], one),
            bound * dy * fma(zero - t[1], t[1], one),
            bound * dz * fma(zero - t[2], t[2], one),
        )
        write_triples(gradients.raw, 3 * at, lanes, raw)
    store_quaternions(gradients.base, 4 * first, 4, lanes, (bw, bx, by, bz))
    return total


@compiled
def differentiate(chunks, images, count, bound, arrays, gradients):  # type: ignore[no-untyped-def]
    """Gradients of raw and base, and the bound's per chunk and lane; lanes beyond N hold raw = 0 and add nothing."""
    blocks = (count + LANES - 1) // LANES
    for chunk in range(*chunks):
        total = splat(arrays.raw, 0.0)
        for block in range(chunk * CHUNK, min((chunk + 1) * CHUNK, blocks)):
            total = total + differentiate_block(block, images, count, splat(arrays.raw, bound), arrays, gradients)
        store(gradients.bound, chunk * LANES, total)


def perturb_all(images: int, count: int, bound: float, arrays: FieldArrays) -> None:
    """The field of `images` images and N = `count` quaternions."""
    share_out(perturb, -(-count // LANES), images, count, bound, arrays)


def differentiate_all(images: int, count: int, bound: float, arrays: FieldArrays, gradients: FieldGradients) -> None:
    """All gradients of the field."""
    share_out(differentiate, len(gradients.bound) // LANES, images, count, bound, arrays, gradients)
