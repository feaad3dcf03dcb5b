"""What happens beside the kernel: the Hamilton feed-forward block, the perturbation of the field, `interp`.

Each has a plain form that runs everywhere and a fused one for the CPU; the backend is chosen as for the kernel. Fused
ones compute in at least float32 and give back the dtype they are given.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.kernels import plain
from quatsphere.kernels.attention import choose_backend, working_dtype
from quatsphere.kernels.cpu import feed_forward as numba_cpu_hamilton
from quatsphere.kernels.cpu import field as numba_cpu_field
from quatsphere.kernels.cpu import resample as numba_cpu_resample


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
        dtype = working_dtype(x)
        with torch.autocast("cpu", enabled=False):
            out = numba_cpu_hamilton.feed_forward(x.to(dtype), up.to(dtype), down.to(dtype), keep, keep_scale)
            return out.to(x.dtype)
    return plain.feed_forward(x, up, down, keep, keep_scale)


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
    return plain.tangent(hidden, *network)


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
    rows = (None, None) if mixing is None else mixing
    even = network.weight.shape[1] % 2 == 0
    if even and choose_backend(backend, hidden.device.type) == "numba_cpu":
        dtype = working_dtype(source)
        given = (None if x is None else x.to(dtype) for x in (hidden, *network, bounds, source, target))
        with torch.autocast("cpu", enabled=False):
            here, there = (field.to(source.dtype) for field in numba_cpu_field.perturb(*given, *rows))
    else:
        here, there = plain.perturb(hidden, *network, bounds, source, target, *rows)
    return here, here if target is None else there


def perturb_by(tangent: Float[Tensor, "b v h 3"], base: Float[Tensor, "v h 4"]) -> Float[Tensor, "b v h 4"]:
    """normalize(q_base ⊗ exp(ω)); a product of unit quaternions cannot vanish, so the norm is not checked."""
    return plain.perturb_by(tangent, base)


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
    return plain.resample(x, indices, weights)


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
