"""The fused Hamilton feed-forward block on CPUs (Numba): torch operators around the loops of `numba_hamilton`."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quatsphere.kernels.numba_cpu import flat, flat_mask, sum_in_order


@torch.library.custom_op("quatsphere::feed_forward", mutates_args=(), device_types="cpu")
def feed_forward(x: Tensor, up: Tensor, down: Tensor, keep: Tensor | None, keep_scale: float) -> Tensor:
    """keep down_h gelu(up_h x_h) per head: x and keep (..., H, C), up (H, M, C), down (H, C, M) -> (..., H, C).

    The weights are block-expanded quaternion matrices (or a product of such: a Hamilton layer before `up` is linear
    and is multiplied into it, once per step).
    """
    from quatsphere.kernels import numba_hamilton as loops

    widths, matrices = _arguments(x, up, down, keep, keep_scale)
    out = x.new_empty(x.shape)
    loops.feed_forward_all(widths, matrices, flat(x), flat_mask(keep), flat(out))
    return out


@torch.library.custom_op("quatsphere::feed_forward_backward", mutates_args=(), device_types="cpu")
def feed_forward_backward(
    gradient: Tensor, x: Tensor, up: Tensor, down: Tensor, keep: Tensor | None, keep_scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of (x, up, down)."""
    from quatsphere.kernels import numba_hamilton as loops

    widths, matrices = _arguments(x, up, down, keep, keep_scale)
    chunks = loops.chunk_count(widths)
    up_parts = x.new_empty(chunks, widths.heads, widths.narrow, widths.wide)
    down_parts = x.new_empty(chunks, widths.heads, widths.wide, widths.narrow)
    out = x.new_empty(x.shape)
    into = (flat(out), flat(up_parts), flat(down_parts))
    loops.differentiate_all(widths, matrices, (flat(x), flat_mask(keep), flat(gradient)), into)
    M, C = up.shape[1:]
    up_gradient = sum_in_order(up_parts, 0)[:, :C, :M].transpose(1, 2).contiguous()
    down_gradient = sum_in_order(down_parts, 0)[:, :M, :C].transpose(1, 2).contiguous()
    return out, up_gradient, down_gradient


@feed_forward.register_fake
def _(x: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.shape)


@feed_forward_backward.register_fake
def _(gradient: Tensor, x: Tensor, up: Tensor, down: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), up.new_empty(up.shape), down.new_empty(down.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.keep_scale = inputs[4]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return *feed_forward_backward(gradient, *ctx.saved_tensors, ctx.keep_scale), None, None


feed_forward.register_autograd(_backward, setup_context=_save)


def _arguments(x: Tensor, up: Tensor, down: Tensor, keep: Tensor | None, keep_scale: float) -> tuple[Any, Any]:
    """(Widths, Matrices) of the compiled loops, weights in whole tiles of sixteen."""
    from quatsphere.kernels.numba_hamilton import COLUMNS, Matrices, Widths

    H, M, C = up.shape
    fill = (0, -C % COLUMNS, 0, -M % COLUMNS)
    up, down = F.pad(up, fill), F.pad(down, (fill[2], fill[3], fill[0], fill[1]))
    widths = Widths(x.numel() // (H * C), H, C, C + fill[1], M + fill[3], keep is not None, keep_scale)
    return widths, Matrices(*map(flat, (up.transpose(1, 2), down.transpose(1, 2), up, down)))
