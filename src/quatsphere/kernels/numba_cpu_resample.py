"""`interp` along the vertices on CPUs (Numba), alone and as the gated residual that it is made for."""

from typing import Any

import torch
from torch import Tensor

from quatsphere.kernels import torch_backend as plain
from quatsphere.kernels.numba_cpu import LANES, check_neighbours, flat, sum_in_order
from quatsphere.kernels.transforms import differentiated_again, plain_gradients, transformed


@torch.library.custom_op("quatsphere::resample", mutates_args=(), device_types="cpu")
def resample(x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Σ_m w_im x_n(i,m): (B, S, d), (T, terms), (T, terms) -> (B, T, d)."""
    return _gather(x, indices, weights, None)


@torch.library.custom_op("quatsphere::resample_back", mutates_args=(), device_types="cpu")
def resample_back(gradient: Tensor, indices: Tensor, weights: Tensor, sources: int) -> Tensor:
    """Σ over (i, m) with n(i,m) = j of w_im g_i: (B, T, d) -> (B, sources, d)."""
    return _scatter(gradient, indices, weights, gradient.new_ones(1), sources, None)[0]


@torch.library.custom_op("quatsphere::resample_onto", mutates_args=(), device_types="cpu")
def resample_onto(onto: Tensor, gate: Tensor, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """onto + gate Σ_m w_im x_n(i,m), gate a number: (B, T, d) in one pass over memory."""
    return _gather(x, indices, gate * weights.to(x.dtype), onto)


@torch.library.custom_op("quatsphere::resample_onto_backward", mutates_args=(), device_types="cpu")
def resample_onto_backward(
    gradient: Tensor, gate: Tensor, x: Tensor, indices: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of (gate, x): ⟨g, R x⟩ = ⟨Rᵀ g, x⟩, so one pass gives both; that of `onto` is g itself."""
    back, product = _scatter(gradient, indices, weights, gate, x.shape[1], x)
    return product, back


def _gather(x: Tensor, indices: Tensor, weights: Tensor, onto: Tensor | None) -> Tensor:
    from quatsphere.kernels import numba_resample as loops

    check_neighbours(indices, x.shape[1])
    sizes = loops.Sizes(indices.shape[0], x.shape[1], indices.shape[1], x.shape[2], onto is not None)
    out = x.new_empty(x.shape[0], sizes.targets, sizes.width)
    base = x.new_empty(0) if onto is None else onto
    loops.gather_all(sizes, x.shape[0], *map(flat, (indices, weights.to(x.dtype), x, base, out)))
    return out


def onto_of(x: Tensor, targets: int, indices: Tensor | None, shares: Tensor | None) -> Any:
    """`Onto` of the compiled loops: the rows x (B, S, d) that the targets are added to, mixed or each its own."""
    from quatsphere.kernels.numba_rows import Onto

    if indices is None or shares is None:
        indices, shares = torch.empty(0, 0, dtype=torch.int64), x.new_empty(0)
    check_neighbours(indices, x.shape[1])
    return Onto(flat(x), flat(indices), flat(shares.to(x.dtype)), targets, x.shape[1], indices.shape[1])


def _scatter(
    gradient: Tensor, indices: Tensor, weights: Tensor, scale: Tensor, sources: int, x: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(scale Rᵀ g, ⟨Rᵀ g, x⟩ if there is an x)."""
    from quatsphere.kernels import numba_resample as loops

    check_neighbours(indices, sources)
    images, targets, width = gradient.shape
    sizes = loops.Sizes(targets, sources, indices.shape[1], width, x is not None)
    out, products = gradient.new_empty(images, sources, width), gradient.new_empty(images, LANES)
    other = gradient.new_empty(0) if x is None else x
    arrays = map(flat, (indices, weights.to(gradient.dtype), scale, gradient, other, out, products))
    loops.scatter_all(sizes, images, *arrays)
    return out, sum_in_order(products, (0, 1))


@resample.register_fake
def _(x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], indices.shape[0], x.shape[2])


@resample_back.register_fake
def _(gradient: Tensor, indices: Tensor, weights: Tensor, sources: int | torch.SymInt) -> Tensor:
    return gradient.new_empty(gradient.shape[0], sources, gradient.shape[2])


@resample_onto.register_fake
def _(onto: Tensor, gate: Tensor, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    return onto.new_empty(onto.shape)


@resample_onto_backward.register_fake
def _(gradient: Tensor, gate: Tensor, x: Tensor, indices: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    return gate.new_empty(()), x.new_empty(x.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1], inputs[2])
    ctx.sources = inputs[0].shape[1]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    indices, weights = ctx.saved_tensors
    back = plain.resample_back if transformed() else resample_back
    return back(gradient, indices, weights, ctx.sources), None, None


def _back_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    forth = plain.resample if transformed() else resample
    return forth(gradient, *ctx.saved_tensors), None, None, None


def _save_onto(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _gated(gate: Tensor, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    return gate * plain.resample(x, indices, weights)


def _onto_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    if differentiated_again():
        return gradient, *plain_gradients(_gated, ctx.saved_tensors, gradient)
    return gradient, *resample_onto_backward(gradient, *ctx.saved_tensors), None, None


resample.register_autograd(_backward, setup_context=_save)
resample_back.register_autograd(_back_backward, setup_context=_save)
resample_onto.register_autograd(_onto_backward, setup_context=_save_onto)
