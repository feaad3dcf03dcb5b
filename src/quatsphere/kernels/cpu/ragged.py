"""Operators of the fused quaternion attention over sorted edge lists on CPUs."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.kernels.caches import GraphCache
from quatsphere.kernels.cpu.arrays import check_neighbours, flat, flat_mask, sum_in_order
from quatsphere.kernels.cpu.loops import LANES
from quatsphere.kernels.graphs import EdgeList
from quatsphere.kernels.inputs import ONE_WAY, ROUTINGS, TRANSPORTS
from quatsphere.kernels.ragged import RaggedInputs, attention_over_edges
from quatsphere.torch_operators import backward_operator, differentiated_again, operator, plain_gradients

NAMES = (*TRANSPORTS, *ONE_WAY)
SIDES = {"lift": ("sandwich", "identity", "sandwich"), "lower": ("identity", "sandwich", "sandwich")}
"""Transport of sources, targets and edge rotations where they differ."""


def ragged_attention(inputs: RaggedInputs) -> Tensor:
    """lower_i(Σ_j C_ij rotate_ij(lift_j(x_j))) -> (B, T, H, Q, 4) in one pass over the edges."""
    u = inputs.edge_rotation
    return attend_ragged(
        inputs.target_field,
        inputs.source_field,
        inputs.features,
        inputs.graph.rows,
        inputs.graph.source,
        u,
        inputs.beta,
        inputs.keep,
        inputs.target_directions,
        inputs.source_directions,
        ROUTINGS.index(inputs.routing),
        NAMES.index(inputs.transport),
        inputs.keep_scale,
        u is not None and u.requires_grad,
    )[0]


@operator("attend_ragged", "cpu")
def attend_ragged(
    target_field: Tensor,
    source_field: Tensor,
    features: Tensor,
    rows: Tensor,
    source: Tensor,
    rotation: Tensor | None,
    beta: Tensor,
    keep: Tensor | None,
    target_directions: Tensor | None,
    source_directions: Tensor | None,
    routing: int,
    transport: int,
    keep_scale: float,
    rotation_grad: bool,
) -> tuple[Tensor, Tensor]:
    """`ragged_attention` and, for its gradient, the state of the softmax (B, blocks of heads, T, 2, 8).

    routing and transport are indices into ROUTINGS and NAMES; `rotation_grad` says whether the gradient includes that
    of the rotations.
    """
    from quatsphere.kernels.cpu.loops.ragged import run_ragged_attention

    tensors = (target_field, source_field, features, rows, source, rotation, beta, keep)
    inputs, sizes = _arguments((*tensors, target_directions, source_directions), routing, transport, keep_scale)
    out, state = _new_outputs(target_field, features)
    run_ragged_attention(inputs, sizes, _parts(rows), flat(out), flat(state))
    return out, state


@backward_operator(attend_ragged, ("gradient", "out", "state"))
def attend_ragged_backward(gradient: Tensor, out: Tensor, state: Tensor, *inputs: Any) -> list[Tensor]:
    """Gradients of (target_field, source_field, features, rotation, beta, target_directions, source_directions)."""
    from quatsphere.kernels.cpu.loops.attention_backward import AttentionGrads
    from quatsphere.kernels.cpu.loops.ragged_backward import TargetState, plan_backward, run_ragged_backward

    tensors, (routing, transport, keep_scale, rotation_grad) = inputs[:10], inputs[10:]
    target_field, source_field, features, rows, source, rotation, beta, *_ = tensors
    arrays, sizes = _arguments(tensors, routing, transport, keep_scale)
    count, parts = sizes.sources, _parts(rows)
    plan = _plans.get((source, rows), count, lambda: plan_backward(flat(rows), flat(source), count, parts))
    items = sizes.images * -(-sizes.heads // LANES)
    direction_items = items if ROUTINGS[routing] == "geometric" else 0
    into = (
        *(x.new_empty(x.shape) for x in (target_field, source_field, features)),
        features.new_empty(items, len(parts.chunks) - 1, LANES),
        features.new_empty(direction_items, sizes.targets, 3),
        features.new_empty(direction_items, sizes.sources, 3),
        features.new_empty(0),
    )
    rotated = rotation.new_zeros(rotation.shape) if rotation_grad else features.new_empty(0)
    outputs = TargetState(flat(out), flat(gradient), flat(state))
    run_ragged_backward(arrays, sizes, plan, outputs, AttentionGrads(*map(flat, into)), flat(rotated))
    per_head = sum_in_order(into[3], 1).view(sizes.images, -(-sizes.heads // LANES) * LANES)[:, : sizes.heads]
    beta_gradient = sum_in_order(per_head, 0).to(beta.dtype)
    return [*into[:3], rotated, beta_gradient, sum_in_order(into[4], 0), sum_in_order(into[5], 0)]


_cuts, _plans = GraphCache(), GraphCache()


def _parts(rows: Tensor) -> Any:
    """`Parts` of the targets."""
    from quatsphere.kernels.cpu.loops.ragged import cut_rows

    return _cuts.get((rows,), None, lambda: cut_rows(flat(rows)))


def _new_outputs(target_field: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    B, T, H, _ = target_field.shape
    return features.new_empty(B, T, *features.shape[2:]), features.new_empty(B, -(-H // LANES), T, 2, LANES)


@attend_ragged.register_fake
def _(target_field: Tensor, source_field: Tensor, features: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _new_outputs(target_field, features)


@attend_ragged_backward.register_fake
def _(gradient: Tensor, out: Tensor, state: Tensor, *inputs: Any) -> list[Tensor]:
    target_field, source_field, features, _, _, rotation, beta, *_ = inputs
    rotated = rotation if inputs[13] else features.new_empty(0)
    directions = (beta.new_empty(target_field.shape[1], 3), beta.new_empty(source_field.shape[1], 3))
    written = (target_field, source_field, features, rotated, beta)
    return [*(x.new_empty(x.shape) for x in written), *directions]


def plain_ragged(*inputs: Any) -> Tensor:
    """`attend_ragged` in plain torch."""
    targets, sources, features, rows, source, rotation, beta, keep, *directions = inputs[:10]
    routing, transport, keep_scale, _ = inputs[10:]
    target = torch.arange(len(rows) - 1).repeat_interleave(rows[1:] - rows[:-1])
    graph, rules = EdgeList(rows, source, target), (ROUTINGS[routing], NAMES[transport])
    return attention_over_edges(
        RaggedInputs(
            targets, sources, features, graph, beta, *rules, keep, directions[0], directions[1], keep_scale, rotation
        )
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *inputs[:10])
    ctx.constants = inputs[10:]


def _backward(ctx: Any, gradient: Tensor | None, *rest: Any) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 14
    if differentiated_again():
        return plain_gradients(plain_ragged, (*ctx.saved_tensors[2:], *ctx.constants), gradient)
    found = attend_ragged_backward(gradient, *ctx.saved_tensors, *ctx.constants)
    by_input = dict(zip((0, 1, 2, 5, 6, 8, 9), found, strict=True))
    return tuple(by_input.get(i) if needed else None for i, needed in enumerate(ctx.needs_input_grad))


attend_ragged.register_autograd(_backward, setup_context=_save)


def _arguments(tensors: tuple[Any, ...], routing: int, transport: int, keep_scale: float) -> tuple[Any, Any]:
    """(RaggedArrays, RaggedSizes) of the loops, which do not check: every index is checked here."""
    from quatsphere.kernels.cpu.loops.ragged import RaggedArrays, RaggedSizes

    target_field, _, features, rows, source, rotation, beta, keep, *_ = tensors
    B, S, H, Q, _ = features.shape
    T, E = target_field.shape[1], len(source)
    check_neighbours(source, S)
    if rows.shape != (T + 1,) or int(rows[0]) != 0 or int(rows[-1]) != E or bool((rows[1:] < rows[:-1]).any()):
        raise ConfigError(f"row_pointer must have {T + 1} entries that grow from 0 to the {E} edges")
    name = NAMES[transport]
    lift, lower, between = (TRANSPORTS.index(side) for side in SIDES.get(name, (name, name, name)))
    arrays = [flat(features.new_empty(0) if x is None else x) for x in tensors]
    arrays[6], arrays[7] = flat(F.pad(beta, (0, -H % LANES))), flat_mask(keep, B * E * H)
    heads = 0 if rotation is None else rotation.shape[1]
    sizes = RaggedSizes(B, T, S, E, H, Q, routing, lift, lower, between, heads, keep is not None, keep_scale)
    return RaggedArrays(*arrays[:3], *arrays[4:]), sizes
