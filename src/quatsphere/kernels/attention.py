"""The entry points: one quaternion kernel with several backends, and the dot-product kernel it is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.kernels import factored, plain, reference
from quatsphere.kernels.cpu import attention as numba_cpu
from quatsphere.kernels.cpu import dot_product as numba_cpu_dot
from quatsphere.kernels.gpu import attention as triton_gpu
from quatsphere.kernels.neighbour_ops import edge_dot
from quatsphere.kernels.problem import ONE_WAY, Problem
from quatsphere.kernels.transforms import transformed

BACKENDS: dict[str, Callable[[Problem], Tensor]] = {
    "reference": reference.quaternion_attention,
    "factored": factored.quaternion_attention,
}
if numba_cpu.available():
    BACKENDS["numba_cpu"] = numba_cpu.quaternion_attention
if triton_gpu.available():
    BACKENDS["triton_gpu"] = triton_gpu.quaternion_attention
FUSED = {
    "cpu": (
        "numba_cpu",
        "fused loops for the CPU",
        "numba is not installed; with it the kernel is many times faster: pip install numba",
    ),
    "cuda": (
        "triton_gpu",
        "fused kernels for the GPU, equal to plain torch in a self-check",
        "triton is not installed; it compiles the fused kernel: pip install triton",
    ),
}
"""device type (ROCm's is cuda as well) -> (its own backend, why it runs, why it does not)."""
Keep = Bool[Tensor, "b t k h"]


def backends_on(device: str = "cpu") -> list[str]:
    """The backends that run on a device; a fused one runs on its own type alone, unless Triton is interpreted."""
    kind = device.partition(":")[0]
    elsewhere = {FUSED[other][0] for other in FUSED if other != kind}
    return [name for name in BACKENDS if name not in elsewhere or (name == "triton_gpu" and triton_gpu.INTERPRETED)]


def explain_backend(name: str, device: str = "cpu") -> tuple[str, str]:
    """(backend that runs, why) for a requested name and a device; `auto` is the fastest exact one.

    Fused backends have no forward mode and do not go through `torch.func`: there `auto` is plain torch.
    """
    if name == "auto":
        return ("factored", "plain torch for torch.func and forward mode") if transformed() else _fastest(device)
    if name not in backends_on(device):
        known = name in BACKENDS or name in {fused for fused, *_ in FUSED.values()}
        rule = f"backend {name!r} does not run here on {device}" if known else f"unknown backend {name!r}"
        raise ConfigError(f"{rule}; choose one of auto, {', '.join(backends_on(device))}")
    if name not in ("reference", "factored") and transformed():
        raise ConfigError(f"backend {name!r} has no forward mode and no torch.func; choose auto, factored or reference")
    return name, "asked for by name"


def _fastest(device: str) -> tuple[str, str]:
    """The device's own fused backend if it is there and, on a GPU, passes its self-check; else plain torch."""
    kind = device.partition(":")[0]
    if kind not in FUSED:
        return "factored", f"plain torch on {kind}"
    name, reason, missing = FUSED[kind]
    if name not in BACKENDS:
        return "factored", missing
    if name == "triton_gpu":
        from quatsphere.kernels.gpu import self_check  # needs torch's compiler, which takes seconds to import

        fault = self_check.fault_on(device)
        if fault is not None:
            return "factored", f"the fused kernel failed its self-check: {fault}"
    return name, reason


def choose_backend(name: str, device: str = "cpu") -> str:
    """The backend that runs for a requested name."""
    return explain_backend(name, device)[0]


def quaternion_attention(
    target_field: Float[Tensor, "b t h 4"],
    source_field: Float[Tensor, "b s h 4"],
    features: Float[Tensor, "b s h q 4"],
    neighbours: Int[Tensor, "t k"],
    beta: Float[Tensor, "h"],
    *,
    routing: str = "alignment",
    transport: str = "sandwich",
    keep: Keep | None = None,
    keep_scale: float = 1.0,
    target_directions: Float[Tensor, "t 3"] | None = None,
    source_directions: Float[Tensor, "s 3"] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "b t h q 4"]:
    """z_i = Σ_j C_ij m_ij with C and m from one relative quaternion (eq:attn-weight).

    Fields are unit quaternions, real part first. Where `keep` is False an edge is dropped after the softmax, the others
    count `keep_scale` times: 1/(1 - rate) for inverted dropout. `routing` is alignment, absolute, uniform or geometric
    (which needs unit directions); `transport` sandwich, identity, one_sided, lift (m_ij = q_j ⊗ x_j ⊗ q_j*) or lower
    (m_ij = q_i* ⊗ x_j ⊗ q_i); `backend` auto, reference, factored, numba_cpu or triton_gpu. The kernel casts at its
    border to the widest dtype of the inputs, at least float32; triton_gpu reads narrow features as they are and widens
    them on the way. Gradients of gradients are computed by plain torch, as is everything inside `torch.func` and
    forward-mode differentiation.
    """
    backend = choose_backend(backend, str(features.device))
    dtype = working_dtype(target_field, source_field, features, beta)
    with torch.autocast(features.device.type, enabled=False):
        target_field, source_field = target_field.to(dtype), source_field.to(dtype)
        one_way = transport in ONE_WAY
        if one_way:
            features = factored.LIFT[transport](source_field, features.to(dtype))
        problem = Problem(
            target_field,
            source_field,
            features if backend == "triton_gpu" else features.to(dtype),
            neighbours,
            beta.to(dtype),
            routing,
            "identity" if one_way else transport,
            keep,
            None if target_directions is None else target_directions.to(dtype),
            None if source_directions is None else source_directions.to(dtype),
            keep_scale,
        )
        aggregated = BACKENDS[backend](problem)
        return factored.LOWER[transport](target_field, aggregated) if one_way else aggregated


def routing_weights(problem: Problem) -> tuple[Float[Tensor, "b t k h"], Float[Tensor, "b t k h"]]:
    """(scores, weights) of a problem, both (B, T, k, H), before any dropout: for looking, not for training."""
    return factored.SCORES[problem.routing](problem), factored.WEIGHTS[problem.routing](problem)


def dot_product_weights(
    queries: Float[Tensor, "b t h c"], keys: Float[Tensor, "b s h c"], neighbours: Int[Tensor, "t k"]
) -> Float[Tensor, "b t k h"]:
    """softmax_j(⟨query_i, key_j⟩ / √C) over the k neighbours."""
    return torch.softmax(edge_dot(queries, keys, neighbours) / math.sqrt(queries.shape[-1]), dim=2)


def dot_product_attention(
    queries: Float[Tensor, "b t h c"],
    keys: Float[Tensor, "b s h c"],
    values: Float[Tensor, "b s h c"],
    neighbours: Int[Tensor, "t k"],
    *,
    keep: Keep | None = None,
    keep_scale: float = 1.0,
    backend: str = "auto",
) -> Float[Tensor, "b t h c"]:
    """Scaled dot-product attention over the same graph: the matched baseline's kernel, fused as the other one is."""
    dtype = working_dtype(queries, keys, values)
    with torch.autocast(values.device.type, enabled=False):
        queries, keys, values = queries.to(dtype), keys.to(dtype), values.to(dtype)
        if values.device.type == "cpu" and choose_backend(backend) == "numba_cpu":
            return numba_cpu_dot.dot_product_attention(queries, keys, values, neighbours, keep, keep_scale)
        return plain.dot_attend(queries, keys, values, neighbours, keep, keep_scale, 1 / math.sqrt(queries.shape[-1]))


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """The widest dtype among the inputs, at least float32: the kernel casts at its border."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype
