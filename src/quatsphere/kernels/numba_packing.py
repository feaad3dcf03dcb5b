"""Quaternion weights of the Hamilton block as its loops want them, all four arrays in one pass."""

from quatsphere.kernels.numba_threads import compiled
from quatsphere.kernels.numba_vector import inner


@inner
def put_eight(q, into, at, step):  # type: ignore[no-untyped-def]
    """ŵ, then 2 w₀, -2 w₃, -2 w₁, -2 w₂ (`numba_eight`): what a product on the left is multiplied with."""
    w, x, y, z = q
    into[at] = ((w + x) + (y + z)) / 4
    into[at + step] = ((w - x) + (y - z)) / 4
    into[at + 2 * step] = ((w + x) - (y + z)) / 4
    into[at + 3 * step] = ((w - x) - (y - z)) / 4
    into[at + 4 * step] = 2 * w
    into[at + 5 * step] = -2 * z
    into[at + 6 * step] = -2 * x
    into[at + 7 * step] = -2 * y


@inner
def put_column(column, into, at):  # type: ignore[no-untyped-def]
    """Four numbers side by side."""
    into[at], into[at + 1], into[at + 2], into[at + 3] = column


@inner
def put_real(q, into, at, step):  # type: ignore[no-untyped-def]
    """The columns of L(q), one per component of the wide factor."""
    w, x, y, z = q
    put_column((w, x, y, z), into, at)
    put_column((-x, w, z, -y), into, at + step)
    put_column((-y, -z, w, x), into, at + 2 * step)
    put_column((-z, y, -x, w), into, at + 3 * step)


@compiled
def pack_weights(sizes, up, down, matrices):  # type: ignore[no-untyped-def]
    """up (H, O, Q, 4) and down (H, Q, O, 4), sizes = (H, O, Q, O in vectors, 4 Q in tiles) -> zeroed Matrices."""
    H, O, Q, wide, narrow = sizes
    for head in range(H):
        for q in range(Q):
            for o in range(O):
                first, second = ((head * O + o) * Q + q) * 4, ((head * Q + q) * O + o) * 4
                u = up[first], up[first + 1], up[first + 2], up[first + 3]
                d = down[second], down[second + 1], down[second + 2], down[second + 3]
                packed, real = (head * Q + q) * 8 * wide + o, (head * 4 * wide + o) * narrow + 4 * q
                put_eight(u, matrices.up, packed, wide)
                put_eight((d[0], -d[1], -d[2], -d[3]), matrices.down_back, packed, wide)
                put_real(d, matrices.down, real, wide * narrow)
                put_real((u[0], -u[1], -u[2], -u[3]), matrices.up_back, real, wide * narrow)
