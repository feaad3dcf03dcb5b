"""The fused perturbation of the field on CPUs (Numba): torch operators around the loops of `numba_field`."""

from typing import Any

import torch
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.kernels.numba_cpu import flat, sum_in_order

LANES = 8


@torch.library.custom_op("quatsphere::perturb", mutates_args=(), device_types="cpu")
def perturb(raw: Tensor, bound: Tensor, base: Tensor) -> Tensor:
    """normalize(base ⊗ exp(bound tanh(raw))): (B, V, H, 3), scalar <= 1, (V, H, 4) -> (B, V, H, 4), real first.

    Exact at raw = 0. The series behind it hold for bounds up to 1 (the paper's end at π/4).
    """
    from quatsphere.kernels import numba_field as loops

    out = raw.new_empty(*raw.shape[:-1], 4)
    arrays = loops.FieldArrays(flat(raw), flat(base), flat(out))
    loops.perturb_all(raw.shape[0], base.numel() // 4, _checked(bound), arrays)
    return out


@torch.library.custom_op("quatsphere::perturb_backward", mutates_args=(), device_types="cpu")
def perturb_backward(
    gradient: Tensor, out: Tensor, raw: Tensor, bound: Tensor, base: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of (raw, bound, base)."""
    from quatsphere.kernels import numba_field as loops

    count = base.numel() // 4
    chunks = -(-count // (LANES * loops.CHUNK))
    into = (raw.new_empty(raw.shape), base.new_empty(base.shape), raw.new_empty(chunks, LANES))
    arrays = loops.FieldArrays(flat(raw), flat(base), flat(out))
    gradients = loops.FieldGradients(flat(gradient), flat(into[0]), flat(into[1]), flat(into[2]))
    loops.differentiate_all(raw.shape[0], count, _checked(bound), arrays, gradients)
    return into[0], sum_in_order(into[2], (0, 1)), into[1]


def _checked(bound: Tensor) -> float:
    value = float(bound)
    if value > 1:
        raise ConfigError(f"the fused perturbation holds for bounds up to 1: got {value:.3g}; use the plain one")
    return value


@perturb.register_fake
def _(raw: Tensor, bound: Tensor, base: Tensor) -> Tensor:
    return raw.new_empty(*raw.shape[:-1], 4)


@perturb_backward.register_fake
def _(gradient: Tensor, out: Tensor, raw: Tensor, bound: Tensor, base: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return raw.new_empty(raw.shape), bound.new_empty(()), base.new_empty(base.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, *inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return perturb_backward(gradient, *ctx.saved_tensors)


perturb.register_autograd(_backward, setup_context=_save)
