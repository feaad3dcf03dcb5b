"""Operators of `interp` along the vertices on CPUs, alone and as the gated residual."""

from typing import Any

import torch
from torch import Tensor

from quatsphere.kernels import torch_backend
from quatsphere.kernels.cpu.arrays import NO_INDICES, check_neighbours, flat, sum_in_order
from quatsphere.kernels.cpu.loops import LANES
from quatsphere.torch_operators import differentiated_again, operator, plain_gradients, transformed


@operator("resample", "cpu")
def resample(x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Σ_m w_im x_n(i,m): (B, S, d), (T, terms), (T, terms) -> (B, T, d)."""
    return _gather_sum(x, indices, weights, None)


@operator("resample_back", "cpu")
def resample_back(gradient: Tensor, indices: Tensor, weights: Tensor, sources: int) -> Tensor:
    """Σ over (i, m) with n(i,m) = j of w_im g_i: (B, T, d) -> (B, sources, d)."""
    return _scatter_sum(gradient, indices, weights, gradient.new_ones(1), sources, None)[0]


@operator("resample_onto", "cpu")
def resample_onto(onto: Tensor, gate: Tensor, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """onto + gate Σ_m w_im x_n(i,m) with a scalar gate: (B, T, d) in one pass over memory."""
    return _gather_sum(x, indices, gate * weights.to(x.dtype), onto)


@operator("resample_onto_backward", "cpu")
def resample_onto_backward(
    gradient: Tensor, gate: Tensor, x: Tensor, indices: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of (gate, x) in one pass, since ⟨g, R x⟩ = ⟨Rᵀ g, x⟩; that of `onto` is g itself."""
    x_gradient, product = _scatter_sum(gradient, indices, weights, gate, x.shape[1], x)
    return product, x_gradient


def _gather_sum(x: Tensor, indices: Tensor, weights: Tensor, base: Tensor | None) -> Tensor:
    from quatsphere.kernels.cpu.loops.neighbour_sums import ResampleSizes, run_resample

    check_neighbours(indices, x.shape[1])
    sizes = ResampleSizes(indices.shape[0], x.shape[1], indices.shape[1], x.shape[2], base is not None)
    out = x.new_empty(x.shape[0], sizes.targets, sizes.width)
    second = x.new_empty(0) if base is None else base
    run_resample(sizes, x.shape[0], *map(flat, (indices, weights.to(x.dtype), x, second, out)))
    return out


def _scatter_sum(
    gradient: Tensor, indices: Tensor, weights: Tensor, scale: Tensor, sources: int, x: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(scale Rᵀ g, ⟨Rᵀ g, x⟩ if there is an x)."""
    from quatsphere.kernels.cpu.loops.neighbour_sums import ResampleSizes, run_resample_adjoint

    check_neighbours(indices, sources)
    images, targets, width = gradient.shape
    sizes = ResampleSizes(targets, sources, indices.shape[1], width, x is not None)
    out, products = gradient.new_empty(images, sources, width), gradient.new_empty(images, LANES)
    second = gradient.new_empty(0) if x is None else x
    arrays = map(flat, (indices, weights.to(gradient.dtype), scale, gradient, second, out, products))
    run_resample_adjoint(sizes, images, *arrays)
    return out, sum_in_order(products, (0, 1))


def residual_input(x: Tensor, targets: int, indices: Tensor | None, weights: Tensor | None) -> Any:
    """`ResidualInput` of the loops for rows x (B, S, d), interpolated or, without indices, one per target."""
    from quatsphere.kernels.cpu.loops.neighbour_sums import ResidualInput

    if indices is None or weights is None:
        return ResidualInput(flat(x), NO_INDICES, flat(x.new_empty(0)), targets, x.shape[1], 0)
    check_neighbours(indices, x.shape[1])
    return ResidualInput(flat(x), flat(indices), flat(weights.to(x.dtype)), targets, x.shape[1], indices.shape[1])


def residual_grad(gradient: Tensor, x: Tensor, indices: Tensor | None, weights: Tensor | None, gate: float) -> Any:
    """`ResidualGrad` of the loops for a residual from x (B, S, d) with output gradient (B, T, d)."""
    from quatsphere.kernels.cpu.loops.neighbour_sums import ResidualGrad, reverse_graph

    mixed = indices is not None and indices.numel() > 0
    rows, terms = (NO_INDICES, 1) if indices is None else (flat(indices), indices.shape[1])
    graph = reverse_graph(rows, terms, x.shape[1])
    shares = flat(x.new_empty(0) if weights is None else weights.to(x.dtype))
    _, targets, width = gradient.shape
    return ResidualGrad(flat(gradient), flat(x), graph, shares, gate, mixed, targets, width)


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
    adjoint = torch_backend.resample_back if transformed() else resample_back
    return adjoint(gradient, indices, weights, ctx.sources), None, None


def _adjoint_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    forward = torch_backend.resample if transformed() else resample
    return forward(gradient, *ctx.saved_tensors), None, None, None


def _save_onto(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _gated(gate: Tensor, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    return gate * torch_backend.resample(x, indices, weights)


def _onto_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    if differentiated_again():
        return gradient, *plain_gradients(_gated, ctx.saved_tensors, gradient)
    return gradient, *resample_onto_backward(gradient, *ctx.saved_tensors), None, None


resample.register_autograd(_backward, setup_context=_save)
resample_back.register_autograd(_adjoint_backward, setup_context=_save)
resample_onto.register_autograd(_onto_backward, setup_context=_save_onto)
