"""GELU(x) = x Φ(x) and its slope Φ(x) + x φ(x) on eight lanes.

Both Φ - 1/2 and slope - 1/2 are odd and all but constant beyond ±5.5. In between they are u P(s), s = 2 u²/5.5² - 1,
with polynomials that interpolate at Chebyshev points: no exponential and no division, and within
2e-7 (Φ) and 5e-7 (slope) of the truth in float32.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.polynomial import chebyshev

from quatsphere.kernels.numba_math import exp_of_negative
from quatsphere.kernels.numba_vector import LANES, fma, inner, insert, lane, splat, where_less

END = 5.5
DENSITY = 1 / math.sqrt(2 * math.pi)


def _phi(u: float) -> float:
    return 0.5 * math.erf(u / math.sqrt(2))


def _slope(u: float) -> float:
    return _phi(u) + u * DENSITY * math.exp(-0.5 * u * u)


def _interpolate(odd: Callable[[float], float]) -> tuple[float, ...]:
    """Sixteen coefficients of P in powers of s, where odd(u) = u P(s)."""

    def even(s: Any) -> Any:
        u = END * np.sqrt((s + 1) / 2)
        return np.array([odd(value) / value for value in u])

    return tuple(float(c) for c in chebyshev.cheb2poly(chebyshev.chebinterpolate(even, 15)))


PHI = _interpolate(_phi)
SLOPE = _interpolate(_slope)


@inner
def _pair(s, c, n):  # type: ignore[no-untyped-def]
    """c_n + c_(n+1) s."""
    return fma(s, splat(s, c[n + 1]), splat(s, c[n]))


@inner
def _polynomial(s, c):  # type: ignore[no-untyped-def]
    """Σ c_n sⁿ, sixteen terms, in pairs of pairs: a chain of four instead of fifteen keeps the units busy."""
    s2 = s * s
    s4 = s2 * s2
    low = fma(fma(_pair(s, c, 6), s2, _pair(s, c, 4)), s4, fma(_pair(s, c, 2), s2, _pair(s, c, 0)))
    high = fma(fma(_pair(s, c, 14), s2, _pair(s, c, 12)), s4, fma(_pair(s, c, 10), s2, _pair(s, c, 8)))
    return fma(high, s4 * s4, low)


@inner
def _clamp(x):  # type: ignore[no-untyped-def]
    """(max(x, -5.5), the same cut at 5.5 too, s); NaN stays NaN."""
    low, high = splat(x, -END), splat(x, END)
    raised = where_less(x, low, low, x)
    u = where_less(high, raised, high, raised)
    return raised, u, fma(u * splat(x, 2 / END**2), u, splat(x, -1.0))


@inner
def _gelu32(x):  # type: ignore[no-untyped-def]
    raised, u, s = _clamp(x)
    return raised * fma(u, _polynomial(s, PHI), splat(x, 0.5))


@inner
def _gelu_with_slope32(x):  # type: ignore[no-untyped-def]
    raised, u, s = _clamp(x)
    half = splat(x, 0.5)
    return raised * fma(u, _polynomial(s, PHI), half), fma(u, _polynomial(s, SLOPE), half)


@inner
def _gelu_with_slope64(x):  # type: ignore[no-untyped-def]
    """By the C library, lane by lane: float64 is for checking, not for speed."""
    below = splat(x, 0.0)
    for number in range(LANES):
        below = insert(below, number, 0.5 * math.erfc(-lane(x, number) * math.sqrt(0.5)))
    return x * below, fma(x, DENSITY * exp_of_negative(-0.5 * (x * x)), below)


@inner
def _gelu64(x):  # type: ignore[no-untyped-def]
    value, _ = _gelu_with_slope64(x)
    return value


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
    return lambda x: _gelu64(x)


@overload(gelu_with_slope, strict=False)
def _(x: Any) -> Any:
    if x.scalar == types.float32:
        return lambda x: _gelu_with_slope32(x)
    return lambda x: _gelu_with_slope64(x)
