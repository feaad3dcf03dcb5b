"""Φ and φ of the normal distribution on eight lanes: GELU is x Φ(x), its slope Φ(x) + x φ(x)."""

import math
from typing import Any

from numba import types
from numba.extending import overload

from quatsphere.kernels.numba_math import exp_of_negative
from quatsphere.kernels.numba_vector import LANES, fma, inner, insert, lane, splat, where_less

TAIL = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
"""Abramowitz and Stegun 7.1.26: erfc(y) = t (a₁ + t (a₂ + ...)) exp(-y²), t = 1/(1 + 0.3275911 y), to 1.5e-7."""
STEP = 0.3275911 / math.sqrt(2)
DENSITY = 1 / math.sqrt(2 * math.pi)


@inner
def _normal32(x):  # type: ignore[no-untyped-def]
    zero, one = splat(x, 0.0), splat(x, 1.0)
    size = where_less(x, zero, zero - x, x)
    bell = exp_of_negative(-0.5 * (x * x))
    t = one / fma(size, splat(x, STEP), one)
    p = fma(t, splat(x, TAIL[4]), splat(x, TAIL[3]))
    p = fma(p, t, splat(x, TAIL[2]))
    p = fma(p, t, splat(x, TAIL[1]))
    p = fma(p, t, splat(x, TAIL[0]))
    tail = 0.5 * (p * t) * bell
    return where_less(x, zero, tail, one - tail), DENSITY * bell


@inner
def _normal64(x):  # type: ignore[no-untyped-def]
    """By the C library, lane by lane: float64 is for checking, not for speed."""
    below = splat(x, 0.0)
    for number in range(LANES):
        below = insert(below, number, 0.5 * math.erfc(-lane(x, number) * math.sqrt(0.5)))
    return below, DENSITY * exp_of_negative(-0.5 * (x * x))


def normal(x: Any) -> Any:
    """(Φ(x), φ(x))."""
    raise NotImplementedError("compiled code only")


@overload(normal, strict=False)
def _(x: Any) -> Any:
    if x.scalar == types.float32:
        return lambda x: _normal32(x)
    return lambda x: _normal64(x)
