"""Operators of the fused Hamilton feed-forward block on CPUs."""

from typing import Any

import numpy as np
from torch import Tensor

from quatsphere.kernels import torch_backend
from quatsphere.kernels.cpu.arrays import argument_cache, array, flat, flat_mask, sum_in_order
from quatsphere.kernels.cpu.resample import residual_input
from quatsphere.torch_operators import backward_operator, operator, register_backward


@operator("feed_forward", "cpu")
def feed_forward(x: Tensor, up: Tensor, down: Tensor, keep: Tensor | None, keep_scale: float) -> Tensor:
    """keep down_h gelu(up_h x_h) per head: x and keep (..., H, 4 Q), quaternion weights up (H, O, Q, 4) and down
    (H, Q, O, 4) -> (..., H, 4 Q). A linear Hamilton layer before the block is multiplied into `up` by the caller."""
    from quatsphere.kernels.cpu.loops.feed_forward import run_feed_forward

    sizes, weights = feed_forward_arguments(x[..., 0, 0].numel(), up, down, keep is not None, keep_scale)
    out = x.new_empty(x.shape)
    no_residual = residual_input(x.new_empty(0, 0, 0), 0, None, None)
    run_feed_forward(sizes, weights, flat(x), flat_mask(keep, x.numel()), no_residual, flat(out))
    return out


@backward_operator(feed_forward, ("gradient",))
def feed_forward_backward(
    gradient: Tensor, x: Tensor, up: Tensor, down: Tensor, keep: Tensor | None, keep_scale: float
) -> list[Tensor]:
    """Gradients of (x, up, down)."""
    from quatsphere.kernels.cpu.loops.feed_forward import run_feed_forward_backward, token_chunks
    from quatsphere.kernels.cpu.loops.hamilton_products import unpack_products

    sizes, weights = feed_forward_arguments(x[..., 0, 0].numel(), up, down, keep is not None, keep_scale)
    O, Q = up.shape[1:3]
    out = x.new_empty(x.shape)
    parts = [x.new_empty(token_chunks(sizes), sizes.heads, Q, 8, sizes.wide // 4) for _ in range(2)]
    inputs, into = (flat(x), flat_mask(keep, x.numel()), flat(gradient)), (flat(out), flat(parts[0]), flat(parts[1]))
    run_feed_forward_backward(sizes, weights, inputs, into)
    up_gradient, down_gradient = (unpack_products(sum_in_order(part, 0), O) for part in parts)
    return [out, up_gradient.transpose(1, 2).contiguous(), down_gradient.contiguous()]


@feed_forward.register_fake
def _(x: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.shape)


@feed_forward_backward.register_fake
def _(gradient: Tensor, *inputs: Any) -> list[Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in inputs[:3]]


register_backward(feed_forward, feed_forward_backward, torch_backend.feed_forward, 4, (0, 1, 2), save_output=False)


def feed_forward_arguments(tokens: int, up: Tensor, down: Tensor, dropped: bool, keep_scale: float) -> tuple[Any, Any]:
    """(FeedForwardSizes, PackedWeights) of the loops."""
    from quatsphere.kernels.cpu.loops.feed_forward import FeedForwardSizes, PackedWeights, even_chunk
    from quatsphere.kernels.cpu.loops.hamilton_products import pack_weights
    from quatsphere.kernels.cpu.loops.simd import WIDE_LANES

    H, O, Q, _ = up.shape
    C, wide, kind = 4 * Q, O + -O % WIDE_LANES, array(up).dtype
    narrow = C + -C % WIDE_LANES

    def pack() -> Any:
        counts = [H * Q * 8 * wide] * 2 + [H * 4 * wide * narrow] * 2
        packed = PackedWeights(*(np.zeros(count, kind) for count in counts))
        pack_weights((H, O, Q, wide, narrow), flat(up), flat(down), packed)
        return packed

    rounded = float(kind.type(keep_scale))  # full and partial blocks must round alike
    sizes = FeedForwardSizes(tokens, even_chunk(tokens), H, C, narrow, 4 * wide, dropped, rounded)
    return sizes, argument_cache.get(("feed_forward", up.data_ptr(), down.data_ptr()), (up, down), pack)
