"""From tensors to launched Triton kernels: the tables they share and how the work is cut into programs."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from quatsphere.kernels import triton_attention, triton_attention_backward
from quatsphere.kernels.inputs import ROUTINGS

TILE = 512
"""Numbers of one component that a program holds (items x slots x channels): on sm_80 no kernel spills registers."""
TOLD = 16
"""Listeners of a source that a program looks at together."""
ACCUMULATE = {torch.float32: tl.float32, torch.float64: tl.float64}


class Inputs(NamedTuple):
    """The tensors of a problem, contiguous; an absent one is beta once more and is never read."""

    target_field: Tensor
    source_field: Tensor
    features: Tensor
    neighbours: Tensor
    beta: Tensor
    keep: Tensor
    target_directions: Tensor
    source_directions: Tensor


class Sizes(NamedTuple):
    """B, T, S, k, H, Q."""

    images: int
    targets: int
    sources: int
    neighbours: int
    heads: int
    channels: int


class Plan(NamedTuple):
    """A problem and the constants its kernels are compiled with."""

    inputs: Inputs
    sizes: Sizes
    keep: bool
    rules: dict[str, Any]
    dtype: torch.dtype

    def cut(self, vertices: int, slots: int) -> tuple[tuple[int], int, dict[str, Any]]:
        """(grid, number of items, constants) of a kernel over all heads of so many vertices per image."""
        slots, channels = triton.next_power_of_2(slots), triton.next_power_of_2(self.sizes.channels)
        items, count = max(1, TILE // (slots * channels)), self.sizes.images * vertices * self.sizes.heads
        blocks = {"N": items, "SLOTS": slots, "CHANNELS": channels}
        return (triton.cdiv(count, items),), count, {**blocks, **self.rules}

    def table(self, *shape: int) -> Tensor:
        """An empty (B, *shape) in the accumulating type."""
        return self.inputs.features.new_empty(self.sizes.images, *shape, dtype=self.dtype)


def make_plan(tensors: tuple[Tensor | None, ...], routing: int, transport: int, dtype: torch.dtype) -> Plan:
    """Sizes, rules and contiguous tensors of a problem whose sums are in `dtype`."""
    _, _, features, neighbours, beta, keep, *_ = tensors
    assert features is not None
    assert neighbours is not None
    assert beta is not None
    inputs = Inputs(*((beta if tensor is None else tensor).contiguous() for tensor in tensors))
    B, S, H, Q, _ = features.shape
    T, k = neighbours.shape
    check_neighbours(neighbours, S)
    rules = {"ROUTING": routing, "TRANSPORT": transport, "ACCUMULATE": ACCUMULATE[dtype], "enable_fp_fusion": True}
    return Plan(inputs, Sizes(B, T, S, k, H, Q), keep is not None, rules, dtype)


def check_neighbours(neighbours: Tensor, sources: int) -> None:
    """Kernels read wherever an index points: stop at one that is no source, on a GPU without waiting for it."""
    inside = ((neighbours >= 0) & (neighbours < sources)).all()
    torch._assert_async(inside, f"neighbours must lie in 0..{sources - 1}, the source vertices")


def lift_sources(plan: Plan) -> tuple[Tensor, Tensor]:
    """(lifted features (B, S, 4, H, Q), keys (B, S, 4, H))."""
    inputs, (_, _, S, _, H, Q) = plan.inputs, plan.sizes
    lifted, keys = plan.table(S, 4, H, Q), plan.table(S, 4, H)
    grid, count, constants = plan.cut(S, 1)
    triton_attention.lift_sources[grid](
        inputs.source_field, inputs.features, inputs.source_directions, lifted, keys, count, S, H, Q, **constants
    )
    return lifted, keys


def attend(tensors: tuple[Tensor | None, ...], routing: int, transport: int, out: Tensor) -> None:
    """Lift, route, sum and lower into `out` (B, T, H, Q, 4)."""
    with torch.cuda.device_of(out):
        plan = make_plan(tensors, routing, transport, out.dtype)
        inputs, (_, T, S, k, H, Q) = plan.inputs, plan.sizes
        lifted, keys = lift_sources(plan)
        grid, count, constants = plan.cut(T, k)
        triton_attention.attend[grid](
            inputs.target_field, lifted, keys, inputs.neighbours, inputs.beta, inputs.keep, inputs.target_directions,
            out, count, T, S, k, H, Q, KEEP=plan.keep, **constants,
        )  # fmt: skip


def attend_backward(
    tensors: tuple[Tensor | None, ...],
    routing: int,
    transport: int,
    outputs: tuple[Tensor, Tensor],
    into: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor],
) -> None:
    """Gradients of fields, features, beta and directions into `into`, from (output gradient, output)."""
    with torch.cuda.device_of(outputs[1]):
        plan = make_plan(tensors, routing, transport, outputs[1].dtype)
        lifted, keys = lift_sources(plan)
        tables, beta_parts, target_parts = _target_gradients(plan, outputs, lifted, keys, into[0])
        source_parts = _source_gradients(plan, lifted, tables, into[1], into[2])
        if ROUTINGS[routing] != "uniform":
            into[3].copy_(beta_parts.sum((0, 1), dtype=torch.float64))
        if ROUTINGS[routing] == "geometric":
            into[4].copy_(target_parts.sum((0, 2), dtype=torch.float64))
            into[5].copy_(source_parts.sum((0, 2), dtype=torch.float64))


def _target_gradients(
    plan: Plan, outputs: tuple[Tensor, Tensor], lifted: Tensor, keys: Tensor, field_gradient: Tensor
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Tensor, Tensor]:
    """(what sources will ask for: lifted gradient, keys, kept weights, slopes; parts of dβ; parts of dp_i)."""
    inputs, (_, T, S, k, H, Q) = plan.inputs, plan.sizes
    tables = plan.table(T, 4, H, Q), plan.table(T, 4, H), plan.table(T, k, H), plan.table(T, k, H)
    beta_parts, direction_parts = plan.table(T, H), plan.table(T, H, 3)
    grid, count, constants = plan.cut(T, k)
    triton_attention_backward.target_gradients[grid](
        outputs[0].contiguous(), outputs[1].contiguous(), inputs.target_field, lifted, keys, inputs.neighbours,
        inputs.beta, inputs.keep, inputs.target_directions, *tables, field_gradient, beta_parts, direction_parts,
        count, T, S, k, H, Q, KEEP=plan.keep, **constants,
    )  # fmt: skip
    return tables, beta_parts, direction_parts


def _source_gradients(
    plan: Plan,
    lifted: Tensor,
    tables: tuple[Tensor, Tensor, Tensor, Tensor],
    field_gradient: Tensor,
    features_gradient: Tensor,
) -> Tensor:
    """dx_j and dq_j into their places; the parts of dp_j (B, S, H, 3)."""
    inputs, (_, T, S, k, H, Q) = plan.inputs, plan.sizes
    offsets, edges = reverse_edges(inputs.neighbours, S)
    direction_parts = plan.table(S, H, 3)
    grid, count, constants = plan.cut(S, TOLD)
    triton_attention_backward.source_gradients[grid](
        inputs.source_field, lifted, inputs.source_directions, offsets, edges, *tables,
        features_gradient, field_gradient, direction_parts, count, T, S, k, H, Q, **constants,
    )  # fmt: skip
    return direction_parts


def reverse_edges(neighbours: Tensor, sources: int) -> tuple[Tensor, Tensor]:
    """(offsets (S + 1,), edges (T k,)): the edges i k + slot into source j are edges[offsets[j] : offsets[j + 1]]."""
    ends, edges = neighbours.reshape(-1).sort(stable=True)
    return torch.searchsorted(ends, torch.arange(sources + 1, device=ends.device)), edges
