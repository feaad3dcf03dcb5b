"""Operators of the fused Hamilton feed-forward block on CPUs."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from quatsphere.geometry.quaternion import conjugate, left_matrix
from quatsphere.kernels import torch_backend
from quatsphere.kernels.cpu.arrays import argument_cache, array, flat, flat_mask, sum_in_order
from quatsphere.kernels.cpu.resample import residual_input
from quatsphere.torch_operators import backward_operator, operator, record_function, register_backward


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
    from quatsphere.kernels.cpu.loops.hamilton_products import unpack_products

    sizes, weights = feed_forward_arguments(x[..., 0, 0].numel(), up, down, keep is not None, keep_scale)
    O, Q = up.shape[1:3]
    out, *sums = _gradients(sizes, weights, (Q, 8, sizes.wide // 4), (gradient, x, keep))
    up_gradient, down_gradient = (unpack_products(part, O) for part in sums)
    return [out, up_gradient.transpose(1, 2).contiguous(), down_gradient.contiguous()]


def paired_backward(
    gradient: Tensor, x: Tensor, up: Tensor, down: Tensor, keep: Tensor | None, keep_scale: float
) -> list[Tensor]:
    """The same with products in bfloat16, for x in float32 or bfloat16 and everything else in float32."""
    sizes, weights = feed_forward_arguments(x[..., 0, 0].numel(), up, down, keep is not None, keep_scale, True)
    O, Q = up.shape[1:3]
    with record_function("quatsphere::feed_forward_backward"):
        out, *sums = _gradients(sizes, weights, (sizes.narrow, sizes.wide), (gradient, x, keep))
    up_gradient, down_gradient = (_quaternions_of_real(part[:, : 4 * Q], O) for part in sums)
    return [out, conjugate(up_gradient).transpose(1, 2).contiguous(), down_gradient.contiguous()]


def pairs_available() -> bool:
    """Return True if the processor has the products in bfloat16 that `PairedWeights` need."""
    from quatsphere.kernels.cpu.loops import bfloat16

    return bfloat16.multiplies_pairs()


def _gradients(sizes: Any, weights: Any, shape: tuple[int, ...], inputs: Any) -> list[Tensor]:
    """Gradient of x and the sums (H, *shape) of the weights' gradients from inputs = (gradient, x, keep)."""
    from quatsphere.kernels.cpu.loops.feed_forward import run_feed_forward_backward, token_chunks

    gradient, x, keep = inputs
    out = x.new_empty(x.shape)
    parts = [gradient.new_empty(token_chunks(sizes), sizes.heads, *shape) for _ in range(2)]
    given, into = (flat(x), flat_mask(keep, x.numel()), flat(gradient)), (flat(out), flat(parts[0]), flat(parts[1]))
    run_feed_forward_backward(sizes, weights, given, into)
    return [out, *(sum_in_order(part, 0) for part in parts)]


def _quaternions_of_real(matrix: Tensor, count: int) -> Tensor:
    """Gradients (H, Q, O, 4) of q from those of L(q), (H, 4 Q, M) with wide elements component first."""
    by_component = matrix.unflatten(1, (-1, 4)).unflatten(3, (4, -1))[..., :count]
    basis = left_matrix(torch.eye(4, dtype=matrix.dtype))  # (component of q, row, column)
    return torch.einsum("hqrko,nrk->hqon", by_component, basis)


@feed_forward.register_fake
def _(x: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.shape)


@feed_forward_backward.register_fake
def _(gradient: Tensor, *inputs: Any) -> list[Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in inputs[:3]]


register_backward(feed_forward, feed_forward_backward, torch_backend.feed_forward, 4, (0, 1, 2), save_output=False)


def feed_forward_arguments(
    tokens: int, up: Tensor, down: Tensor, dropped: bool, keep_scale: float, paired: bool = False
) -> tuple[Any, Any]:
    """(FeedForwardSizes, PackedWeights or PairedWeights) of the loops."""
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
        return _paired_weights(packed, (H, 4 * wide, narrow)) if paired else packed

    rounded = float(kind.type(keep_scale))  # full and partial blocks must round alike
    sizes = FeedForwardSizes(tokens, even_chunk(tokens), H, C, narrow, 4 * wide, dropped, rounded)
    return sizes, argument_cache.get(("feed_forward", paired, up.data_ptr(), down.data_ptr()), (up, down), pack)


def _paired_weights(packed: Any, shape: tuple[int, int, int]) -> Any:
    """The real matrices (H, M, C) rounded to bfloat16, as pairs of neighbouring channels or wide elements."""
    from quatsphere.kernels.cpu.loops.paired_feed_forward import PairedWeights

    down, up_conj = (torch.from_numpy(real).view(shape).bfloat16() for real in (packed.down, packed.up_conj))
    by_channels = (x.unflatten(2, (-1, 2)).transpose(1, 2) for x in (up_conj, down))
    by_wide = (x.unflatten(1, (-1, 2)).transpose(2, 3) for x in (down, up_conj))
    return PairedWeights(*(flat(pairs.contiguous().view(torch.float32)) for pairs in (*by_channels, *by_wide)))
