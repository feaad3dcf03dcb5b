"""The fused Hamilton feed-forward block on CPUs (Numba): torch operators around the loops of `numba_hamilton`."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from quatsphere.kernels import torch_backend as plain
from quatsphere.kernels.numba_cpu import flat, flat_mask, sum_in_order
from quatsphere.kernels.numba_cpu_resample import onto_of
from quatsphere.kernels.transforms import differentiated_again, plain_gradients


@torch.library.custom_op("quatsphere::feed_forward", mutates_args=(), device_types="cpu")
def feed_forward(x: Tensor, up: Tensor, down: Tensor, keep: Tensor | None, keep_scale: float) -> Tensor:
    """keep down_h gelu(up_h x_h) per head: x and keep (..., H, 4 Q), quaternion weights up (H, O, Q, 4) and down
    (H, Q, O, 4) -> (..., H, 4 Q). A Hamilton layer before `up` is linear and is multiplied into it, once per step."""
    from quatsphere.kernels import numba_hamilton as loops

    widths, matrices = arguments(x[..., 0, 0].numel(), up, down, keep is not None, keep_scale)
    out = x.new_empty(x.shape)
    onto = onto_of(x.new_empty(0, 0, 0), 0, None, None)
    loops.feed_forward_all(widths, matrices, flat(x), flat_mask(keep, x.numel()), onto, flat(out))
    return out


@torch.library.custom_op("quatsphere::feed_forward_backward", mutates_args=(), device_types="cpu")
def feed_forward_backward(
    gradient: Tensor, x: Tensor, up: Tensor, down: Tensor, keep: Tensor | None, keep_scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of (x, up, down)."""
    from quatsphere.kernels import numba_hamilton as loops
    from quatsphere.kernels.numba_eight import unpack

    widths, matrices = arguments(x[..., 0, 0].numel(), up, down, keep is not None, keep_scale)
    O, Q = up.shape[1:3]
    out = x.new_empty(x.shape)
    parts = [x.new_empty(loops.chunk_count(widths), widths.heads, Q, 8, widths.wide // 4) for _ in range(2)]
    into = (flat(out), flat(parts[0]), flat(parts[1]))
    loops.differentiate_all(widths, matrices, (flat(x), flat_mask(keep, x.numel()), flat(gradient)), into)
    up_gradient, down_gradient = (unpack(sum_in_order(part, 0), O) for part in parts)
    return out, up_gradient.transpose(1, 2).contiguous(), down_gradient.contiguous()


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
    if differentiated_again():
        return plain_gradients(plain.feed_forward, (*ctx.saved_tensors, ctx.keep_scale), gradient)
    return *feed_forward_backward(gradient, *ctx.saved_tensors, ctx.keep_scale), None, None


feed_forward.register_autograd(_backward, setup_context=_save)


_packed: OrderedDict[tuple[int, int], tuple[Tensor, Tensor, Any]] = OrderedDict()
"""Packed weights of the last calls, by address: (up, down, Matrices)."""
MANY = 32
"""As many blocks as may take turns."""


def _same(kept: Tensor, weight: Tensor) -> bool:
    return kept.dtype == weight.dtype and torch.equal(kept, weight)


def _matrices(up: Tensor, down: Tensor, wide: int, narrow: int) -> Any:
    """Matrices of the compiled loops, made again when a weight has changed: compared by value, since fused optimisers
    and `.data` change one without changing its version."""
    from quatsphere.kernels.numba_hamilton import Matrices
    from quatsphere.kernels.numba_packing import pack_weights

    address = up.data_ptr(), down.data_ptr()
    old = _packed.get(address)
    if old is not None and _same(old[0], up) and _same(old[1], down):
        _packed.move_to_end(address)
        return old[2]
    H, O, Q, _ = up.shape
    counts = [H * Q * 8 * wide] * 2 + [H * 4 * wide * narrow] * 2
    matrices = Matrices(*(flat(up.new_zeros(count)) for count in counts))
    pack_weights((H, O, Q, wide, narrow), flat(up), flat(down), matrices)
    _packed[address] = up.detach().clone(), down.detach().clone(), matrices
    _packed.move_to_end(address)
    if len(_packed) > MANY:
        _packed.popitem(last=False)
    return matrices


def arguments(tokens: int, up: Tensor, down: Tensor, dropped: bool, keep_scale: float) -> tuple[Any, Any]:
    """(Widths, Matrices) of the compiled loops."""
    from quatsphere.kernels.numba_hamilton import WIDE, Widths, even_chunk

    H, O, Q, _ = up.shape
    C, wide = 4 * Q, O + -O % WIDE
    narrow = C + -C % WIDE
    rounded = float(torch.tensor(keep_scale, dtype=up.dtype))  # so that full and partial blocks round alike
    widths = Widths(tokens, even_chunk(tokens), H, C, narrow, 4 * wide, dropped, rounded)
    return widths, _matrices(up, down, wide, narrow)
