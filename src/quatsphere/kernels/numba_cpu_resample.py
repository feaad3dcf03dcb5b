"""`interp` along the vertices on CPUs (Numba): two torch operators that are each other's derivative."""

from typing import Any

import torch
from torch import Tensor

from quatsphere.kernels.numba_cpu import check_neighbours, flat


@torch.library.custom_op("quatsphere::resample", mutates_args=(), device_types="cpu")
def resample(x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Σ_m w_im x_n(i,m): (B, S, d), (T, terms), (T, terms) -> (B, T, d)."""
    from quatsphere.kernels import numba_resample as loops

    check_neighbours(indices, x.shape[1])
    sizes = (indices.shape[0], x.shape[1], indices.shape[1], x.shape[2])
    out = x.new_empty(x.shape[0], sizes[0], sizes[3])
    loops.gather_all(sizes, x.shape[0], *map(flat, (indices, weights.to(x.dtype), x, out)))
    return out


@torch.library.custom_op("quatsphere::resample_back", mutates_args=(), device_types="cpu")
def resample_back(gradient: Tensor, indices: Tensor, weights: Tensor, sources: int) -> Tensor:
    """Σ over (i, m) with n(i,m) = j of w_im g_i: (B, T, d) -> (B, sources, d)."""
    from quatsphere.kernels import numba_resample as loops

    check_neighbours(indices, sources)
    sizes = (indices.shape[0], sources, indices.shape[1], gradient.shape[2])
    out = gradient.new_empty(gradient.shape[0], sources, sizes[3])
    loops.scatter_all(sizes, gradient.shape[0], *map(flat, (indices, weights.to(gradient.dtype), gradient, out)))
    return out


@resample.register_fake
def _(x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], indices.shape[0], x.shape[2])


@resample_back.register_fake
def _(gradient: Tensor, indices: Tensor, weights: Tensor, sources: int | torch.SymInt) -> Tensor:
    return gradient.new_empty(gradient.shape[0], sources, gradient.shape[2])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1], inputs[2])
    ctx.sources = inputs[0].shape[1]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return resample_back(gradient, *ctx.saved_tensors, ctx.sources), None, None


def _back_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    return resample(gradient, *ctx.saved_tensors), None, None, None


resample.register_autograd(_backward, setup_context=_save)
resample_back.register_autograd(_back_backward, setup_context=_save)
