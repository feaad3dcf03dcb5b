"""Quaternions in Triton: reading, writing, products, lift and lower, and their derivatives.

A quaternion is a tuple (w, x, y, z) of blocks of one shape. With y = lift(q, x) and z = lower(q, a) = lift(q*, a):

    transport    lift(q, x)    lower(q, a)    torque of lift, gradient g at y    torque of lower, g lifted
    sandwich     q x q*        q* a q         g y* + g* y = 2 (⟨y, g⟩, y × g)     a* g + a g* = 2 (⟨a, g⟩, -a × g)
    one_sided    q x           q* a           g y*                               a g*
    identity     x             a              0                                  0

The gradient of q is torque ⊗ q / |q|²: it needs the features in the shared frame only, which are at hand.
"""

import inspect
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

SANDWICH, IDENTITY, ONE_SIDED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


def jit(function: Callable[..., Any]) -> Any:
    """triton.jit; under pytest jaxtyping has wrapped the function by now, Triton wants the bare one."""
    return triton.jit(inspect.unwrap(function))


@jit
def load_quaternions(table, at, stride, there, ACCUMULATE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Components `stride` apart, widened to the accumulating type; zero where nothing is."""
    return (
        tl.load(table + at, there, 0.0).to(ACCUMULATE),
        tl.load(table + at + stride, there, 0.0).to(ACCUMULATE),
        tl.load(table + at + 2 * stride, there, 0.0).to(ACCUMULATE),
        tl.load(table + at + 3 * stride, there, 0.0).to(ACCUMULATE),
    )


@jit
def store_quaternions(table, at, stride, there, q):  # type: ignore[no-untyped-def]
    """Write the components `stride` apart, narrowed to the table's type."""
    tl.store(table + at, q[0], there)
    tl.store(table + at + stride, q[1], there)
    tl.store(table + at + 2 * stride, q[2], there)
    tl.store(table + at + 3 * stride, q[3], there)


@jit
def per_channel(q):  # type: ignore[no-untyped-def]
    """(N,) -> (N, 1): one quaternion for all channels of an item."""
    return q[0][:, None], q[1][:, None], q[2][:, None], q[3][:, None]


@jit
def conjugate(q):  # type: ignore[no-untyped-def]
    """q*."""
    return q[0], -q[1], -q[2], -q[3]


@jit
def dot(a, b):  # type: ignore[no-untyped-def]
    """⟨a, b⟩ = Re(a* b)."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]


@jit
def multiply(a, b):  # type: ignore[no-untyped-def]
    """Hamilton product a ⊗ b."""
    return (
        a[0] * b[0] - a[1] * b[1] - a[2] * b[2] - a[3] * b[3],
        a[0] * b[1] + a[1] * b[0] + a[2] * b[3] - a[3] * b[2],
        a[0] * b[2] - a[1] * b[3] + a[2] * b[0] + a[3] * b[1],
        a[0] * b[3] + a[1] * b[2] - a[2] * b[1] + a[3] * b[0],
    )


@jit
def turn(q, a):  # type: ignore[no-untyped-def]
    """q ⊗ a ⊗ q*: |q|² times the real part, the rotation matrix of q times the imaginary part."""
    w, x, y, z = q
    ww, xx, yy, zz = w * w, x * x, y * y, z * z
    return (
        (ww + xx + yy + zz) * a[0],
        (ww + xx - yy - zz) * a[1] + 2.0 * (x * y - w * z) * a[2] + 2.0 * (x * z + w * y) * a[3],
        2.0 * (x * y + w * z) * a[1] + (ww - xx + yy - zz) * a[2] + 2.0 * (y * z - w * x) * a[3],
        2.0 * (x * z - w * y) * a[1] + 2.0 * (y * z + w * x) * a[2] + (ww - xx - yy + zz) * a[3],
    )


@jit
def lift(q, x, TRANSPORT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Vertex frame -> shared frame; with q* it lowers."""
    if TRANSPORT == SANDWICH:
        return turn(q, x)
    elif TRANSPORT == ONE_SIDED:  # noqa: RET505 (Triton prunes branches, not what follows a return)
        return multiply(q, x)
    else:
        return x


@jit
def torque(a, b, TRANSPORT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Per channel, in the shared frame: sandwich 2 (⟨a, b⟩, -a × b), one_sided a b*, identity 0.

    For the gradient of lift a = g and b = y, for that of lower a = a and b = g.
    """
    w, x, y, z = multiply(a, conjugate(b))
    if TRANSPORT == SANDWICH:
        return (
            2.0 * w,
            2.0 * (a[3] * b[2] - a[2] * b[3]),
            2.0 * (a[1] * b[3] - a[3] * b[1]),
            2.0 * (a[2] * b[1] - a[1] * b[2]),
        )
    elif TRANSPORT == ONE_SIDED:  # noqa: RET505
        return w, x, y, z
    else:
        return tl.zeros_like(w), tl.zeros_like(x), tl.zeros_like(y), tl.zeros_like(z)


@jit
def add(a, b):  # type: ignore[no-untyped-def]
    """a + b."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]


@jit
def scale(factor, a):  # type: ignore[no-untyped-def]
    """A real factor times a."""
    return factor * a[0], factor * a[1], factor * a[2], factor * a[3]


@jit
def sum_over(a, axis: tl.constexpr):  # type: ignore[no-untyped-def]
    """Σ along one axis of the blocks."""
    return tl.sum(a[0], axis), tl.sum(a[1], axis), tl.sum(a[2], axis), tl.sum(a[3], axis)
