"""Operators of the fused quaternion attention on CUDA and ROCm GPUs.

Inputs may be bfloat16, float16, float32 or float64, each independently: numbers are widened as they are read, sums and
the output have the widest type among the inputs, at least float32; a gradient has the type of its input. Triton is
imported by the first call.
"""

import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

from quatsphere.kernels import torch_backend
from quatsphere.kernels.inputs import ROUTINGS, TRANSPORTS, AttentionInputs, working_dtype
from quatsphere.kernels.operators import backward_operator, register_backward
from quatsphere.torch_operators import operator

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""True if Triton runs its kernels in Python, on CPU tensors (slow, for tests). Triton reads the variable at import."""


def built_for_gpus() -> bool:
    """Return True if torch was built for GPUs (or Triton interprets)."""
    return bool(torch.version.cuda or torch.version.hip or INTERPRETED)


def available() -> bool:
    """Return True if Triton is installed and torch was built for GPUs (or Triton interprets)."""
    return built_for_gpus() and importlib.util.find_spec("triton") is not None


def quaternion_attention(inputs: AttentionInputs) -> Tensor:
    """lower_i(Σ_j C_ij lift_j(x_j)) -> (B, T, H, Q, 4), with two numbers per edge and head as intermediates."""
    return attend_gpu(
        inputs.target_field,
        inputs.source_field,
        inputs.features,
        inputs.neighbours,
        inputs.beta,
        inputs.survivors(torch.promote_types(inputs.beta.dtype, torch.float32)),
        inputs.target_directions,
        inputs.source_directions,
        ROUTINGS.index(inputs.routing),
        TRANSPORTS.index(inputs.transport),
    )


@operator("attend_gpu")
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
    """`quaternion_attention` of the fields of `AttentionInputs`; routing and transport are indices into their lists."""
    from quatsphere.kernels.gpu.launch import launch_attention

    tensors = (target_field, source_field, features, neighbours, beta, keep, target_directions, source_directions)
    out = _new_output(tensors)
    launch_attention(tensors, routing, transport, out)
    return out


@backward_operator(attend_gpu, ("gradient", "out"), device=None)
def attend_gpu_backward(gradient: Tensor, out: Tensor, *inputs: Any) -> list[Tensor]:
    """Gradients of (target_field, source_field, features, beta, target_directions, source_directions)."""
    from quatsphere.kernels.gpu.launch import launch_attention_backward

    into = _new_gradients(inputs)
    *tensors, routing, transport = inputs
    launch_attention_backward(tuple(tensors), routing, transport, (gradient, out), into)
    return into


def _new_output(inputs: tuple[Any, ...]) -> Tensor:
    target_field, source_field, features, _, beta, *_ = inputs
    shape = (features.shape[0], target_field.shape[1], *features.shape[2:])
    return features.new_empty(shape, dtype=working_dtype(target_field, source_field, features, beta))


def _new_gradients(inputs: tuple[Any, ...]) -> list[Tensor]:
    """Contiguous tensors of the inputs' shapes and types, zero where a routing may not write them."""
    target_field, source_field, features, _, beta, _, *directions = inputs[:8]
    written = [tensor.new_empty(tensor.shape) for tensor in (target_field, source_field, features)]
    optional = [beta.new_empty(0) if tensor is None else tensor.new_zeros(tensor.shape) for tensor in directions]
    return [*written, beta.new_zeros(beta.shape), *optional]


@attend_gpu.register_fake
def _(*inputs: Any) -> Tensor:
    return _new_output(inputs)


@attend_gpu_backward.register_fake
def _(gradient: Tensor, out: Tensor, *inputs: Any) -> list[Tensor]:
    return _new_gradients(inputs)


def _plain(*inputs: Any) -> Tensor:
    """`attend_gpu` in plain torch."""
    target_field, source_field, features, neighbours, beta, keep, *directions, routing, transport = inputs
    tensors = (target_field, source_field, features, beta)
    target, source, wide, beta = (x.to(working_dtype(*tensors)) for x in tensors)
    modes = (ROUTINGS[routing], TRANSPORTS[transport])
    problem = AttentionInputs(target, source, wide, neighbours, beta, *modes, None, *directions)
    weights = torch_backend.edge_weights(problem)
    return torch_backend.aggregate(problem, weights if keep is None else weights * keep)


register_backward(attend_gpu, attend_gpu_backward, _plain, 8, (0, 1, 2, 4, 6, 7), save_output=True)
