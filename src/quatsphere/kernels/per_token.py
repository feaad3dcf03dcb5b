"""What happens beside the kernel: the Hamilton feed-forward block, the perturbation of the field, `interp`.

Each has a plain form that runs everywhere and a fused one for the CPU; the backend is chosen as for the kernel.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from quatsphere.geometry import quaternion
from quatsphere.kernels import numba_cpu_field, numba_cpu_hamilton, numba_cpu_resample
from quatsphere.kernels.attention import choose_backend
from quatsphere.kernels.neighbour_ops import gather_sum


def feed_forward(
    x: Float[Tensor, "b v h c"],
    up: Float[Tensor, "h wide c"],
    down: Float[Tensor, "h c wide"],
    *,
    keep: Bool[Tensor, "b v h c"] | None = None,
    keep_scale: float = 1.0,
    backend: str = "auto",
) -> Float[Tensor, "b v h c"]:
    """keep down_h gelu(up_h x_h) per head, with real matrices (block-expanded quaternion weights), the exact GELU and,
    where given, the mask of a dropout whose survivors count `keep_scale` times."""
    if choose_backend(backend, x.device.type) == "numba_cpu":
        with torch.autocast("cpu", enabled=False):
            return numba_cpu_hamilton.feed_forward(x, up.to(x.dtype), down.to(x.dtype), keep, keep_scale)
    hidden = F.gelu(torch.einsum("bvhc,hmc->bvhm", x, up))
    out = torch.einsum("bvhm,hcm->bvhc", hidden, down)
    return out if keep is None else out * (keep.to(out.dtype) * keep_scale)


def tangent(
    hidden: Float[Tensor, "b v d"], weight: Float[Tensor, "h i 3"], bias: Float[Tensor, "h 3"]
) -> Float[Tensor, "b v h 3"]:
    """The last layer of the perturbation network: gelu(hidden_h) weight_h + bias_h per head."""
    activated = F.gelu(hidden).unflatten(-1, weight.shape[:2])
    return torch.einsum("bvhi,hio->bvho", activated, weight) + bias


def perturb(
    hidden: Float[Tensor, "b v d"],
    weight: Float[Tensor, "h i 3"],
    bias: Float[Tensor, "h 3"],
    bound: Float[Tensor, ""],
    base: Float[Tensor, "v h 4"],
    *,
    backend: str = "auto",
) -> Float[Tensor, "b v h 4"]:
    """q_eff = normalize(q_base ⊗ exp(ε tanh(tangent))) (eqs perturb-omega, perturb), in the precision of the base."""
    if choose_backend(backend, hidden.device.type) == "numba_cpu":
        with torch.autocast("cpu", enabled=False):
            return numba_cpu_field.perturb(hidden.to(base.dtype), weight, bias, bound, base)
    return perturb_by(bound * torch.tanh(tangent(hidden, weight, bias).to(base.dtype)), base)


def perturb_by(tangent: Float[Tensor, "b v h 3"], base: Float[Tensor, "v h 4"]) -> Float[Tensor, "b v h 4"]:
    """normalize(q_base ⊗ exp(ω)); a product of unit quaternions cannot vanish, so the norm is not checked."""
    return quaternion.normalize(quaternion.multiply(base, quaternion.exp(tangent)), check=False)


def resample_vertices(
    x: Float[Tensor, "b s d"],
    indices: Int[Tensor, "t terms"],
    weights: Float[Tensor, "t terms"],
    *,
    backend: str = "auto",
) -> Float[Tensor, "b t d"]:
    """`interp` of eq:residual: Σ_m w_im x_n(i,m) along the vertex axis; the weights are constants."""
    if choose_backend(backend, x.device.type) == "numba_cpu" and x.dtype in (torch.float32, torch.float64):
        return numba_cpu_resample.resample(x, indices, weights)
    shared = weights.to(x.dtype)[None, :, :, None].expand(x.shape[0], -1, -1, 1)
    return gather_sum(shared, x.unsqueeze(2), indices).squeeze(2)


def add_resampled(
    update: Float[Tensor, "b t d"],
    gate: Float[Tensor, ""],
    x: Float[Tensor, "b s d"],
    indices: Int[Tensor, "t terms"],
    weights: Float[Tensor, "t terms"],
    *,
    backend: str = "auto",
) -> Float[Tensor, "b t d"]:
    """The gated residual of eq:residual: update + gate * interp(x)."""
    mixed = update.dtype != x.dtype or x.dtype not in (torch.float32, torch.float64)
    if choose_backend(backend, x.device.type) == "numba_cpu" and not mixed:
        return numba_cpu_resample.resample_onto(update, gate.to(x.dtype), x, indices, weights)
    return update + gate * resample_vertices(x, indices, weights, backend=backend)
