"""GELU(x) = x Φ(x) and its slope Φ(x) + x φ(x) on the lanes of a vector.

Both follow from the tail Φ(-a) and the density φ(a) at a = |x|: GELU = max(x, 0) - a Φ(-a), and its slope is
Φ(-a) - a φ(a) for negative x, one minus that for positive x. The eighth roots of tail and density are so smooth that
polynomials of degree seven in a and five in a² give, after three squarings, x Φ(x) within 3e-7 (relative beyond 1) and
the slope within 6e-7 in float32: no exponential and no division.
"""

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.polynomial import Polynomial

from quatsphere.kernels.numba_math import exp_of_negative
from quatsphere.kernels.numba_vector import absolute, fma, inner, insert, lane, splat, where_less

END = 6.0
"""Where a is cut: a Φ(-a) and a φ(a) are below 4e-8 from here on."""
DENSITY = 1 / math.sqrt(2 * math.pi)


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


_A = END * np.sin(np.linspace(0, math.pi / 2, 800)[1:]) ** 2
TAIL = _fit(np.array([0.5 * math.erfc(a / math.sqrt(2)) for a in _A]), _A, 7, np.maximum(_A, 1))
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
def _parts(x):  # type: ignore[no-untyped-def]
    """(a = min(|x|, END), Φ(-a), x Φ(x)); NaN stays NaN."""
    zero, end = splat(x, 0.0), splat(x, END)
    size = absolute(x)
    a = where_less(end, size, end, size)
    tail = _eighth_power(a, TAIL)
    return a, tail, fma(zero - a, tail, where_less(zero, x, x, zero))


@inner
def _gelu32(x):  # type: ignore[no-untyped-def]
    _, _, value = _parts(x)
    return value


@inner
def _gelu_with_slope32(x):  # type: ignore[no-untyped-def]
    a, tail, value = _parts(x)
    slope = fma(splat(x, 0.0) - a, _eighth_power(a * a, BELL), tail)
    return value, where_less(x, splat(x, 0.0), slope, 1.0 - slope)


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


@overload(gelu, strict=False)
def _(x: Any) -> Any:
    if x.scalar == types.float32:
        return lambda x: _gelu32(x)
    lanes = x.lanes
    return lambda x: _gelu_with_slope64(x, lanes)[0]


@overload(gelu_with_slope, strict=False)
def _(x: Any) -> Any:
    if x.scalar == types.float32:
        return lambda x: _gelu_with_slope32(x)
    lanes = x.lanes
    return lambda x: _gelu_with_slope64(x, lanes)
