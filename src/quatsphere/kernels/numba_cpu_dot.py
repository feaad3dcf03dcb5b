"""The fused dot-product kernel on CPUs (Numba): torch operators around the loops of `numba_dot`."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quatsphere.kernels import torch_backend as plain
from quatsphere.kernels.numba_cpu import check_neighbours, flat, flat_mask
from quatsphere.kernels.transforms import differentiated_again, plain_gradients


def dot_product_attention(
    queries: Tensor, keys: Tensor, values: Tensor, neighbours: Tensor, keep: Tensor | None, keep_scale: float
) -> Tensor:
    """Σ_j keep_ij softmax_j(⟨query_i, key_j⟩/√C) value_j: (B, T, H, C), (B, S, H, C) twice -> (B, T, H, C).

    Channels are filled up with zeros to a multiple of four, which changes no inner product.
    """
    channels = queries.shape[-1]
    padded = (F.pad(x, (0, -channels % 4)) if channels % 4 else x for x in (queries, keys, values))
    return dot_attend(*padded, neighbours, keep, keep_scale, 1 / math.sqrt(channels))[..., :channels]


@torch.library.custom_op("quatsphere::dot_attend", mutates_args=(), device_types="cpu")
def dot_attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    neighbours: Tensor,
    keep: Tensor | None,
    keep_scale: float,
    scale: float,
) -> Tensor:
    """The kernel for a number of channels that four divides."""
    from quatsphere.kernels import numba_dot as loops

    out = queries.new_empty(queries.shape)
    loops.attend(*_arguments(queries, keys, values, neighbours, keep, keep_scale), scale, flat(out))
    return out


@torch.library.custom_op("quatsphere::dot_attend_backward", mutates_args=(), device_types="cpu")
def dot_attend_backward(
    gradient: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    neighbours: Tensor,
    keep: Tensor | None,
    keep_scale: float,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    from quatsphere.kernels import numba_dot as loops

    into = (queries.new_empty(queries.shape), keys.new_empty(keys.shape), values.new_empty(values.shape))
    arguments = _arguments(queries, keys, values, neighbours, keep, keep_scale)
    loops.attend_backward(*arguments, scale, flat(gradient), (flat(into[0]), flat(into[1]), flat(into[2])))
    return into


@dot_attend.register_fake
def _(queries: Tensor, *rest: Any) -> Tensor:
    return queries.new_empty(queries.shape)


@dot_attend_backward.register_fake
def _(gradient: Tensor, queries: Tensor, keys: Tensor, values: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return queries.new_empty(queries.shape), keys.new_empty(keys.shape), values.new_empty(values.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.scales = inputs[5:]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    if differentiated_again():
        return plain_gradients(plain.dot_attend, (*ctx.saved_tensors, *ctx.scales), gradient)
    return *dot_attend_backward(gradient, *ctx.saved_tensors, *ctx.scales), None, None, None, None


dot_attend.register_autograd(_backward, setup_context=_save)


def _arguments(
    queries: Tensor, keys: Tensor, values: Tensor, neighbours: Tensor, keep: Tensor | None, keep_scale: float
) -> tuple[Any, Any]:
    """(DotInputs, Sizes) of the compiled loops."""
    from quatsphere.kernels.numba_attention import ALIGNMENT, Sizes
    from quatsphere.kernels.numba_dot import DotInputs
    from quatsphere.kernels.numba_transport import IDENTITY

    B, S, H, C = keys.shape
    T, k = neighbours.shape
    check_neighbours(neighbours, S)
    inputs = DotInputs(flat(queries), flat(keys), flat(values), flat(neighbours), flat_mask(keep, B * T * k * H))
    return inputs, Sizes(B, T, S, k, H, C // 4, ALIGNMENT, IDENTITY, keep is not None, keep_scale)
