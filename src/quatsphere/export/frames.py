"""Quaternions (B, 4, H, V) as matrices on features (B, 4, Q, H, V): few operations, each on long rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from quatsphere.geometry.quaternion import left_matrix, multiply, sandwich

Frames = Callable[[Tensor], Tensor]
"""Quaternions (B, 4, H, V) -> matrices (B, n, n, H, V); n = 3 acts on imaginary parts only."""

UNITS = torch.eye(4)
PAIRS = torch.triu_indices(4, 4)
"""Components a <= b of the ten products q_a q_b."""
LEFT = torch.stack([left_matrix(unit) for unit in UNITS], -1)
"""(4, 4, 4): q -> matrix of x -> q ⊗ x, which is linear in q."""


def _sandwich_matrix(q: Tensor) -> Tensor:
    """(3, 3) matrix of x -> q ⊗ x ⊗ q* on imaginary parts."""
    return sandwich(q, UNITS[1:])[:, 1:].T


def _polarized(a: int, b: int) -> Tensor:
    """Coefficient of q_a q_b in the matrix of the sandwich, which is quadratic in q."""
    own = _sandwich_matrix(UNITS[a])
    return own if a == b else _sandwich_matrix(UNITS[a] + UNITS[b]) - own - _sandwich_matrix(UNITS[b])


ROTATION = torch.stack([_polarized(a, b) for a, b in PAIRS.T.tolist()], -1)
"""(3, 3, 10): products q_a q_b -> rotation matrix."""


def _linear(coefficients: Tensor, x: Tensor) -> Tensor:
    """Σ_c K_mnc x_c, (B, c, H, V) -> (B, m, n, H, V)."""
    flat = coefficients.flatten(0, 1) @ x.flatten(2)
    return flat.unflatten(1, coefficients.shape[:2]).unflatten(3, x.shape[2:])


def left_frames(q: Tensor, left: Tensor = LEFT) -> Tensor:
    """Matrices of x -> q ⊗ x."""
    return _linear(left, q)


def rotations(q: Tensor, rotation: Tensor = ROTATION) -> Tensor:
    """Matrices of x -> q ⊗ x ⊗ q* for unit q."""
    return _linear(rotation, q.index_select(1, PAIRS[0]) * q.index_select(1, PAIRS[1]))


inverse_left_frames = partial(left_frames, left=LEFT.transpose(0, 1))
"""Matrices of x -> q* ⊗ x for unit q."""
inverse_rotations = partial(rotations, rotation=ROTATION.transpose(0, 1))
"""Matrices of x -> q* ⊗ x ⊗ q for unit q."""


def apply_matrices(matrices: Tensor, x: Tensor) -> Tensor:
    """Matrices (B, n, n, H, V) on n components (B, n, Q, H, V)."""
    terms = [matrices[:, :, c].unsqueeze(2) * x[:, c].unsqueeze(1) for c in range(matrices.shape[2])]
    return sum(terms[1:], terms[0])


def change_frame(frames: Frames | None, q: Tensor, x: Tensor) -> Tensor:
    """Features (B, 4, Q, H, V) in other frames; None changes nothing."""
    if frames is None:
        return x
    matrices = frames(q)
    return (
        apply_matrices(matrices, x)
        if matrices.shape[1] == 4
        else torch.cat([x[:, :1], apply_matrices(matrices, x[:, 1:])], 1)
    )


def left_products(base: Tensor) -> Tensor:
    """Matrices (4, 4, H, V) of p -> base ⊗ p for constant quaternions (V, H, 4)."""
    return multiply(base.unsqueeze(2), UNITS).permute(3, 2, 1, 0).contiguous()


LIFTS: dict[str, Frames | None] = {
    "sandwich": rotations,
    "identity": None,
    "one_sided": left_frames,
    "lift": rotations,
    "lower": None,
}
"""Vertex frame -> shared frame, with the source's quaternion."""

LOWERINGS: dict[str, Frames | None] = {
    "sandwich": inverse_rotations,
    "identity": None,
    "one_sided": inverse_left_frames,
    "lift": None,
    "lower": inverse_rotations,
}
"""Shared frame -> vertex frame, with the target's quaternion."""
