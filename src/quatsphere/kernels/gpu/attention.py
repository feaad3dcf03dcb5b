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
from quatsphere.randomness import draw_mask
from quatsphere.torch_operators import backward_operator, differentiated_again, operator, plain_gradients

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
        inputs.keep,
        inputs.target_directions,
        inputs.source_directions,
        ROUTINGS.index(inputs.routing),
        TRANSPORTS.index(inputs.transport),
        0,
        inputs.keep_scale,
    )[0]


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
    site: int,
    keep_scale: float,
) -> tuple[Tensor, Tensor]:
    """`quaternion_attention` of the fields of `AttentionInputs`, and the logarithms of the softmax's sums (B, T, H).

    Routing and transport are indices into their lists. `keep` is a mask or the keys (B,) of a mask that the kernels
    hash, equal to `randomness.draw_mask(keep, site, (T, k, H), rate)` with the rate of this keep_scale.
    """
    from quatsphere.kernels.gpu.launch import Modes, launch_attention

    tensors = (target_field, source_field, features, neighbours, beta, keep, target_directions, source_directions)
    outputs = _new_outputs(tensors)
    launch_attention(tensors, Modes(routing, transport, site, keep_scale), *outputs)
    return outputs


@backward_operator(attend_gpu, ("gradient", "out", "log_sums"), device=None)
def attend_gpu_backward(gradient: Tensor, out: Tensor, log_sums: Tensor, *inputs: Any) -> list[Tensor]:
    """Gradients of (target_field, source_field, features, beta, target_directions, source_directions)."""
    from quatsphere.kernels.gpu.launch import Modes, launch_attention_backward

    into = _new_gradients(inputs)
    launch_attention_backward(inputs[:8], Modes(*inputs[8:]), (gradient, out, log_sums), into)
    return into


def _new_outputs(inputs: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    target_field, source_field, features, _, beta, *_ = inputs
    dtype, (B, T, H, _) = working_dtype(target_field, source_field, features, beta), target_field.shape
    return features.new_empty(B, T, *features.shape[2:], dtype=dtype), features.new_empty(B, T, H, dtype=dtype)


def _new_gradients(inputs: tuple[Any, ...]) -> list[Tensor]:
    """Contiguous tensors of the inputs' shapes and types, zero where a routing may not write them."""
    target_field, source_field, features, _, beta, _, *directions = inputs[:8]
    written = [tensor.new_empty(tensor.shape) for tensor in (target_field, source_field, features)]
    optional = [beta.new_empty(0) if tensor is None else tensor.new_zeros(tensor.shape) for tensor in directions]
    return [*written, beta.new_zeros(beta.shape), *optional]


@attend_gpu.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor]:
    return _new_outputs(inputs)


@attend_gpu_backward.register_fake
def _(gradient: Tensor, out: Tensor, log_sums: Tensor, *inputs: Any) -> list[Tensor]:
    return _new_gradients(inputs)


def _plain(*inputs: Any) -> Tensor:
    """The first result of `attend_gpu` in plain torch."""
    target_field, source_field, features, neighbours, beta, keep, *directions, routing, transport, site, scale = inputs
    tensors = (target_field, source_field, features, beta)
    target, source, wide, beta = (x.to(working_dtype(*tensors)) for x in tensors)
    mask = stored_mask(keep, site, (*neighbours.shape, len(beta)), scale)
    rest = (ROUTINGS[routing], TRANSPORTS[transport], mask, *directions, scale)
    return torch_backend.quaternion_attention(AttentionInputs(target, source, wide, neighbours, beta, *rest))


def stored_mask(keep: Tensor | None, site: int, shape: tuple[int, ...], keep_scale: float) -> Tensor | None:
    """The mask that a kernel hashes from keys, or the given one."""
    if keep is None or keep.dtype == torch.bool:
        return keep
    return draw_mask(keep, site, shape, 1 - 1 / keep_scale)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *inputs[:8])
    ctx.constants = inputs[8:]


def _backward(ctx: Any, gradient: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 12
    if differentiated_again():
        return plain_gradients(_plain, (*ctx.saved_tensors[2:], *ctx.constants), gradient)
    found = attend_gpu_backward(gradient, *ctx.saved_tensors, *ctx.constants)
    by_input = dict(zip((0, 1, 2, 4, 6, 7), found, strict=True))
    return tuple(by_input.get(i) if needed else None for i, needed in enumerate(ctx.needs_input_grad))


attend_gpu.register_autograd(_backward, setup_context=_save)
