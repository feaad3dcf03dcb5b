"""Operators of the fused dot-product attention on CPUs."""

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from quatsphere.kernels import torch_backend
from quatsphere.kernels.cpu.arrays import check_neighbours, flat, flat_mask
from quatsphere.torch_operators import backward_operator, operator, register_backward


def dot_product_attention(
    queries: Tensor, keys: Tensor, values: Tensor, neighbours: Tensor, keep: Tensor | None, keep_scale: float
) -> Tensor:
    """Σ_j keep_ij softmax_j(⟨query_i, key_j⟩/√C) value_j: (B, T, H, C), (B, S, H, C) twice -> (B, T, H, C).

    Channels are padded with zeros to a multiple of four, which changes no inner product.
    """
    channels = queries.shape[-1]
    padded = (F.pad(x, (0, -channels % 4)) if channels % 4 else x for x in (queries, keys, values))
    return dot_attend(*padded, neighbours, keep, keep_scale, 1 / math.sqrt(channels))[..., :channels]


@operator("dot_attend", "cpu")
def dot_attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    neighbours: Tensor,
    keep: Tensor | None,
    keep_scale: float,
    scale: float,
) -> Tensor:
    """`dot_product_attention` for a multiple of four channels; `scale` multiplies the inner products."""
    from quatsphere.kernels.cpu.loops.dot_product import run_dot_attention

    out = queries.new_empty(queries.shape)
    run_dot_attention(*_arguments(queries, keys, values, neighbours, keep, keep_scale), scale, flat(out))
    return out


@backward_operator(dot_attend, ("gradient",))
def dot_attend_backward(gradient: Tensor, *inputs: Any) -> list[Tensor]:
    """Gradients of queries, keys and values."""
    from quatsphere.kernels.cpu.loops.dot_product import run_dot_attention_backward

    into = [tensor.new_empty(tensor.shape) for tensor in inputs[:3]]
    arrays = flat(into[0]), flat(into[1]), flat(into[2])
    run_dot_attention_backward(*_arguments(*inputs[:6]), inputs[6], flat(gradient), arrays)
    return into


@dot_attend.register_fake
def _(queries: Tensor, *rest: Any) -> Tensor:
    return queries.new_empty(queries.shape)


@dot_attend_backward.register_fake
def _(gradient: Tensor, *inputs: Any) -> list[Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in inputs[:3]]


register_backward(dot_attend, dot_attend_backward, torch_backend.dot_attend, 5, (0, 1, 2), save_output=False)


def _arguments(
    queries: Tensor, keys: Tensor, values: Tensor, neighbours: Tensor, keep: Tensor | None, keep_scale: float
) -> tuple[Any, Any]:
    """(DotInputs, AttentionSizes) of the loops."""
    from quatsphere.kernels.cpu.loops.attention import ALIGNMENT, AttentionSizes
    from quatsphere.kernels.cpu.loops.dot_product import DotInputs
    from quatsphere.kernels.cpu.loops.quaternions import IDENTITY

    B, S, H, C = keys.shape
    T, k = neighbours.shape
    check_neighbours(neighbours, S)
    inputs = DotInputs(flat(queries), flat(keys), flat(values), flat(neighbours), flat_mask(keep, B * T * k * H))
    return inputs, AttentionSizes(B, T, S, k, H, C // 4, ALIGNMENT, IDENTITY, keep is not None, keep_scale)
