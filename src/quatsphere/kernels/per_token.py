"""What happens at each token on its own: the Hamilton feed-forward block and the perturbation of the field.

Each has a plain form that runs everywhere and a fused one for the CPU; the backend is chosen as for the kernel.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from quatsphere.geometry import quaternion
from quatsphere.kernels import numba_cpu_field, numba_cpu_hamilton
from quatsphere.kernels.attention import choose_backend


def feed_forward(
    x: Float[Tensor, "b v h c"],
    up: Float[Tensor, "h wide c"],
    down: Float[Tensor, "h c wide"],
    *,
    backend: str = "auto",
) -> Float[Tensor, "b v h c"]:
    """down_h gelu(up_h x_h) per head, with real matrices (block-expanded quaternion weights) and the exact GELU."""
    if choose_backend(backend, x.device.type) == "numba_cpu":
        with torch.autocast("cpu", enabled=False):
            return numba_cpu_hamilton.feed_forward(x, up.to(x.dtype), down.to(x.dtype))
    hidden = F.gelu(torch.einsum("bvhc,hmc->bvhm", x, up))
    return torch.einsum("bvhm,hcm->bvhc", hidden, down)


def perturb(
    raw: Float[Tensor, "b v h 3"], bound: Float[Tensor, ""], base: Float[Tensor, "v h 4"], *, backend: str = "auto"
) -> Float[Tensor, "b v h 4"]:
    """q_eff = normalize(q_base ⊗ exp(ε tanh(raw))) (eqs perturb-omega, perturb)."""
    if choose_backend(backend, raw.device.type) == "numba_cpu":
        return numba_cpu_field.perturb(raw, bound, base)
    return perturb_by(bound * torch.tanh(raw), base)


def perturb_by(tangent: Float[Tensor, "b v h 3"], base: Float[Tensor, "v h 4"]) -> Float[Tensor, "b v h 4"]:
    """normalize(q_base ⊗ exp(ω)); a product of unit quaternions cannot vanish, so the norm is not checked."""
    return quaternion.normalize(quaternion.multiply(base, quaternion.exp(tangent)), check=False)
