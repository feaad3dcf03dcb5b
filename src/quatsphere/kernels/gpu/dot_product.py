"""Operators of the fused dot-product attention on CUDA and ROCm GPUs: one dtype, float32 or float64."""

import math
from typing import Any

import torch
from torch import Tensor

from quatsphere.kernels import torch_backend
from quatsphere.kernels.neighbour_ops import reversed_edges
from quatsphere.torch_operators import backward_operator, differentiated_again, operator, plain_gradients


@operator("dot_attend_gpu")
def dot_attend_gpu(
    queries: Tensor, keys: Tensor, values: Tensor, neighbours: Tensor, keep: Tensor | None, keep_scale: float
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention (B, T, H, C), and the logarithms of the softmax's sums (B, T, H)."""
    from quatsphere.kernels.gpu.kernels import dot_product

    out, log_sums = queries.new_empty(queries.shape), queries.new_empty(queries.shape[:3])
    (B, T, _, _), tensors = queries.shape, _contiguous(queries, keys, values, neighbours, keep)
    mask, kept, constants = _constants(queries, neighbours, keep, keep_scale)
    with torch.cuda.device_of(out):
        dot_product.dot_attend_kernel[(T, B)](*tensors, out, log_sums, T, keys.shape[1], *mask, **kept, **constants)
    return out, log_sums


@backward_operator(dot_attend_gpu, ("gradient", "out", "log_sums"), device=None)
def dot_attend_gpu_backward(gradient: Tensor, out: Tensor, log_sums: Tensor, *inputs: Any) -> list[Tensor]:
    """Gradients of queries, keys and values."""
    from quatsphere.kernels.gpu.kernels import dot_product

    queries, keys, values, neighbours, keep, keep_scale = inputs
    (B, T, H, _), S, k = queries.shape, keys.shape[1], neighbours.shape[1]
    tensors, g = _contiguous(queries, keys, values, neighbours, keep), gradient.contiguous()
    mask, kept, constants = _constants(queries, neighbours, keep, keep_scale)
    into = [tensor.new_empty(tensor.shape) for tensor in (queries, keys, values)]
    tables = queries.new_empty(2, B, T, k, H).unbind()
    with torch.cuda.device_of(out):
        dot_product.dot_target_gradients_kernel[(T, B)](
            g, out, log_sums, *tensors, into[0], *tables, T, S, *mask, **kept, **constants
        )
        del constants["SCALE"]
        dot_product.dot_source_gradients_kernel[(S, B)](
            g, tensors[0], *reversed_edges(tensors[3], S), *tables, into[1], into[2], T, S, **constants
        )
    return into


def _contiguous(*tensors: Tensor | None) -> list[Tensor]:
    """Contiguous tensors; the first stands for an absent one, which is never read."""
    return [(tensors[0] if tensor is None else tensor).contiguous() for tensor in tensors]  # type: ignore[union-attr]


def _constants(queries: Tensor, neighbours: Tensor, keep: Tensor | None, keep_scale: float) -> tuple[Any, Any, Any]:
    """(Arguments and constants of the mask, constants of all kernels)."""
    from quatsphere.kernels.gpu.launch import ACCUMULATE, DOT_CHUNK, mask_arguments, triton

    (_, _, H, C), k = queries.shape, neighbours.shape[1]
    heads, width = triton.next_power_of_2(H), triton.next_power_of_2(C)
    chunk = max(1, min(triton.next_power_of_2(k), DOT_CHUNK, 2**15 // (heads * width)))
    sizes = {"K": k, "H": H, "C": C, "HEADS": heads, "WIDTH": width, "CHUNK": chunk, "SCALE": 1 / math.sqrt(C)}
    warps = min(8, max(1, chunk * heads * width // 2**12))
    return *mask_arguments(keep, 0, keep_scale), {**sizes, "ACCUMULATE": ACCUMULATE[queries.dtype], "num_warps": warps}


@dot_attend_gpu.register_fake
def _(queries: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return queries.new_empty(queries.shape), queries.new_empty(queries.shape[:3])


@dot_attend_gpu_backward.register_fake
def _(gradient: Tensor, out: Tensor, log_sums: Tensor, *inputs: Any) -> list[Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in inputs[:3]]


def _plain(*inputs: Any) -> Tensor:
    queries, keys, values, neighbours, keep, keep_scale = inputs
    scale = 1 / math.sqrt(queries.shape[-1])
    return torch_backend.dot_attend(queries, keys, values, neighbours, keep, keep_scale, scale)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *inputs[:5])
    ctx.keep_scale = inputs[5]


def _backward(ctx: Any, gradient: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 6
    if differentiated_again():
        return plain_gradients(_plain, (*ctx.saved_tensors[2:], ctx.keep_scale), gradient)
    return *dot_attend_gpu_backward(gradient, *ctx.saved_tensors, ctx.keep_scale), None, None, None


dot_attend_gpu.register_autograd(_backward, setup_context=_save)
