"""Elementary functions on SIMD vectors, accurate to the last few bits of float32 and float64: exp, tanh, series, GELU.

GELU(x) = x Φ(x) and its slope Φ(x) + x φ(x) follow from T(a) = a Φ(-a) at a = |x|: GELU = max(x, 0) - T(a), and the
slope is T'(a) for negative x, 1 - T'(a) for positive x. Neither needs an exponential or a division:

- With AVX-512, where a register holds sixteen floats, T is a table of sixteen polynomials of degree five, each around
  the centre of its piece of 0 <= a <= TABLE_END; one permute instruction selects the coefficients per lane. In
  float32 x Φ(x) is accurate to 8e-8 (relative beyond 1), the slope to 6e-7.
- Elsewhere the eighth roots of the tail Φ(-a) and the density φ(a) are polynomials of degree seven in a and five in a².
  After three squarings x Φ(x) is accurate to 3e-7 (relative beyond 1), the slope to 8e-7.
"""

import math
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numpy.polynomial import Polynomial

from quatsphere.kernels.cpu.loops.jit import chosen_by_type, has_avx512, inlined, instruction
from quatsphere.kernels.cpu.loops.simd import (
    WIDE_LANES,
    absolute,
    extract,
    fma,
    insert,
    ir,
    select_less,
    shift_into_exponent,
    splat,
    vector_type,
)

EXP = tuple(1 / math.factorial(n) for n in range(14))
"""Taylor coefficients of exp, exact in float64 for the reduced argument |r| <= ln(2)/2."""
EXP32 = (0.49999993448770036, 0.16666520624945913, 0.04166838777693678, 0.00836871757544455, 0.0013814615618714908)
"""Minimax coefficients of (exp(r) - 1 - r) / r² there: error 3e-9 of exp, 2e-8 of exp(r) - 1."""
LOG2_E = 1 / math.log(2)
LN2_HIGH32, LN2_LOW32 = 0.693145751953125, 1.428606765330187e-06
LN2_HIGH64, LN2_LOW64 = 0.6931471803691238, 1.9082149292705877e-10
ROUND32, ROUND64 = 1.5 * 2.0**23, 1.5 * 2.0**52
"""Adding it leaves the nearest integer in the lowest mantissa bits."""


@inlined
def _exp_parts32(x):
    """(2ⁿ, exp(r) - 1) with x = n ln 2 + r."""
    rounded = fma(x, splat(x, LOG2_E), splat(x, ROUND32))
    n = rounded - ROUND32
    r = fma(n, splat(x, -LN2_LOW32), fma(n, splat(x, -LN2_HIGH32), x))
    p = fma(r, splat(x, EXP32[4]), splat(x, EXP32[3]))
    p = fma(p, r, splat(x, EXP32[2]))
    p = fma(p, r, splat(x, EXP32[1]))
    p = fma(p, r, splat(x, EXP32[0]))
    return shift_into_exponent(rounded, 127), fma(p * r, r, r)


@inlined
def _exp_parts64(x):
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


@chosen_by_type(_exp_parts)
def _(x: Any) -> Any:
    if x.scalar == types.float32:
        return lambda x: _exp_parts32(x)
    return lambda x: _exp_parts64(x)


@inlined
def exp_nonpositive(x):
    """exp(x) for x <= 0, clamped to exp(-87); NaN stays NaN."""
    scale, rest = _exp_parts(select_less(x, splat(x, -87.0), splat(x, -87.0), x))
    return fma(scale, rest, scale)


@inlined
def tanh(x):
    """tanh(x) = e/(e + 2) with e = exp(2x) - 1, accurate also near 0."""
    twice = x + x
    twice = select_less(twice, splat(x, -80.0), splat(x, -80.0), twice)
    twice = select_less(splat(x, 80.0), twice, splat(x, 80.0), twice)
    scale, rest = _exp_parts(twice)
    e = fma(scale, rest, scale - 1.0)
    return e / (e + 2.0)


COS = tuple((-1) ** n / math.factorial(2 * n) for n in range(12))
SINC = tuple((-1) ** n / math.factorial(2 * n + 1) for n in range(12))
SINC_SLOPE = tuple((-1) ** (n + 1) * (n + 1) / math.factorial(2 * n + 3) for n in range(12))
"""Taylor coefficients in s = θ² of cos θ, sin θ/θ and d(sin θ/θ)/ds: exact at 0, accurate in float64 up to s = 3."""


@inlined
def _series64(s, c):
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


