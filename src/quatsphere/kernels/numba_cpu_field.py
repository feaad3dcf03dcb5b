"""The fused perturbation of the field on CPUs (Numba): torch operators around the loops of `numba_field`.

One operator perturbs a source shell and, from the same rows, a target shell that mixes them; its gradient comes back in
one pass as well. A step within a shell has no second shell: that field is then an empty tensor.
"""

from typing import Any

import torch
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.kernels.numba_cpu import LANES, check_neighbours, flat, sum_in_order


@torch.library.custom_op("quatsphere::perturb", mutates_args=(), device_types="cpu")
def perturb(
    hidden: Tensor,
    inner: Tensor,
    weight: Tensor,
    bias: Tensor,
    bounds: Tensor,
    source: Tensor,
    target: Tensor | None,
    indices: Tensor | None,
    shares: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """normalize(base ⊗ exp(bound tanh(gelu(inner + row) weight + bias))), real first, for the bases source (S, H, 4)
    and target (T, H, 4): hidden (B, S, H * I), inner (H * I), weight (H, I, 3), bias (H, 3), bounds <= 1,
    one per shell, and how a target's row is mixed, indices and shares (T, terms) -> (B, S, H, 4), (B, T, H, 4).

    Exact at a zero tangent. The series behind it hold for bounds up to 1 (the paper's end at π/4).
    """
    from quatsphere.kernels import numba_field as loops

    network, limits = (hidden, inner, weight, bias), _checked(bounds, target)
    fields = []
    for base, mixing, bound in ((source, (None, None), limits[0]), (target, (indices, shares), limits[-1])):
        out = hidden.new_empty(hidden.shape[0], *base.shape) if base is not None else hidden.new_empty(0)
        if base is not None:
            loops.perturb_all(*_arguments(network, base, out, mixing, bound))
        fields.append(out)
    return fields[0], fields[1]


@torch.library.custom_op("quatsphere::perturb_backward", mutates_args=(), device_types="cpu")
def perturb_backward(
    source_gradient: Tensor,
    target_gradient: Tensor,
    hidden: Tensor,
    inner: Tensor,
    weight: Tensor,
    bias: Tensor,
    bounds: Tensor,
    source: Tensor,
    target: Tensor | None,
    indices: Tensor | None,
    shares: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of (hidden, inner, weight, bias, bounds, source, target)."""
    network, limits = (hidden, inner, weight, bias), _checked(bounds, target)
    if target is None:
        found = _differentiate(network, source, source_gradient, (None, None), limits[0], None)
        rows, inner, weight, bias, bound, base = found
        return rows, inner, weight, bias, bound.reshape(1), base, hidden.new_empty(0)
    there = _differentiate(network, target, target_gradient, (indices, shares), limits[1], None)
    here = _differentiate(network, source, source_gradient, (None, None), limits[0], (there[0], indices, shares))
    inner, weight, bias = (a + b for a, b in zip(here[1:4], there[1:4], strict=True))
    return here[0], inner, weight, bias, torch.stack((here[4], there[4])), here[5], there[5]


def _differentiate(
    network: tuple[Tensor, ...], base: Tensor, gradient: Tensor, mixing: Any, bound: float, mixed: Any
) -> tuple[Tensor, ...]:
    """Gradients of (rows, inner, weight, bias, bound, base) of one shell; `mixed` is what mixtures of its rows tell
    back: their gradient, indices and shares."""
    from quatsphere.kernels import numba_field_backward as loops

    hidden, inner, *_ = network
    sizes, limit, arrays = _arguments(network, base, gradient, mixing, bound)
    tiles = loops.tile_count(sizes)
    inners = hidden.new_zeros(tiles, *inner.shape)
    weights = hidden.new_zeros(tiles, sizes.heads, 3, sizes.padded)
    biases, bounds = hidden.new_zeros(tiles, sizes.heads, 3, LANES), hidden.new_empty(tiles, LANES)
    rows = hidden.new_empty(hidden.shape[0], sizes.vertices, hidden.shape[2])
    into = (rows, base.new_empty(base.shape), inners, weights, biases, bounds)
    back = _told_back(hidden, sizes.vertices, mixed)
    loops.differentiate_all(sizes, limit, arrays, back, loops.FieldGradients(*map(flat, into)))
    return (
        rows,
        sum_in_order(inners, 0),
        sum_in_order(weights, 0)[..., : sizes.width].transpose(1, 2).contiguous(),
        sum_in_order(biases, (0, 3)),
        sum_in_order(bounds, (0, 1)),
        into[1],
    )


def _arguments(network: tuple[Tensor, ...], base: Tensor, out: Tensor, mixing: Any, bound: float) -> tuple[Any, ...]:
    """(FieldSizes, bound, FieldArrays) of the compiled loops."""
    from quatsphere.kernels.numba_field import FieldArrays, FieldSizes

    hidden, inner, weight, bias = network
    (heads, width, _), rows = weight.shape, hidden.shape[1]
    indices, shares = _mixing(hidden, rows, *mixing)
    given = len(indices) if indices.numel() else rows
    if given != len(base) or shares.shape != indices.shape:
        raise ConfigError(f"a shell of {len(base)} vertices needs as many rows of hidden or of a mixture: got {given}")
    terms = indices.shape[-1] if indices.numel() else 0
    sizes = FieldSizes(hidden.shape[0], base.shape[0], heads, width, width + -width % LANES, rows, terms)
    return sizes, bound, FieldArrays(*map(flat, (hidden, inner, weight, bias, base, out, indices, shares)))


def _mixing(hidden: Tensor, rows: int, indices: Tensor | None, shares: Tensor | None) -> tuple[Tensor, Tensor]:
    if indices is None or shares is None:
        return torch.empty(0, dtype=torch.int64), hidden.new_empty(0)
    check_neighbours(indices, rows)
    return indices, shares.to(hidden.dtype)


def _told_back(hidden: Tensor, rows: int, mixed: tuple[Tensor, Tensor, Tensor] | None) -> Any:
    from quatsphere.kernels.numba_field_backward import FieldMixed
    from quatsphere.kernels.numba_neighbours import reverse_graph

    nothing = hidden.new_empty(0)
    gradient, indices, shares = mixed or (nothing, torch.empty(0, 1, dtype=torch.int64), nothing)
    graph = reverse_graph(flat(indices), indices.shape[1], rows)
    return FieldMixed(flat(gradient), indices.shape[0], graph, flat(shares.to(hidden.dtype)))


def _checked(bounds: Tensor, target: Tensor | None) -> list[float]:
    values: list[float] = bounds.tolist()
    shells = 1 if target is None else 2
    if len(values) != shells:
        raise ConfigError(f"every shell has a bound: got {len(values)} for {shells}")
    if max(values) > 1:
        raise ConfigError(f"the fused perturbation holds for bounds up to 1: got {max(values):.3g}; use the plain one")
    return values


@perturb.register_fake
def _(hidden: Tensor, inner: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    _, _, _, source, target, *_ = rest
    shapes = [(hidden.shape[0], *base.shape) if base is not None else (0,) for base in (source, target)]
    return hidden.new_empty(shapes[0]), hidden.new_empty(shapes[1])


@perturb_backward.register_fake
def _(source_gradient: Tensor, target_gradient: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    empty = inputs[0].new_empty(0)
    return tuple(empty if tensor is None else tensor.new_empty(tensor.shape) for tensor in inputs[:7])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, source_gradient: Tensor, target_gradient: Tensor) -> tuple[Tensor | None, ...]:
    found = perturb_backward(source_gradient, target_gradient, *ctx.saved_tensors)
    return *found[:6], None if ctx.saved_tensors[6] is None else found[6], None, None


perturb.register_autograd(_backward, setup_context=_save)
