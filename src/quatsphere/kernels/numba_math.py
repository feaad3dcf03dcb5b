"""Elementary functions on eight lanes, to the last few bits of float32 and float64 (no vector maths library needed)."""

import math
from typing import Any

from numba import types
from numba.extending import overload

from quatsphere.kernels.numba_vector import fma, inner, shift_into_exponent, splat, where_less

EXP = tuple(1 / math.factorial(n) for n in range(14))
"""Taylor coefficients of exp: after reduction |r| <= ln(2)/2, where 13 of them give float64."""
EXP32 = (0.49999993448770036, 0.16666520624945913, 0.04166838777693678, 0.00836871757544455, 0.0013814615618714908)
"""(exp(r) - 1 - r) / r² there, the largest error evened out: 3e-9 of exp, 2e-8 of exp(r) - 1."""
LOG2_E = 1 / math.log(2)
LN2_HIGH32, LN2_LOW32 = 0.693145751953125, 1.428606765330187e-06
LN2_HIGH64, LN2_LOW64 = 0.6931471803691238, 1.9082149292705877e-10
ROUND32, ROUND64 = 1.5 * 2.0**23, 1.5 * 2.0**52
"""Adding it leaves the nearest whole number in the lowest mantissa bits."""


@inner
def _exp_parts32(x):  # type: ignore[no-untyped-def]
    """(2ⁿ, exp(r) - 1) with x = n ln 2 + r."""
    rounded = fma(x, splat(x, LOG2_E), splat(x, ROUND32))
    n = rounded - ROUND32
    r = fma(n, splat(x, -LN2_LOW32), fma(n, splat(x, -LN2_HIGH32), x))
    p = fma(r, splat(x, EXP32[4]), splat(x, EXP32[3]))
    p = fma(p, r, splat(x, EXP32[2]))
    p = fma(p, r, splat(x, EXP32[1]))
    p = fma(p, r, splat(x, EXP32[0]))
    return shift_into_exponent(rounded, 127), fma(p * r, r, r)


@inner
def _exp_parts64(x):  # type: ignore[no-untyped-def]
    """(2ⁿ, exp(r) - 1) with x = n ln 2 + r."""
    rounded = fma(x, splat(x, LOG2_E), splat(x, ROUND64))
    n = rounded - ROUND64
    r = fma(n, splat(x, -LN2_LOW64), fma(n, splat(x, -LN2_HIGH64), x))
    p = fma(r, splat(x, EXP[13]), splat(x, EXP[12]))
    p = fma(p, r, splat(x, EXP[11]))
    p = fma(p, r, splat(x, EXP[10]))
    p = fma(p, r, splat(x, EXP[9]))
    p = fma(p, r, splat(x, EXP[8]))
    p = fma(p, r, splat(x, EXP[7]))
    p = fma(p, r, splat(x, EXP[6]))
    p = fma(p, r, splat(x, EXP[5]))
    p = fma(p, r, splat(x, EXP[4]))
    p = fma(p, r, splat(x, EXP[3]))
    p = fma(p, r, splat(x, EXP[2]))
    return shift_into_exponent(rounded, 1023), fma(p * r, r, r)


def _exp_parts(x: Any) -> Any:
    raise NotImplementedError("compiled code only")


@overload(_exp_parts, strict=False)
def _(x: Any) -> Any:
    if x.scalar == types.float32:
        return lambda x: _exp_parts32(x)
    return lambda x: _exp_parts64(x)


@inner
def exp_of_negative(x):  # type: ignore[no-untyped-def]
    """exp(x) for x <= 0, as softmax needs it; below -87 it stays at 1e-38; NaN stays NaN."""
    scale, rest = _exp_parts(where_less(x, splat(x, -87.0), splat(x, -87.0), x))
    return fma(scale, rest, scale)


@inner
def tanh(x):  # type: ignore[no-untyped-def]
    """tanh(x) = e/(e + 2) with e = exp(2x) - 1: right to the last bits also near 0."""
    twice = x + x
    twice = where_less(twice, splat(x, -80.0), splat(x, -80.0), twice)
    twice = where_less(splat(x, 80.0), twice, splat(x, 80.0), twice)
    scale, rest = _exp_parts(twice)
    e = fma(scale, rest, scale - 1.0)
    return e / (e + 2.0)


COS = tuple((-1) ** n / math.factorial(2 * n) for n in range(12))
SINC = tuple((-1) ** n / math.factorial(2 * n + 1) for n in range(12))
SINC_SLOPE = tuple((-1) ** (n + 1) * (n + 1) / math.factorial(2 * n + 3) for n in range(12))
"""Taylor coefficients in s = θ² of cos θ, sin θ/θ and d(sin θ/θ)/ds: exact at 0, float64 rounding up to s = 3."""


@inner
def series(s, c):  # type: ignore[no-untyped-def]
    """Σ c_n sⁿ, twelve terms."""
    p = fma(s, splat(s, c[11]), splat(s, c[10]))
    p = fma(p, s, splat(s, c[9]))
    p = fma(p, s, splat(s, c[8]))
    p = fma(p, s, splat(s, c[7]))
    p = fma(p, s, splat(s, c[6]))
    p = fma(p, s, splat(s, c[5]))
    p = fma(p, s, splat(s, c[4]))
    p = fma(p, s, splat(s, c[3]))
    p = fma(p, s, splat(s, c[2]))
    p = fma(p, s, splat(s, c[1]))
    return fma(p, s, splat(s, c[0]))
