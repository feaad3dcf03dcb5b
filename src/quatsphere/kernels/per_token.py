"""What happens beside the kernel: the Hamilton feed-forward block, the perturbation of the field, `interp`.

Each has a plain form that runs everywhere and a fused one for the CPU; the backend is chosen as for the kernel.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.geometry import quaternion
from quatsphere.kernels import numba_cpu_field, numba_cpu_hamilton, numba_cpu_resample
from quatsphere.kernels.attention import choose_backend
from quatsphere.kernels.neighbour_ops import gather_sum


def feed_forward(
    x: Float[Tensor, "b v h c"],
    up: Float[Tensor, "h wide q 4"],
    down: Float[Tensor, "h q wide 4"],
    *,
    keep: Bool[Tensor, "b v h c"] | None = None,
    keep_scale: float = 1.0,
    backend: str = "auto",
) -> Float[Tensor, "b v h c"]:
    """keep down_h gelu(up_h x_h) per head with matrices of quaternions (eq:hamilton), c = 4 q, the exact GELU on every
    component and, where given, the mask of a dropout whose survivors count `keep_scale` times."""
    if choose_backend(backend, x.device.type) == "numba_cpu":
        with torch.autocast("cpu", enabled=False):
            return numba_cpu_hamilton.feed_forward(x, up.to(x.dtype), down.to(x.dtype), keep, keep_scale)
    hidden = F.gelu(torch.einsum("bvhc,hmc->bvhm", x, quaternion.block_expand(up)))
    out = torch.einsum("bvhm,hcm->bvhc", hidden, quaternion.block_expand(down))
    return out if keep is None else out * (keep.to(out.dtype) * keep_scale)


class Network(NamedTuple):
    """The perturbation network after its first product: inner bias (H * I), weight (H, I, 3), bias (H, 3)."""

    inner: Tensor
    weight: Tensor
    bias: Tensor


class Mixing(NamedTuple):
    """How vertices without tokens mix rows of the shell before: which rows, and shares that sum to one, (T, terms)."""

    indices: Tensor
    shares: Tensor


def tangent(hidden: Float[Tensor, "b v d"], network: Network) -> Float[Tensor, "b v h 3"]:
    """The rest of the perturbation network: gelu(inner + hidden_h) weight_h + bias_h per head."""
    activated = F.gelu(hidden + network.inner.to(hidden.dtype)).unflatten(-1, network.weight.shape[:2])
    return torch.einsum("bvhi,hio->bvho", activated, network.weight) + network.bias


def perturb(
    hidden: Float[Tensor, "b s d"],
    network: Network,
    bounds: Float[Tensor, " shells"],
    source: Float[Tensor, "s h 4"],
    target: Float[Tensor, "t h 4"] | None = None,
    mixing: Mixing | None = None,
    *,
    backend: str = "auto",
) -> tuple[Float[Tensor, "b s h 4"], Float[Tensor, "b t h 4"]]:
    """q_eff = normalize(q_base ⊗ exp(ε tanh(tangent))) (eqs perturb-omega, perturb) of the sources and of the targets,
    whose rows of hidden are mixed from the sources' (`interp` commutes with the network's first product) or, between
    shells of equal size, the sources' own; without targets the sources' field twice. In the precision of the base."""
    if target is not None and mixing is None:
        if len(target) != hidden.shape[1]:
            raise ConfigError(f"{hidden.shape[1]} rows for {len(target)} targets: say how they are mixed")
        mixing = Mixing(torch.arange(len(target), device=hidden.device)[:, None], hidden.new_ones(len(target), 1))
    if choose_backend(backend, hidden.device.type) == "numba_cpu":
        with torch.autocast("cpu", enabled=False):
            rows = (None, None) if mixing is None else mixing
            found = numba_cpu_field.perturb(hidden.to(source.dtype), *network, bounds, source, target, *rows)
        return found if target is not None else (found[0], found[0])
    field = perturb_by(bounds[0] * torch.tanh(tangent(hidden, network).to(source.dtype)), source)
    if target is None or mixing is None:
        return field, field
    mixed = resample_vertices(hidden, *mixing, backend=backend)
    return field, perturb_by(bounds[1] * torch.tanh(tangent(mixed, network).to(source.dtype)), target)


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
