"""GELU(x) = x Φ(x) and its slope Φ(x) + x φ(x) on sixteen lanes of a vector.

Both follow from T(a) = a Φ(-a) at a = |x|: GELU = max(x, 0) - T(a), and its slope is T'(a) for negative x, one minus
that for positive x. No exponential and no division:

- Where a register holds sixteen numbers (AVX-512) T is sixteen polynomials of degree five, each around the middle of
  its piece of 0 <= a <= END; one instruction gives every lane the coefficient of its own piece. The slope is their
  slope. In float32 x Φ(x) is right within 8e-8 (relative beyond 1), the slope within 6e-7.
- Elsewhere the eighth roots of tail Φ(-a) and density φ(a) are so smooth that polynomials of degree seven in a and five
  in a² give, after three squarings, x Φ(x) within 3e-7 (relative beyond 1) and the slope within 8e-7.
"""

import math
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import overload
from numpy.polynomial import Polynomial

from quatsphere.kernels.numba_math import ROUND32, exp_of_negative
from quatsphere.kernels.numba_vector import (
    WIDE,
    absolute,
    fma,
    inner,
    insert,
    instruction,
    ir,
    lane,
    many_registers,
    register,
    splat,
    where_less,
)

DENSITY = 1 / math.sqrt(2 * math.pi)


def _tail(a: Any) -> Any:
    """Φ(-a)."""
    return np.array([0.5 * math.erfc(number / math.sqrt(2)) for number in a])


END = 5.6
"""Where a is cut for the pieces: T is below 7e-8 from here on."""
PIECE = 1.0001 * END / (WIDE - 0.5)
"""Width of a piece; the first has its middle at 0, so that only its upper half is used, and the last ends a little
beyond END, so that END itself is not rounded into a seventeenth."""
DEGREE = 5
SLOPE_WEIGHT = 0.3
"""What an error of the slope counts in the fit, beside one of the value."""


def _fit_piece(number: int) -> Any:
    """Coefficients of T around the middle of a piece: least squares of values and slopes, close at its ends."""
    u = PIECE * np.clip(0.5 * np.cos(np.linspace(0, math.pi, 64)), -0.5 if number else 0.0, 0.5)
    a, powers = number * PIECE + u, np.vander(u, DEGREE + 1, increasing=True)
    slopes = np.zeros_like(powers)
    slopes[:, 1:] = powers[:, :-1] * np.arange(1, DEGREE + 1)
    wanted = a * _tail(a), _tail(a) - DENSITY * a * np.exp(-0.5 * a**2)
    powers[:, 0] *= number > 0  # T(0) = 0 exactly
    both = np.vstack((powers, SLOPE_WEIGHT * slopes)), np.concatenate((wanted[0], SLOPE_WEIGHT * wanted[1]))
    return np.linalg.lstsq(*both, rcond=None)[0]


COEFFICIENTS = np.array([_fit_piece(number) for number in range(WIDE)]).T
"""(power, piece)."""


@instruction
def coefficients(typingctx: Any, piece: Any) -> Any:
    """The coefficients of each lane's piece, whose number is in the lowest bits of the lane: one vector per power."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind, whole = register(types.float32, WIDE), ir.VectorType(ir.IntType(32), WIDE)
        name = "llvm.x86.avx512.permvar.sf.512"
        pick = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind, whole]), name)
        number = builder.bitcast(args[0], whole)
        rows = [ir.Constant(kind, [float(c) for c in row]) for row in COEFFICIENTS.astype(np.float32)]
        return context.make_tuple(builder, sig.return_type, [builder.call(pick, [row, number]) for row in rows])

    return types.UniTuple(piece, DEGREE + 1)(piece), code


@inner
def _by_pieces(x):  # type: ignore[no-untyped-def]
    """(x Φ(x), its slope); NaN stays NaN."""
    zero, end, size = splat(x, 0.0), splat(x, END), absolute(x)
    a = where_less(end, size, end, size)
    piece = fma(a, splat(x, 1 / PIECE), splat(x, ROUND32))
    u = fma(piece - ROUND32, splat(x, -PIECE), a)
    c = coefficients(piece)
    slope = c[5]
    value = fma(slope, u, c[4])
    slope, value = fma(slope, u, value), fma(value, u, c[3])
    slope, value = fma(slope, u, value), fma(value, u, c[2])
    slope, value = fma(slope, u, value), fma(value, u, c[1])
    slope, value = fma(slope, u, value), fma(value, u, c[0])
    return where_less(zero, x, x, zero) - value, where_less(x, zero, slope, 1.0 - slope)


FAR = 6.0
"""Where a is cut for the eighth roots: a Φ(-a) and a φ(a) are below 4e-8 from here on."""


def _fit(values: Any, u: Any, degree: int, weight: Any) -> tuple[float, ...]:
    """Coefficients of P with P(u)⁸ ≈ values: the weighted error of the power is evened out by fitting again and again
    with more weight where it is large."""
    root = values**0.125
    scale = emphasis = weight * root**7
    for _ in range(60):
        found = Polynomial.fit(u, root, degree, w=emphasis)
        error = np.abs(found(u) - root) * scale
        emphasis = emphasis * (1 + 0.3 * error / error.max())
        emphasis = emphasis / emphasis.mean()
    return tuple(float(c) for c in found.convert().coef)


_A = FAR * np.sin(np.linspace(0, math.pi / 2, 800)[1:]) ** 2
TAIL = _fit(_tail(_A), _A, 7, np.maximum(_A, 1))
BELL = _fit(DENSITY * np.exp(-0.5 * _A**2), _A**2, 5, _A)


@inner
def _eighth_power(x, c):  # type: ignore[no-untyped-def]
    """(Σ c_n xⁿ)⁸."""
    p = splat(x, c[len(c) - 1])
    for n in range(len(c) - 2, -1, -1):
        p = fma(p, x, splat(x, c[n]))
    square = p * p
    fourth = square * square
    return fourth * fourth


@inner
def _by_eighth_roots(x):  # type: ignore[no-untyped-def]
    """(x Φ(x), its slope); NaN stays NaN."""
    zero, end, size = splat(x, 0.0), splat(x, FAR), absolute(x)
    a = where_less(end, size, end, size)
    tail = _eighth_power(a, TAIL)
    slope = fma(zero - a, _eighth_power(a * a, BELL), tail)
    return fma(zero - a, tail, where_less(zero, x, x, zero)), where_less(x, zero, slope, 1.0 - slope)


@inner
def _gelu_with_slope64(x, lanes):  # type: ignore[no-untyped-def]
    """By the C library, lane by lane: float64 is for checking, not for speed."""
    below = splat(x, 0.0)
    for number in range(lanes):
        below = insert(below, number, 0.5 * math.erfc(-lane(x, number) * math.sqrt(0.5)))
    return x * below, fma(x, DENSITY * exp_of_negative(-0.5 * (x * x)), below)


def gelu(x: Any) -> Any:
    """x Φ(x)."""
    raise NotImplementedError("compiled code only")


def gelu_with_slope(x: Any) -> Any:
    """(x Φ(x), Φ(x) + x φ(x))."""
    raise NotImplementedError("compiled code only")


@overload(gelu_with_slope, strict=False)
def _(x: Any) -> Any:
    if x.scalar == types.float32:
        fast = _by_pieces if many_registers() else _by_eighth_roots
        return lambda x: fast(x)
    lanes = x.lanes
    return lambda x: _gelu_with_slope64(x, lanes)


@overload(gelu, strict=False)
def _(x: Any) -> Any:
    return lambda x: gelu_with_slope(x)[0]
