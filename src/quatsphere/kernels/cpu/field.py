"""Operators of the field's fused perturbation on CPUs.

One operator perturbs a source shell and, from interpolated rows of the same hidden activations, a target shell; one
pass computes the gradients of both. A step within a shell has no target: its field is then an empty tensor.
"""

from typing import Any

import torch
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.kernels import torch_backend
from quatsphere.kernels.cpu.arrays import check_neighbours, flat, lane_heads, sum_in_order
from quatsphere.kernels.cpu.loops import LANES
from quatsphere.kernels.operators import backward_operator, register_backward
from quatsphere.torch_operators import operator


@operator("perturb", "cpu")
def perturb(
    hidden: Tensor,
    inner: Tensor,
    weight: Tensor,
    bias: Tensor,
    bounds: Tensor,
    source: Tensor,
    target: Tensor | None,
    indices: Tensor | None,
    mix_weights: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """normalize(base ⊗ exp(bound tanh(gelu(inner + row) weight + bias))), real part first, for the bases source
    (S, H, 4) and target (T, H, 4): hidden (B, S, H * I), inner (H * I), weight (H, I, 3), bias (H, 3), one bound <= 1
    per shell, and the interpolation of the targets' rows, indices and mix_weights (T, terms) -> (B, S, H, 4),
    (B, T, H, 4).

    Exact at a zero tangent. The power series are accurate for bounds up to 1 (the paper's end at π/4).
    """
    from quatsphere.kernels.cpu.loops.field import run_perturb

    fields, network = empty_fields(hidden, source, target), (hidden, inner, weight, bias)
    for shell in shell_arguments(network, bounds, (source, target), fields, (indices, mix_weights)):
        run_perturb(*shell)
    return fields


def empty_fields(hidden: Tensor, source: Tensor, target: Tensor | None) -> tuple[Tensor, Tensor]:
    """Uninitialised fields (B, S, H, 4) and (B, T, H, 4), the second empty without a target."""
    target_field = hidden.new_empty(0) if target is None else hidden.new_empty(hidden.shape[0], *target.shape)
    return hidden.new_empty(hidden.shape[0], *source.shape), target_field


def shell_arguments(
    network: tuple[Tensor, ...], bounds: Tensor, bases: tuple[Tensor, Tensor | None], fields: Any, mixing: Any
) -> tuple[Any, Any]:
    """(FieldSizes, bound, FieldArrays) of the source and the target shell; a missing target has no vertices."""
    limits = _checked(bounds, bases[1])
    network = _to_lanes(network, _packed_rows(*bases))
    source = _arguments(network, bases[0], fields[0], (None, None), limits[0])
    if bases[1] is None:
        return source, (source[0]._replace(vertices=0), *source[1:])
    return source, _arguments(network, bases[1], fields[1], mixing, limits[1])


@backward_operator(perturb, ("source_gradient", "target_gradient"))
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
    *mixing: Tensor | None,
) -> list[Tensor]:
    """Gradients of (hidden, inner, weight, bias, bounds, source, target), the last one empty without a target."""
    network, limits = _to_lanes((hidden, inner, weight, bias), _packed_rows(source, target)), _checked(bounds, target)
    if target is None:
        *found, bound, base = _shell_gradients(network, source, source_gradient, (None, None), limits[0], None)
        return [*found, bound.reshape(1), base, hidden.new_empty(0)]
    outer = _shell_gradients(network, target, target_gradient, mixing, limits[1], None)
    own = _shell_gradients(network, source, source_gradient, (None, None), limits[0], (outer[0], *mixing))
    shared = (a + b for a, b in zip(own[1:4], outer[1:4], strict=True))
    return [own[0], *shared, torch.stack((own[4], outer[4])), own[5], outer[5]]


def _shell_gradients(
    network: tuple[Tensor, ...], base: Tensor, gradient: Tensor, mixing: Any, bound: float, targets: Any
) -> tuple[Tensor, ...]:
    """Gradients of (rows, inner, weight, bias, bound, base) of one shell; `targets` = (gradient, indices, mix_weights)
    of the target vertices that interpolate its rows, or None."""
    from quatsphere.kernels.cpu.loops.field import tile_count
    from quatsphere.kernels.cpu.loops.field_backward import FieldGrads, run_perturb_backward

    hidden, (vertices, heads, _) = network[0], base.shape
    sizes, limit, arrays = _arguments(network, base, gradient, mixing, bound)
    tiles, blocks = tile_count(sizes), sizes.blocks
    inners = hidden.new_zeros(tiles, blocks, sizes.width, LANES)
    weights = hidden.new_zeros(tiles, blocks, sizes.width, 3, LANES)
    biases, bounds = hidden.new_zeros(tiles, blocks, 3, LANES), hidden.new_empty(tiles, LANES)
    rows = hidden.new_empty(hidden.shape[0], vertices, hidden.shape[2])
    into = (rows, base.new_empty(base.shape), inners, weights, biases, bounds)
    mixing_grad = _mixing_grad(hidden, vertices, targets)
    run_perturb_backward(sizes, limit, arrays, mixing_grad, FieldGrads(*map(flat, into)))
    return (
        rows,
        _from_lanes(sum_in_order(inners, 0), heads, sizes.packed).reshape(-1),
        _from_lanes(sum_in_order(weights, 0), heads, sizes.packed),
        _from_lanes(sum_in_order(biases, 0), heads, sizes.packed),
        sum_in_order(bounds, (0, 1)),
        into[1],
    )