@inlined
def _series32(s, c):
    """Σ c_n sⁿ, the eight terms that matter in float32 up to s = 3."""
    s2 = s * s
    low = fma(fma(s, splat(s, c[3]), splat(s, c[2])), s2, fma(s, splat(s, c[1]), splat(s, c[0])))
    high = fma(fma(s, splat(s, c[7]), splat(s, c[6])), s2, fma(s, splat(s, c[5]), splat(s, c[4])))
    return fma(high, s2 * s2, low)


def power_series(s: Any, c: Any) -> Any:
    """Σ c_n sⁿ for s in [0, 3]."""
    raise NotImplementedError("compiled code only")


@chosen_by_type(power_series)
def _(s: Any, c: Any) -> Any:
    if s.scalar == types.float32:
        return lambda s, c: _series32(s, c)
    return lambda s, c: _series64(s, c)


DENSITY = 1 / math.sqrt(2 * math.pi)


def _tail(a: Any) -> Any:
    """Φ(-a)."""
    return np.array([0.5 * math.erfc(number / math.sqrt(2)) for number in a])


TABLE_END = 5.6
"""Clamp of a for the table; T is below 7e-8 beyond."""
PIECE_WIDTH = 1.0001 * TABLE_END / (WIDE_LANES - 0.5)
"""Width of a piece. The first is centred at 0 and used in its upper half only; the last ends slightly beyond TABLE_END,
which would otherwise round into a seventeenth piece."""
DEGREE = 5
SLOPE_WEIGHT = 0.3
"""Weight of slope errors relative to value errors in the fit."""


def _fit_piece(number: int, degree: int) -> Any:
    """Coefficients of T around the centre of a piece: least squares of values and slopes at Chebyshev points."""
    u = PIECE_WIDTH * np.clip(0.5 * np.cos(np.linspace(0, math.pi, 64)), -0.5 if number else 0.0, 0.5)
    a, powers = number * PIECE_WIDTH + u, np.vander(u, degree + 1, increasing=True)
    slopes = np.zeros_like(powers)
    slopes[:, 1:] = powers[:, :-1] * np.arange(1, degree + 1)
    wanted = a * _tail(a), _tail(a) - DENSITY * a * np.exp(-0.5 * a**2)
    powers[:, 0] *= number > 0  # T(0) = 0 exactly
    both = np.vstack((powers, SLOPE_WEIGHT * slopes)), np.concatenate((wanted[0], SLOPE_WEIGHT * wanted[1]))
    return np.linalg.lstsq(*both, rcond=None)[0]


def _lookup(degree: int) -> Any:
    """Instruction: coefficients of each lane's piece for polynomials of a degree, one vector per power; the piece's
    number is in the lowest bits of the lane."""
    table = np.array([_fit_piece(number, degree) for number in range(WIDE_LANES)]).T

    @instruction
    def lookup_coefficients(typingctx: Any, piece: Any) -> Any:
        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kind, integers = vector_type(types.float32, WIDE_LANES), ir.VectorType(ir.IntType(32), WIDE_LANES)
            name = "llvm.x86.avx512.permvar.sf.512"
            permute = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind, integers]), name)
            number = builder.bitcast(args[0], integers)
            rows = [ir.Constant(kind, [float(c) for c in row]) for row in table.astype(np.float32)]
            return context.make_tuple(builder, sig.return_type, [builder.call(permute, [row, number]) for row in rows])

        return types.UniTuple(piece, degree + 1)(piece), code

    return lookup_coefficients


lookup_coefficients, lookup_short = _lookup(DEGREE), _lookup(3)


@inlined
def table_position(x):
    """(number of |x|'s piece, distance from the centre of the piece)."""
    end, magnitude = splat(x, TABLE_END), absolute(x)
    a = select_less(end, magnitude, end, magnitude)
    piece = fma(a, splat(x, 1 / PIECE_WIDTH), splat(x, ROUND32))
    return piece, fma(piece - ROUND32, splat(x, -PIECE_WIDTH), a)


@inlined
def gelu_from_tail(x, value, slope):
    """(x Φ(x), its slope) from T and T' at |x|."""
    zero = splat(x, 0.0)
    return select_less(zero, x, x, zero) - value, select_less(x, zero, slope, 1.0 - slope)


@inlined
def gelu_by_table(x):
    """(x Φ(x), its slope); NaN stays NaN."""
    piece, u = table_position(x)
    c = lookup_coefficients(piece)
    slope = c[5]
    value = fma(slope, u, c[4])
    slope, value = fma(slope, u, value), fma(value, u, c[3])
    slope, value = fma(slope, u, value), fma(value, u, c[2])
    slope, value = fma(slope, u, value), fma(value, u, c[1])
    slope, value = fma(slope, u, value), fma(value, u, c[0])
    return gelu_from_tail(x, value, slope)


