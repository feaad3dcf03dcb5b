"""Quaternions of eight heads at a time: products, lift and lower, and their derivatives.

A quaternion is a tuple (w, x, y, z) of vectors, one lane per head. With y = lift(q, x) and z = lower(q, a):

    transport    lift(q, x)    lower(q, a)    torque of lift, gradient g at y    torque of lower, g lifted
    sandwich     q x q*        q* a q         g y* + g* y = 2 (⟨y, g⟩, y × g)     a* g + a g* = 2 (⟨a, g⟩, -a × g)
    one_sided    q x           q* a           g y*                               a g*
    identity     x             a              0                                  0

The gradient of q is torque ⊗ q / |q|². In the target's own frame, from z and its gradient as they are, the torque of
lower is t = z g* + z* g (one_sided: z g*), and q t q* / |q|² in the shared frame.
"""

from quatsphere.kernels.numba_vector import LANES, fma, inner, load, splat, store

SANDWICH, IDENTITY, ONE_SIDED = 0, 1, 2
TILE = 4 * LANES
"""Numbers of one quaternion channel of eight heads."""


@inner
def conjugate(q):  # type: ignore[no-untyped-def]
    """q*."""
    zero = splat(q[0], 0.0)
    return q[0], zero - q[1], zero - q[2], zero - q[3]


@inner
def dot(a, b):  # type: ignore[no-untyped-def]
    """⟨a, b⟩ = Re(a* b)."""
    return fma(a[0], b[0], fma(a[1], b[1], fma(a[2], b[2], a[3] * b[3])))


@inner
def multiply(a, b):  # type: ignore[no-untyped-def]
    """Hamilton product a ⊗ b."""
    zero = splat(a[0], 0.0)
    nx, ny, nz = zero - a[1], zero - a[2], zero - a[3]
    return (
        fma(a[0], b[0], fma(nx, b[1], fma(ny, b[2], nz * b[3]))),
        fma(a[0], b[1], fma(a[1], b[0], fma(a[2], b[3], nz * b[2]))),
        fma(a[0], b[2], fma(nx, b[3], fma(a[2], b[0], a[3] * b[1]))),
        fma(a[0], b[3], fma(a[1], b[2], fma(ny, b[1], a[3] * b[0]))),
    )


@inner
def rotation(q):  # type: ignore[no-untyped-def]
    """The matrix of q ⊗ x ⊗ q*: |q|² for the real part and nine numbers, row by row, for the imaginary part."""
    w, x, y, z = q
    ww, xx, yy, zz = w * w, x * x, y * y, z * z
    xy, xz, yz, wx, wy, wz = x * y, x * z, y * z, w * x, w * y, w * z
    return (
        (ww + xx) + (yy + zz),
        (ww + xx) - (yy + zz),
        2.0 * (xy - wz),
        2.0 * (xz + wy),
        2.0 * (xy + wz),
        (ww + yy) - (xx + zz),
        2.0 * (yz - wx),
        2.0 * (xz - wy),
        2.0 * (yz + wx),
        (ww + zz) - (xx + yy),
    )


@inner
def turn(m, x):  # type: ignore[no-untyped-def]
    """q ⊗ x ⊗ q* by the matrix of q."""
    return (
        m[0] * x[0],
        fma(m[1], x[1], fma(m[2], x[2], m[3] * x[3])),
        fma(m[4], x[1], fma(m[5], x[2], m[6] * x[3])),
        fma(m[7], x[1], fma(m[8], x[2], m[9] * x[3])),
    )


@inner
def lift(transport, q, m, x):  # type: ignore[no-untyped-def]
    """Vertex frame -> shared frame with q and its matrix m; with q* it lowers."""
    if transport == SANDWICH:
        return turn(m, x)
    if transport == ONE_SIDED:
        return multiply(q, x)
    return x


@inner
def add_torque(transport, torque, a, b):  # type: ignore[no-untyped-def]
    """torque + one channel's part: sandwich a b* + a* b = 2 (⟨a, b⟩, -a × b), one_sided a b*.

    For the gradient of lift a = g and b = y, in the shared frame; for that of lower a = z and b = g, in the target's.
    """
    if transport == IDENTITY:
        return torque
    real, zero = dot(a, b), splat(a[0], 0.0)
    cross_x = fma(a[2], b[3], zero - a[3] * b[2])
    cross_y = fma(a[3], b[1], zero - a[1] * b[3])
    cross_z = fma(a[1], b[2], zero - a[2] * b[1])
    if transport == SANDWICH:
        return torque[0] + 2.0 * real, torque[1] - 2.0 * cross_x, torque[2] - 2.0 * cross_y, torque[3] - 2.0 * cross_z
    return (
        torque[0] + real,
        torque[1] + (fma(b[0], a[1], zero - a[0] * b[1]) - cross_x),
        torque[2] + (fma(b[0], a[2], zero - a[0] * b[2]) - cross_y),
        torque[3] + (fma(b[0], a[3], zero - a[0] * b[3]) - cross_z),
    )


@inner
def load_tile(table, at):  # type: ignore[no-untyped-def]
    """The quaternion of eight heads at `at` of a lane table (..., 4, 8)."""
    return load(table, at), load(table, at + LANES), load(table, at + 2 * LANES), load(table, at + 3 * LANES)


@inner
def store_tile(table, at, q):  # type: ignore[no-untyped-def]
    """Write the quaternion of eight heads into a lane table (..., 4, 8)."""
    store(table, at, q[0])
    store(table, at + LANES, q[1])
    store(table, at + 2 * LANES, q[2])
    store(table, at + 3 * LANES, q[3])
