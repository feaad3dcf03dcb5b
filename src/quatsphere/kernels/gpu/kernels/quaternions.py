"""Quaternion algebra of the Triton kernels: a quaternion is a tuple (w, x, y, z) of blocks of one shape.

In memory components are adjacent, real part first. `components` and `together` convert between a block whose last axis
has length four and the tuple, within the registers of a thread. Triton reads TRITON_INTERPRET at its import, so the
modules of this package are imported late.
"""

import inspect
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

SANDWICH, ONE_SIDED = tl.constexpr(0), tl.constexpr(2)  # indices into inputs.TRANSPORTS


def jit(function: Callable[..., Any]) -> Any:
    """triton.jit without the wrapper that jaxtyping adds under pytest; not specialised to the values of a mask."""
    plain = inspect.unwrap(function)
    anything = [name for name in ("site", "threshold") if name in inspect.signature(plain).parameters]
    return triton.jit(plain, do_not_specialize=anything)


@jit
def components(x):
    """(..., 4) -> its four components."""
    even, odd = tl.split(tl.reshape(x, x.shape[:-1] + (2, 2)))  # noqa: RUF005 (Triton has no starred tuples)
    w, y = tl.split(even)
    i, z = tl.split(odd)
    return w, i, y, z


@jit
def together(q):
    """Four components -> (..., 4)."""
    pairs = tl.join(tl.join(q[0], q[2]), tl.join(q[1], q[3]))
    return tl.reshape(pairs, q[0].shape + (4,))  # noqa: RUF005 (Triton has no starred tuples)


@jit
def conjugate(q):
    """q*."""
    return q[0], -q[1], -q[2], -q[3]


@jit
def inner_product(a, b):
    """⟨a, b⟩ = Re(a* b)."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]


@jit
def multiply(a, b):
    """Hamilton product a ⊗ b."""
    return (
        a[0] * b[0] - a[1] * b[1] - a[2] * b[2] - a[3] * b[3],
        a[0] * b[1] + a[1] * b[0] + a[2] * b[3] - a[3] * b[2],
        a[0] * b[2] - a[1] * b[3] + a[2] * b[0] + a[3] * b[1],
        a[0] * b[3] + a[1] * b[2] - a[2] * b[1] + a[3] * b[0],
    )


@jit
def rotate(q, a):
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
def lift(q, x, TRANSPORT: tl.constexpr):
    """Vertex frame -> shared frame; with q* it lowers."""
    if TRANSPORT == SANDWICH:
        return rotate(q, x)
    elif TRANSPORT == ONE_SIDED:  # noqa: RET505 (Triton prunes branches, not code after a return)
        return multiply(q, x)
    else:
        return x


@jit
def inverse_lift(square, TRANSPORT: tl.constexpr):
    """1 / |q|⁴, 1 / |q|² or 1 for square = |q|²: the factor with which lowering inverts lifting."""
    if TRANSPORT == SANDWICH:
        return 1.0 / (square * square)
    elif TRANSPORT == ONE_SIDED:  # noqa: RET505 (Triton prunes branches, not code after a return)
        return 1.0 / square
    else:
        return square * 0.0 + 1.0


@jit
def torque(a, b, TRANSPORT: tl.constexpr):
    """Torque per channel in the shared frame; the gradient of lift has (a, b) = (g, y), that of lower (a, g)."""
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
def add(a, b):
    """a + b."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]


@jit
def scale(factor, a):
    """A real factor times a."""
    return factor * a[0], factor * a[1], factor * a[2], factor * a[3]


@jit
def total(a, axis: tl.constexpr):
    """Σ along one axis of the blocks."""
    return (
        tl.sum(a[0], axis, keep_dims=True),
        tl.sum(a[1], axis, keep_dims=True),
        tl.sum(a[2], axis, keep_dims=True),
        tl.sum(a[3], axis, keep_dims=True),
    )
