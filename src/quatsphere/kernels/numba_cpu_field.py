"""The fused perturbation of the field on CPUs (Numba): torch operators around the loops of `numba_field`.

One operator perturbs a source shell and, from the same rows, a target shell that mixes them; its gradient comes back in
one pass as well. A step within a shell has no second shell: that field is then an empty tensor.
"""

from typing import Any

import torch
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.kernels import torch_backend as plain
from quatsphere.kernels.numba_cpu import LANES, check_neighbours, flat, sum_in_order
from quatsphere.kernels.transforms import differentiated_again, plain_gradients


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

    fields = empty_fields(hidden, source, target)
    network = (hidden, inner, weight, bias)
    for shell in shells_of(network, bounds, (source, target), fields, (indices, shares)):
        loops.perturb_all(*shell)
    return fields


def empty_fields(hidden: Tensor, source: Tensor, target: Tensor | None) -> tuple[Tensor, Tensor]:
    """Room for the fields of both ends, (B, S, H, 4) and (B, T, H, 4), the second empty where there is no target."""
    there = hidden.new_empty(0) if target is None else hidden.new_empty(hidden.shape[0], *target.shape)
    return hidden.new_empty(hidden.shape[0], *source.shape), there


def shells_of(
    network: tuple[Tensor, ...], bounds: Tensor, bases: tuple[Tensor, Tensor | None], fields: Any, mixing: Any
) -> tuple[Any, Any]:
    """(FieldSizes, bound, FieldArrays) of both ends of a step; a missing target is a shell without vertices."""
    limits = _checked(bounds, bases[1])
    network = _laid_out(*network)
    source = _arguments(network, bases[0], fields[0], (None, None), limits[0])
    if bases[1] is None:
        return source, (source[0]._replace(vertices=0), *source[1:])
    return source, _arguments(network, bases[1], fields[1], mixing, limits[1])


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
    network, limits = _laid_out(hidden, inner, weight, bias), _checked(bounds, target)
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
    tiles, blocks = loops.tile_count(sizes), sizes.blocks
    inners = hidden.new_zeros(tiles, blocks, sizes.width, LANES)
    weights = hidden.new_zeros(tiles, blocks, sizes.width, 3, LANES)
    biases, bounds = hidden.new_zeros(tiles, blocks, 3, LANES), hidden.new_empty(tiles, LANES)
    rows = hidden.new_empty(hidden.shape[0], sizes.vertices, hidden.shape[2])
    into = (rows, base.new_empty(base.shape), inners, weights, biases, bounds)
    back = _told_back(hidden, sizes.vertices, mixed)
    loops.differentiate_all(sizes, limit, arrays, back, loops.FieldGradients(*map(flat, into)))
    return (
        rows,
        _by_head(sum_in_order(inners, 0), sizes.heads).reshape(inner.shape),
        _by_head(sum_in_order(weights, 0), sizes.heads),
        _by_head(sum_in_order(biases, 0), sizes.heads),
        sum_in_order(bounds, (0, 1)),
        into[1],
    )


def _arguments(network: tuple[Tensor, ...], base: Tensor, out: Tensor, mixing: Any, bound: float) -> tuple[Any, ...]:
    """(FieldSizes, bound, FieldArrays) of the compiled loops."""
    from quatsphere.kernels.numba_field import FieldArrays, FieldSizes

    hidden, inner, weight, bias = network
    (vertices, heads, _), width, rows = base.shape, weight.shape[1], hidden.shape[1]
    if width % 2:
        raise ConfigError(
            f"the fused perturbation takes pairs of hidden numbers: got {width} per head; use the plain one"
        )
    indices, shares = _mixing(hidden, rows, *mixing)
    given = len(indices) if indices.numel() else rows
    if given != vertices or shares.shape != indices.shape:
        raise ConfigError(f"a shell of {vertices} vertices needs as many rows of hidden or of a mixture: got {given}")
    terms = indices.shape[-1] if indices.numel() else 0
    sizes = FieldSizes(hidden.shape[0], vertices, heads, width, rows, terms)
    return sizes, bound, FieldArrays(*map(flat, (hidden, inner, weight, bias, base, out, indices, shares)))


def _laid_out(hidden: Tensor, inner: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """The network with its last layer by lanes."""
    return hidden, inner, _by_lanes(weight).contiguous(), _by_lanes(bias).contiguous()


def _by_lanes(tensor: Tensor) -> Tensor:
    """(H, ...) -> (blocks, ..., 8): eight heads side by side, the last block filled up with zeros."""
    heads = tensor.shape[0]
    full = torch.cat((tensor, tensor.new_zeros(-heads % LANES, *tensor.shape[1:]))) if heads % LANES else tensor
    return full.unflatten(0, (-1, LANES)).movedim(1, -1)


def _by_head(tensor: Tensor, heads: int) -> Tensor:
    """The inverse of `_by_lanes`."""
    return tensor.movedim(-1, 1).flatten(0, 1)[:heads].contiguous()


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
    if differentiated_again():
        return plain_gradients(plain.perturb, ctx.saved_tensors, (source_gradient, target_gradient))
    found = perturb_backward(source_gradient, target_gradient, *ctx.saved_tensors)
    return *found[:6], None if ctx.saved_tensors[6] is None else found[6], None, None


perturb.register_autograd(_backward, setup_context=_save)
