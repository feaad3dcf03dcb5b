"""The fused quaternion kernel on CUDA and ROCm GPUs (Triton): torch operators around `triton_launch`.

Inputs may be bfloat16, float16, float32 or float64, each on its own: every number is widened as it is read, sums are in
the widest type among them and at least float32, and so is the output; a gradient has the type of its input. Triton
itself is imported by the first call: importing this file costs nothing and works without it.
"""

import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

from quatsphere.kernels import torch_backend as factored
from quatsphere.kernels.inputs import ROUTINGS, TRANSPORTS, Problem
from quatsphere.kernels.transforms import differentiated_again, plain_gradients

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton runs its kernels in Python, on CPU tensors: slow, for tests. Triton reads it once, at its import."""


def available() -> bool:
    """Whether Triton is installed and torch knows GPUs (or Triton needs none)."""
    built = torch.version.cuda or torch.version.hip or INTERPRETED
    return bool(built) and importlib.util.find_spec("triton") is not None


def quaternion_attention(problem: Problem) -> Tensor:
    """lower_i(Σ_j C_ij lift_j(x_j)) -> (B, T, H, Q, 4), nothing per edge but two numbers per head; see `attend_gpu`."""
    return attend_gpu(
        problem.target_field,
        problem.source_field,
        problem.features,
        problem.neighbours,
        problem.beta,
        problem.survivors(torch.promote_types(problem.beta.dtype, torch.float32)),
        problem.target_directions,
        problem.source_directions,
        ROUTINGS.index(problem.routing),
        TRANSPORTS.index(problem.transport),
    )


def widest(*tensors: Tensor) -> torch.dtype:
    """The widest dtype among the tensors, at least float32."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


@torch.library.custom_op("quatsphere::attend_gpu", mutates_args=())
def attend_gpu(
    target_field: Tensor,
    source_field: Tensor,
    features: Tensor,
    neighbours: Tensor,
    beta: Tensor,
    keep: Tensor | None,
    target_directions: Tensor | None,
    source_directions: Tensor | None,
    routing: int,
    transport: int,
) -> Tensor:
    """The kernel of a `Problem`, routing and transport by their place in the lists of `problem`."""
    from quatsphere.kernels import triton_launch

    out = _new_output(target_field, source_field, features, beta)
    tensors = (target_field, source_field, features, neighbours, beta, keep, target_directions, source_directions)
    triton_launch.attend(tensors, routing, transport, out)
    return out


@torch.library.custom_op("quatsphere::attend_gpu_backward", mutates_args=())
def attend_gpu_backward(
    gradient: Tensor,
    out: Tensor,
    target_field: Tensor,
    source_field: Tensor,
    features: Tensor,
    neighbours: Tensor,
    beta: Tensor,
    keep: Tensor | None,
    target_directions: Tensor | None,
    source_directions: Tensor | None,
    routing: int,
    transport: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of (target_field, source_field, features, beta, target_directions, source_directions)."""
    from quatsphere.kernels import triton_launch

    into = _new_gradients(target_field, source_field, features, beta, target_directions, source_directions)
    tensors = (target_field, source_field, features, neighbours, beta, keep, target_directions, source_directions)
    triton_launch.attend_backward(tensors, routing, transport, (gradient, out), into)
    return into


def _new_output(target_field: Tensor, source_field: Tensor, features: Tensor, beta: Tensor) -> Tensor:
    shape = (features.shape[0], target_field.shape[1], *features.shape[2:])
    return features.new_empty(shape, dtype=widest(target_field, source_field, features, beta))


def _new_gradients(
    target_field: Tensor,
    source_field: Tensor,
    features: Tensor,
    beta: Tensor,
    target_directions: Tensor | None,
    source_directions: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Contiguous, of the inputs' shapes and types; zero where a routing may leave them alone."""
    return (
        target_field.new_empty(target_field.shape),
        source_field.new_empty(source_field.shape),
        features.new_empty(features.shape),
        beta.new_zeros(beta.shape),
        beta.new_empty(0) if target_directions is None else target_directions.new_zeros(target_directions.shape),
        beta.new_empty(0) if source_directions is None else source_directions.new_zeros(source_directions.shape),
    )


@attend_gpu.register_fake
def _(
    target_field: Tensor, source_field: Tensor, features: Tensor, neighbours: Tensor, beta: Tensor, *rest: Any
) -> Tensor:
    return _new_output(target_field, source_field, features, beta)


@attend_gpu_backward.register_fake
def _(
    gradient: Tensor,
    out: Tensor,
    target_field: Tensor,
    source_field: Tensor,
    features: Tensor,
    neighbours: Tensor,
    beta: Tensor,
    keep: Tensor | None,
    target_directions: Tensor | None,
    source_directions: Tensor | None,
    *rules: int,
) -> tuple[Tensor, ...]:
    return _new_gradients(target_field, source_field, features, beta, target_directions, source_directions)


def _plain(
    target_field: Tensor,
    source_field: Tensor,
    features: Tensor,
    neighbours: Tensor,
    beta: Tensor,
    keep: Tensor | None,
    target_directions: Tensor | None,
    source_directions: Tensor | None,
    routing: int,
    transport: int,
) -> Tensor:
    """`attend_gpu` in plain torch."""
    tensors = (target_field, source_field, features, beta)
    target, source, wide, beta = (x.to(widest(*tensors)) for x in tensors)
    rules, directions = (ROUTINGS[routing], TRANSPORTS[transport]), (target_directions, source_directions)
    problem = Problem(target, source, wide, neighbours, beta, *rules, None, *directions)
    weights = factored.edge_weights(problem)
    return factored.aggregate(problem, weights if keep is None else weights * keep)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, *inputs[:8])
    ctx.rules = inputs[8:]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    if differentiated_again():
        return plain_gradients(_plain, (*ctx.saved_tensors[1:], *ctx.rules), gradient)
    found = attend_gpu_backward(gradient, *ctx.saved_tensors, *ctx.rules)
    order = (found[0], found[1], found[2], None, found[3], None, found[4], found[5])
    needed = zip(order, ctx.needs_input_grad, strict=False)
    return *(value if need else None for value, need in needed), None, None


attend_gpu.register_autograd(_backward, setup_context=_save)
