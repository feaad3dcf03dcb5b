"""The fused perturbation of the field on CPUs (Numba): torch operators around the loops of `numba_field`."""

from typing import Any

import torch
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.kernels.numba_cpu import LANES, flat, sum_in_order


@torch.library.custom_op("quatsphere::perturb", mutates_args=(), device_types="cpu")
def perturb(hidden: Tensor, weight: Tensor, bias: Tensor, bound: Tensor, base: Tensor) -> Tensor:
    """normalize(base ⊗ exp(bound tanh(gelu(hidden) weight + bias))), real first: (B, V, H * I), (H, I, 3), (H, 3),
    scalar <= 1, (V, H, 4) -> (B, V, H, 4).

    Exact at a zero tangent. The series behind it hold for bounds up to 1 (the paper's end at π/4).
    """
    from quatsphere.kernels import numba_field as loops

    out = hidden.new_empty(*hidden.shape[:2], *base.shape[1:])
    sizes, arrays = _arguments(hidden, weight, bias, base, out)
    loops.perturb_all(sizes, _checked(bound), arrays)
    return out


@torch.library.custom_op("quatsphere::perturb_backward", mutates_args=(), device_types="cpu")
def perturb_backward(
    gradient: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor, bound: Tensor, base: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of (hidden, weight, bias, bound, base)."""
    from quatsphere.kernels import numba_field_backward as loops

    sizes, arrays = _arguments(hidden, weight, bias, base, gradient)
    tiles = loops.tile_count(sizes)
    weights = hidden.new_zeros(tiles, sizes.heads, 3, sizes.padded)
    biases = hidden.new_zeros(tiles, sizes.heads, 3, LANES)
    into = (hidden.new_empty(hidden.shape), base.new_empty(base.shape), weights, biases, hidden.new_empty(tiles, LANES))
    loops.differentiate_all(sizes, _checked(bound), arrays, loops.FieldGradients(*map(flat, into)))
    return (
        into[0],
        sum_in_order(weights, 0)[..., : sizes.width].transpose(1, 2).contiguous(),
        sum_in_order(biases, (0, 3)),
        sum_in_order(into[4], (0, 1)),
        into[1],
    )


def _arguments(hidden: Tensor, weight: Tensor, bias: Tensor, base: Tensor, out: Tensor) -> tuple[Any, Any]:
    """(FieldSizes, FieldArrays) of the compiled loops."""
    from quatsphere.kernels.numba_field import FieldArrays, FieldSizes

    heads, width, _ = weight.shape
    sizes = FieldSizes(hidden.shape[0], base.shape[0], heads, width, width + -width % LANES)
    return sizes, FieldArrays(*map(flat, (hidden, weight, bias, base, out)))


def _checked(bound: Tensor) -> float:
    value = float(bound)
    if value > 1:
        raise ConfigError(f"the fused perturbation holds for bounds up to 1: got {value:.3g}; use the plain one")
    return value


@perturb.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor, bound: Tensor, base: Tensor) -> Tensor:
    return hidden.new_empty(*hidden.shape[:2], *base.shape[1:])


@perturb_backward.register_fake
def _(gradient: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.new_empty(tensor.shape) for tensor in inputs)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
    return perturb_backward(gradient, *ctx.saved_tensors)


perturb.register_autograd(_backward, setup_context=_save)