@inlined
def short_gelu_with_slope(x):
    """The same by polynomials of degree three, for results in bfloat16: errors of 2e-5 and 3e-4 at most."""
    piece, u = table_position(x)
    c = lookup_short(piece)
    slope = c[3]
    value = fma(slope, u, c[2])
    slope, value = fma(slope, u, value), fma(value, u, c[1])
    slope, value = fma(slope, u, value), fma(value, u, c[0])
    return gelu_from_tail(x, value, slope)


ROOT_END = 6.0
"""Clamp of a for the eighth roots; a Φ(-a) and a φ(a) are below 4e-8 beyond."""


def _fit(values: Any, u: Any, degree: int, weight: Any) -> tuple[float, ...]:
    """Coefficients of P with P(u)⁸ ≈ values; repeated fits with larger weights at large errors equalise the error."""
    root = values**0.125
    scale = weights = weight * root**7
    for _ in range(60):
        polynomial = Polynomial.fit(u, root, degree, w=weights)
        error = np.abs(polynomial(u) - root) * scale
        weights = weights * (1 + 0.3 * error / error.max())
        weights = weights / weights.mean()
    return tuple(float(c) for c in polynomial.convert().coef)


_A = ROOT_END * np.sin(np.linspace(0, math.pi / 2, 800)[1:]) ** 2
TAIL_ROOT = _fit(_tail(_A), _A, 7, np.maximum(_A, 1))
DENSITY_ROOT = _fit(DENSITY * np.exp(-0.5 * _A**2), _A**2, 5, _A)


@inlined
def _eighth_power(x, p, c):
    """(p x⁵ + Σ_(n<5) c_n xⁿ)⁸."""
    p = fma(p, x, splat(x, c[4]))
    p = fma(p, x, splat(x, c[3]))
    p = fma(p, x, splat(x, c[2]))
    p = fma(p, x, splat(x, c[1]))
    p = fma(p, x, splat(x, c[0]))
    square = p * p
    fourth = square * square
    return fourth * fourth


@inlined
def gelu_by_roots(x):
    """(x Φ(x), its slope); NaN stays NaN."""
    zero, end, magnitude = splat(x, 0.0), splat(x, ROOT_END), absolute(x)
    a = select_less(end, magnitude, end, magnitude)
    top = fma(fma(splat(x, TAIL_ROOT[7]), a, splat(x, TAIL_ROOT[6])), a, splat(x, TAIL_ROOT[5]))
    tail = _eighth_power(a, top, TAIL_ROOT)
    slope = fma(zero - a, _eighth_power(a * a, splat(x, DENSITY_ROOT[5]), DENSITY_ROOT), tail)
    return fma(zero - a, tail, select_less(zero, x, x, zero)), select_less(x, zero, slope, 1.0 - slope)


@inlined
def _gelu_with_slope64(x, lanes):
    """Lane by lane with the C library: float64 serves checks, not speed."""
    cdf = splat(x, 0.0)
    for lane in range(lanes):
        cdf = insert(cdf, lane, 0.5 * math.erfc(-extract(x, lane) * math.sqrt(0.5)))
    return x * cdf, fma(x, DENSITY * exp_nonpositive(-0.5 * (x * x)), cdf)


def gelu(x: Any) -> Any:
    """x Φ(x)."""
    raise NotImplementedError("compiled code only")


def gelu_with_slope(x: Any) -> Any:
    """(x Φ(x), Φ(x) + x φ(x))."""
    raise NotImplementedError("compiled code only")


@chosen_by_type(gelu_with_slope)
def _(x: Any) -> Any:
    if x.scalar == types.float32:
        fast = gelu_by_table if has_avx512() else gelu_by_roots
        return lambda x: fast(x)
    lanes = x.lanes
    return lambda x: _gelu_with_slope64(x, lanes)


@chosen_by_type(gelu)
def _(x: Any) -> Any:
    return lambda x: gelu_with_slope(x)[0]


def gelu_of_rows(x: Any, rows: Any) -> Any:
    """(x Φ(x), its slope) as accurate as the array that x was read from, of float32, float64 or bfloat16."""
    raise NotImplementedError("compiled code only")


@chosen_by_type(gelu_of_rows)
def _(x: Any, rows: Any) -> Any:
    if rows.dtype == types.uint16 and has_avx512():
        return lambda x, rows: short_gelu_with_slope(x)
    return lambda x, rows: gelu_with_slope(x)