def _arguments(network: tuple[Tensor, ...], base: Tensor, out: Tensor, mixing: Any, bound: float) -> tuple[Any, ...]:
    """(FieldSizes, bound, FieldArrays) of the loops."""
    from quatsphere.kernels.cpu.loops.field import FieldArrays, FieldSizes

    hidden, inner, weight, bias = network
    (vertices, heads, _), width, rows = base.shape, weight.shape[1], hidden.shape[1]
    if width % 2:
        raise ConfigError(
            f"the fused perturbation takes pairs of hidden numbers: got {width} per head; use the plain one"
        )
    indices, mix_weights = torch.empty(0, dtype=torch.int64), hidden.new_empty(0)
    if mixing[0] is not None and mixing[1] is not None:
        indices, mix_weights = mixing[0], mixing[1].to(hidden.dtype)
        check_neighbours(indices, rows)
    given = len(indices) if indices.numel() else rows
    if given != vertices or mix_weights.shape != indices.shape:
        raise ConfigError(f"a shell of {vertices} vertices needs as many rows of hidden or of a mixture: got {given}")
    terms = indices.shape[-1] if indices.numel() else 0
    packed = inner.numel() // (heads * width)
    sizes = FieldSizes(hidden.shape[0], vertices // packed, heads * packed, width, rows, terms, packed)
    return sizes, bound, FieldArrays(*map(flat, (hidden, inner, weight, bias, base, out, indices, mix_weights)))


def _packed_rows(source: Tensor, target: Tensor | None) -> int:
    """Rows whose heads fill a vector together; both shells have a multiple of it."""
    counts, heads = [len(base) for base in (source, target) if base is not None], source.shape[1]
    return max(n for n in range(1, max(1, LANES // heads) + 1) if all(count % n == 0 for count in counts))


def _to_lanes(network: tuple[Tensor, ...], packed: int) -> tuple[Tensor, ...]:
    """The network with its last layer (H, ...) as (blocks, ..., 8), repeated for `packed` rows."""
    hidden, inner, weight, bias = network
    lanes = lane_heads(len(weight), packed)

    def blocks(tensor: Tensor) -> Tensor:
        return tensor[lanes].unflatten(0, (-1, LANES)).movedim(1, -1).contiguous()

    return hidden, inner.repeat(packed), blocks(weight), blocks(bias)


def _from_lanes(tensor: Tensor, heads: int, packed: int) -> Tensor:
    """(blocks, ..., 8) -> (H, ...), summed over the packed rows."""
    return tensor.movedim(-1, 1).flatten(0, 1)[: heads * packed].unflatten(0, (packed, heads)).sum(0)


def _mixing_grad(hidden: Tensor, rows: int, targets: tuple[Tensor, Tensor, Tensor] | None) -> Any:
    """`MixingGrad` of the loops."""
    from quatsphere.kernels.cpu.loops.field_backward import MixingGrad
    from quatsphere.kernels.cpu.loops.neighbour_sums import reverse_graph

    empty = hidden.new_empty(0)
    gradient, indices, mix_weights = targets or (empty, torch.empty(0, 1, dtype=torch.int64), empty)
    graph = reverse_graph(flat(indices), indices.shape[1], rows)
    return MixingGrad(flat(gradient), indices.shape[0], graph, flat(mix_weights.to(hidden.dtype)))


def _checked(bounds: Tensor, target: Tensor | None) -> list[float]:
    """The bounds as numbers; raise ConfigError for a wrong count or a bound beyond the range of the series."""
    values: list[float] = bounds.tolist()
    shells = 1 if target is None else 2
    if len(values) != shells:
        raise ConfigError(f"every shell has a bound: got {len(values)} for {shells}")
    if max(values) > 1:
        raise ConfigError(f"the fused perturbation holds for bounds up to 1: got {max(values):.3g}; use the plain one")
    return values


@perturb.register_fake
def _(hidden: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return empty_fields(hidden, rest[4], rest[5])


@perturb_backward.register_fake
def _(source_gradient: Tensor, target_gradient: Tensor, *inputs: Any) -> list[Tensor]:
    return [inputs[0].new_empty(0 if tensor is None else tensor.shape) for tensor in inputs[:7]]


register_backward(perturb, perturb_backward, torch_backend.perturb, 9, range(7), save_output=False)
