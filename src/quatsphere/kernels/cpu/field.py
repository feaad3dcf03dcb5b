"""Operators of the field's fused perturbation on CPUs.

One operator perturbs a source shell and, from interpolated rows of the same hidden activations, a target shell; one
pass computes the gradients of both. A step within a shell has no target: its field is then an empty tensor.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.kernels import torch_backend
from quatsphere.kernels.cpu.arrays import NO_INDICES, array, check_neighbours, flat, lane_heads, sum_in_order
from quatsphere.kernels.cpu.loops import LANES
from quatsphere.torch_operators import backward_operator, operator, register_backward


class LaneNetwork(NamedTuple):
    """The network as flat arrays (hidden, inner, weight, bias) in the order of the lanes, and `FieldSizes` without
    vertices."""

    sizes: Any
    arrays: tuple[Any, Any, Any, Any]


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
    limits, lanes = _checked(bounds, bases[1]), _lane_network(network, _packed_rows(*bases))
    source = _arguments(lanes, bases[0], fields[0], None, limits[0])
    if bases[1] is None:
        return source, (source[0]._replace(vertices=0), *source[1:])
    if mixing[0] is not None:
        check_neighbours(mixing[0], lanes.sizes.rows)
    return source, _arguments(lanes, bases[1], fields[1], _flat_mixing(mixing, lanes), limits[1])


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
    from quatsphere.kernels.cpu.loops.field_backward import MixingGrad
    from quatsphere.kernels.cpu.loops.neighbour_sums import reverse_graph

    packed = _packed_rows(source, target)
    limits, network = _checked(bounds, target), _lane_network((hidden, inner, weight, bias), packed)
    bases = [source] if target is None else [source, target]
    mixed, (nothing, no_weights) = _flat_mixing(mixing, network), [x[:0] for x in network.arrays[:2]]
    rows = [hidden.new_empty(len(hidden), len(base), hidden.shape[2]) for base in bases]
    shells = [_arguments(network, source, source_gradient, None, limits[0])]
    mixing_grads = [MixingGrad(nothing, 0, reverse_graph(NO_INDICES, 1, len(base)), no_weights) for base in bases]
    if target is not None:
        shells.append(_arguments(network, target, target_gradient, mixed, limits[1]))
    if target is not None and mixed is not None:
        graph = reverse_graph(mixed[0], mixed[2], len(source))
        mixing_grads[0] = MixingGrad(flat(rows[1]), len(target), graph, mixed[1])
    base_grads = [base.new_empty(base.shape) for base in bases]
    sums, bound_grads = _network_gradients(shells, mixing_grads, rows, base_grads, network)
    return [rows[0], *sums, bound_grads, base_grads[0], hidden.new_empty(0) if target is None else base_grads[1]]


def _network_gradients(
    shells: list[Any], mixing_grads: list[Any], rows: list[Tensor], bases: list[Tensor], network: LaneNetwork
) -> tuple[list[Tensor], Tensor]:
    """Fill the gradients of rows and bases; return those of (inner, weight, bias), summed over the shells, and of the
    bounds. The targets come first: the sources add the gradients of the rows that targets interpolate."""
    from quatsphere.kernels.cpu.loops.field import tile_count
    from quatsphere.kernels.cpu.loops.field_backward import FieldGrads, run_perturb_backward

    width, blocks, packed = network.sizes.width, network.sizes.blocks, network.sizes.packed
    tiles = [tile_count(shell[0]) for shell in shells]
    shapes = ((blocks, width, LANES), (blocks, width, 3, LANES), (blocks, 3, LANES), (LANES,))
    parts = [np.zeros((sum(tiles), *shape), network.arrays[1].dtype) for shape in shapes]
    for number, shell in reversed(list(enumerate(shells))):
        own = slice(sum(tiles[:number]), sum(tiles[: number + 1]))
        into = FieldGrads(flat(rows[number]), flat(bases[number]), *(part[own].reshape(-1) for part in parts))
        sizes, bound, arrays = shell
        run_perturb_backward(sizes, bound, arrays, mixing_grads[number], into)
    heads = network.sizes.heads // packed
    sums = [_from_lanes(sum_in_order(part, 0), heads, packed) for part in parts[:3]]
    bounds = [sum_in_order(part, (0, 1)) for part in (parts[3][: tiles[0]], parts[3][tiles[0] :])[: len(shells)]]
    return [sums[0].reshape(-1), *sums[1:]], torch.stack(bounds)


def _lane_network(network: tuple[Tensor, ...], packed: int) -> LaneNetwork:
    """The network with its last layer (H, ...) as (blocks, ..., 8), repeated for `packed` rows of hidden."""
    from quatsphere.kernels.cpu.loops.field import FieldSizes

    hidden, inner, weight, bias = network
    heads, width = weight.shape[:2]
    if width % 2:
        raise ConfigError(
            f"the fused perturbation takes pairs of hidden numbers: got {width} per head; use the plain one"
        )
    lanes = lane_heads(heads, packed).numpy()

    def blocks(tensor: Tensor) -> Any:
        return array(tensor)[lanes].reshape(len(lanes) // LANES, LANES, -1).transpose(0, 2, 1).reshape(-1)

    sizes = FieldSizes(hidden.shape[0], 0, heads * packed, width, hidden.shape[1], 0, packed)
    return LaneNetwork(sizes, (flat(hidden), np.concatenate([array(inner)] * packed), blocks(weight), blocks(bias)))


def _arguments(network: LaneNetwork, base: Tensor, out: Tensor, mixing: Any, bound: float) -> tuple[Any, float, Any]:
    """(FieldSizes, bound, FieldArrays) of a shell; mixing = (indices, weights, terms), None without interpolation."""
    from quatsphere.kernels.cpu.loops.field import FieldArrays

    sizes, vertices = network.sizes, len(base)
    indices, weights, terms = mixing or (NO_INDICES, network.arrays[1][:0], 0)
    given = sizes.rows if mixing is None else len(indices) // terms
    if given != vertices or len(weights) != len(indices):
        raise ConfigError(f"a shell of {vertices} vertices needs as many rows of hidden or of a mixture: got {given}")
    sizes = sizes._replace(vertices=vertices // sizes.packed, terms=terms)
    return sizes, bound, FieldArrays(*network.arrays, flat(base), flat(out), indices, weights)


def _flat_mixing(mixing: Any, network: LaneNetwork) -> tuple[Any, Any, int] | None:
    """(indices, weights, terms) of an interpolation, None without one."""
    indices, weights = mixing
    if indices is None or weights is None or not indices.numel():
        return None
    return flat(indices), flat(weights).astype(network.arrays[1].dtype, copy=False), indices.shape[1]


def _packed_rows(source: Tensor, target: Tensor | None) -> int:
    """Rows whose heads fill a vector together; both shells have a multiple of it."""
    counts, heads = [len(base) for base in (source, target) if base is not None], source.shape[1]
    return max(n for n in range(1, max(1, LANES // heads) + 1) if all(count % n == 0 for count in counts))


def _from_lanes(tensor: Tensor, heads: int, packed: int) -> Tensor:
    """(blocks, ..., 8) -> (H, ...), summed over the packed rows."""
    by_head = tensor.movedim(-1, 1).flatten(0, 1)
    if packed == 1:
        return by_head[:heads].contiguous()
    return by_head[: heads * packed].unflatten(0, (packed, heads)).sum(0)


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
