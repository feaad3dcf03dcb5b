"""Quaternions as tensors `(..., 4)`, real part first (w, x, y, z); leading axes broadcast.

A tangent `(..., 3)` is an element of su(2): `exp` of it rotates by TWICE its norm (so it is not a rotation vector).
"""

from __future__ import annotations

import contextlib
import math

import torch
from jaxtyping import Float
from torch import Tensor

from quatsphere.errors import NumericsError


def multiply(a: Float[Tensor, "*#batch 4"], b: Float[Tensor, "*#batch 4"]) -> Float[Tensor, "*out 4"]:
    """Hamilton product a ⊗ b, `(..., 4)` real first."""
    aw, ax, ay, az = a.unbind(-1)
    bw, bx, by, bz = b.unbind(-1)
    return torch.stack(
        (
            aw * bw - ax * bx - ay * by - az * bz,
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
        ),
        dim=-1,
    )


def conjugate(q: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 4"]:
    """q* = (w, -x, -y, -z), `(..., 4)` real first."""
    return torch.cat((q[..., :1], -q[..., 1:]), dim=-1)


def normalize(q: Float[Tensor, "*batch 4"], *, check: bool = True) -> Float[Tensor, "*batch 4"]:
    """q / ‖q‖, `(..., 4)` real first.

    A zero quaternion has no direction and raises NumericsError. The check synchronises with the device; `check=False`
    skips it where q cannot vanish (a product of unit quaternions).
    """
    norm = q.norm(dim=-1, keepdim=True)
    if check and bool((norm == 0).any()):
        raise NumericsError("cannot normalise a zero quaternion: it has no direction; draw it again")
    return q / norm


def relative(a: Float[Tensor, "*#batch 4"], b: Float[Tensor, "*#batch 4"]) -> Float[Tensor, "*out 4"]:
    """r_ij = q_i* ⊗ q_j (eq:rel-quat), `(..., 4)` real first; its real part is ⟨q_i, q_j⟩."""
    return multiply(conjugate(a), b)


def sandwich(q: Float[Tensor, "*#batch 4"], x: Float[Tensor, "*#batch 4"]) -> Float[Tensor, "*out 4"]:
    """q ⊗ x ⊗ q*, `(..., 4)` real first: for a unit q it keeps the real part and rotates the imaginary part."""
    return multiply(multiply(q, x), conjugate(q))


def rotate(q: Float[Tensor, "*#batch 4"], v: Float[Tensor, "*#batch 3"]) -> Float[Tensor, "*out 3"]:
    """Imaginary part of q ⊗ v ⊗ q* for vectors v `(..., 3)` and unit q `(..., 4)` real first."""
    return sandwich(q, torch.cat((torch.zeros_like(v[..., :1]), v), dim=-1))[..., 1:]


def exp(tangent: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 4"]:
    """exp(ω) = (cos‖ω‖, sin‖ω‖ ω/‖ω‖), `(..., 3)` -> `(..., 4)` real first.

    sin‖ω‖/‖ω‖ is written as a sinc: value and gradient are right at ω = 0, where every run starts (the
    perturbation network's last layer is zero). A naive quotient gives NaN there, an epsilon a dead gradient.
    """
    angle = tangent.norm(dim=-1, keepdim=True)
    return torch.cat((angle.cos(), torch.sinc(angle / math.pi) * tangent), dim=-1)


def smooth_exp(tangent: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 4"]:
    """`exp` with derivatives of every order at ω = 0, where that of a norm has none: series in s = ‖ω‖² for small s."""
    square = (tangent * tangent).sum(-1, keepdim=True)
    small = square < 1e-3
    angle = torch.where(small, torch.ones_like(square), square).sqrt()
    cosine = 1 - square / 2 * (1 - square / 12 * (1 - square / 30 * (1 - square / 56)))
    sine = 1 - square / 6 * (1 - square / 20 * (1 - square / 42 * (1 - square / 72)))
    real, quotient = torch.where(small, cosine, angle.cos()), torch.where(small, sine, angle.sin() / angle)
    return torch.cat((real, quotient * tangent), dim=-1)


def log(q: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 3"]:
    """The tangent ω with exp(ω) = q and ‖ω‖ <= π, for unit q `(..., 4)` real first; undefined at q = -1.

    Near q = 1 the quotient angle/sin(angle) is replaced by its series, so value and gradient are right at 1.
    """
    real, imaginary = q[..., :1], q[..., 1:]
    sine = imaginary.norm(dim=-1, keepdim=True)
    small = (sine < 1e-4) & (real > 0)
    safe = torch.where(small, torch.ones_like(sine), sine)
    square = (imaginary * imaginary).sum(-1, keepdim=True) / (real * real)
    series = (1 - square / 3) / torch.where(small, real, torch.ones_like(real))
    return torch.where(small, series, torch.atan2(safe, real) / safe) * imaginary


def distance(a: Float[Tensor, "*#batch 4"], b: Float[Tensor, "*#batch 4"]) -> Float[Tensor, "*out"]:
    """Rotation angle in [0, π] between unit quaternions, independent of their signs; `(..., 4)` -> `(...)`.

    4 atan2(‖a - b‖, ‖a + b‖) with the sign of b that is nearer to a: equals 2 acos|⟨a, b⟩| and is exact near 0, where
    acos loses half the digits.
    """
    sign = torch.where((a * b).sum(-1, keepdim=True) < 0, -1.0, 1.0).to(a.dtype)
    return 4 * torch.atan2((a - sign * b).norm(dim=-1), (a + sign * b).norm(dim=-1))


def left_matrix(q: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 4 4"]:
    """The real 4x4 block L(q) with L(q) x = q ⊗ x; `(..., 4)` real first -> `(..., 4, 4)`.

    Its rows are (w, -x, -y, -z), (x, w, -z, y), (y, z, w, -x) and (z, -y, x, w).
    """
    (w, x, y, z), (_, a, b, c) = q.unbind(-1), (-q).unbind(-1)
    return torch.stack((w, a, b, c, x, w, c, y, y, z, w, a, z, b, x, w), dim=-1).unflatten(-1, (4, 4))


def block_expand(weight: Float[Tensor, "*batch out inp 4"]) -> Float[Tensor, "*batch 4*out 4*inp"]:
    """Each quaternion weight as its real 4x4 block L(w): the dense matrix of y_o = Σ_i W_oi ⊗ x_i (eq:hamilton)."""
    return left_matrix(weight).transpose(-3, -2).flatten(-2).flatten(-3, -2)


def to_rotation_matrix(q: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 3 3"]:
    """R(q) with R(q) v = rotate(q, v), for q `(..., 4)` real first -> `(..., 3, 3)`.

    Written as the quadratic form of v -> Im(q ⊗ v ⊗ q*): a rotation for unit q, ‖q‖² times one for any q.
    """
    w, x, y, z = q.unbind(-1)
    rows = (
        (w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z),
    )
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def random_unit(
    *shape: int,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "*shape 4"]:
    """Unit quaternions uniform on S^3 (Haar), `(*shape, 4)` real first: directions of normal vectors."""
    q = torch.randn(*shape, 4, generator=generator, dtype=dtype, device=device)
    while bool((q.norm(dim=-1) < 1e-6).any()):
        q = torch.randn(*shape, 4, generator=generator, dtype=dtype, device=device)
    return normalize(q)


def full_precision(like: Tensor) -> contextlib.AbstractContextManager[object]:
    """Context without autocast on the tensor's device."""
    kind = like.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else contextlib.nullcontext()


def mean_rotation(q: Float[Tensor, "count 4"]) -> Float[Tensor, "4"]:
    """Sign-free mean q̄ of unit quaternions: dominant eigenvector of M = Σ q qᵀ, largest component positive.

    2^24 power iterations by 24 squarings of M, in float64, without synchronising with the device: exact to
    rounding unless the two largest eigenvalues agree to about 1e-6. Those are treated as equal: q̄ is the projection of
    (8, 4, 2, 1)/√85 onto their eigenvectors or, where that nearly vanishes, the largest column of the projector.
    No gradient flows: a near-degenerate spectrum has no usable one.
    """
    q = q.detach()  # which stops tangents of forward mode as well
    with torch.no_grad(), full_precision(q):
        exact = q.to(torch.float32 if q.device.type == "mps" else torch.float64)  # MPS has no float64
        power = exact.T @ exact / q.shape[0]
        few = not q.is_cpu and exact.dtype == torch.float64  # fewer launches; 4**-256 is in the range of float64
        for exponent in (256,) * 3 if few else (16,) * 6:
            power = torch.linalg.matrix_power(power, exponent)
            power = power / power.trace()
        mean = power @ (16 * power.new_full((4,), 0.5).cumprod(0)) / math.sqrt(85)  # (8, 4, 2, 1), made where q is
        column = power.index_select(1, power.diagonal().argmax().unsqueeze(0)).squeeze(1)
        mean = torch.where(mean.norm() > 1e-3, mean, column)
        mean = mean / mean.norm()
        largest = mean.gather(0, mean.abs().argmax().unsqueeze(0))
        return (mean * largest.sign()).to(q.dtype)
