"""Launches of the Triton kernels: shared tables and the split of the work into programs."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from quatsphere.kernels.gpu import kernels
from quatsphere.kernels.inputs import ROUTINGS

ELEMENTS_PER_PROGRAM = 512
"""Elements of one component per program (items x slots x channels), for which no kernel spills registers on sm_80."""
EDGES_PER_ROUND = 16
"""Incoming edges of a source that a program processes together."""
ACCUMULATE = {torch.float32: tl.float32, torch.float64: tl.float64}


class LaunchInputs(NamedTuple):
    """Contiguous input tensors; `beta` stands for absent ones, which are never read."""

    target_field: Tensor
    source_field: Tensor
    features: Tensor
    neighbours: Tensor
    beta: Tensor
    keep: Tensor
    target_directions: Tensor
    source_directions: Tensor


class LaunchSizes(NamedTuple):
    """B, T, S, k, H, Q."""

    images: int
    targets: int
    sources: int
    neighbours: int
    heads: int
    channels: int


class LaunchPlan(NamedTuple):
    """Inputs and the constants that the kernels are compiled with."""

    inputs: LaunchInputs
    sizes: LaunchSizes
    keep: bool
    constants: dict[str, Any]
    dtype: torch.dtype

    def grid(self, vertices: int, slots: int) -> tuple[tuple[int], int, dict[str, Any]]:
        """(grid, number of items, constants) of a kernel over all heads of `vertices` vertices per image."""
        slots, channels = triton.next_power_of_2(slots), triton.next_power_of_2(self.sizes.channels)
        items = max(1, ELEMENTS_PER_PROGRAM // (slots * channels))
        count = self.sizes.images * vertices * self.sizes.heads
        blocks = {"N": items, "SLOTS": slots, "CHANNELS": channels}
        return (triton.cdiv(count, items),), count, {**blocks, **self.constants}

    def table(self, *shape: int) -> Tensor:
        """Uninitialised table (B, *shape) in the accumulation type."""
        return self.inputs.features.new_empty(self.sizes.images, *shape, dtype=self.dtype)


def make_launch_plan(tensors: tuple[Any, ...], routing: int, transport: int, dtype: torch.dtype) -> LaunchPlan:
    """Plan of an attention problem with sums in `dtype`."""
    _, _, features, neighbours, beta, keep, *_ = tensors
    inputs = LaunchInputs(*((beta if tensor is None else tensor).contiguous() for tensor in tensors))
    B, S, H, Q, _ = features.shape
    T, k = neighbours.shape
    inside = ((neighbours >= 0) & (neighbours < S)).all()  # checked by the device, without synchronisation
    torch._assert_async(inside, f"neighbours must lie in 0..{S - 1}, the source vertices")
    constants = {"ROUTING": routing, "TRANSPORT": transport, "ACCUMULATE": ACCUMULATE[dtype], "enable_fp_fusion": True}
    return LaunchPlan(inputs, LaunchSizes(B, T, S, k, H, Q), keep is not None, constants, dtype)


def launch_attention(tensors: tuple[Any, ...], routing: int, transport: int, out: Tensor) -> None:
    """Lift, route, sum and lower into `out` (B, T, H, Q, 4)."""
    with torch.cuda.device_of(out):
        plan = make_launch_plan(tensors, routing, transport, out.dtype)
        inputs, (_, T, S, k, H, Q) = plan.inputs, plan.sizes
        lifted, keys = _lift_sources(plan)
        grid, count, constants = plan.grid(T, k)
        kernels.attend_kernel[grid](
            inputs.target_field, lifted, keys, inputs.neighbours, inputs.beta, inputs.keep, inputs.target_directions,
            out, count, T, S, k, H, Q, KEEP=plan.keep, **constants,
        )  # fmt: skip


def launch_attention_backward(
    tensors: tuple[Any, ...], routing: int, transport: int, outputs: tuple[Tensor, Tensor], into: list[Tensor]
) -> None:
    """Gradients of fields, features, beta and directions into `into`, from (output gradient, output)."""
    with torch.cuda.device_of(outputs[1]):
        plan = make_launch_plan(tensors, routing, transport, outputs[1].dtype)
        lifted, keys = _lift_sources(plan)
        tables, beta_parts, target_parts = _target_gradients(plan, outputs, lifted, keys, into[0])
        source_parts = _source_gradients(plan, lifted, tables, into[1], into[2])
        if ROUTINGS[routing] != "uniform":
            into[3].copy_(beta_parts.sum((0, 1), dtype=torch.float64))
        if ROUTINGS[routing] == "geometric":
            into[4].copy_(target_parts.sum((0, 2), dtype=torch.float64))
            into[5].copy_(source_parts.sum((0, 2), dtype=torch.float64))


def _lift_sources(plan: LaunchPlan) -> tuple[Tensor, Tensor]:
    """(lifted features (B, S, 4, H, Q), keys (B, S, 4, H))."""
    inputs, (_, _, S, _, H, Q) = plan.inputs, plan.sizes
    lifted, keys = plan.table(S, 4, H, Q), plan.table(S, 4, H)
    grid, count, constants = plan.grid(S, 1)
    kernels.lift_sources_kernel[grid](
        inputs.source_field, inputs.features, inputs.source_directions, lifted, keys, count, S, H, Q, **constants
    )
    return lifted, keys


def _target_gradients(
    plan: LaunchPlan, outputs: tuple[Tensor, Tensor], lifted: Tensor, keys: Tensor, field_gradient: Tensor
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Tensor, Tensor]:
    """(tables for the sources: lifted gradient, keys, kept weights, score gradients; parts of dβ; parts of dp_i)."""
    inputs, (_, T, S, k, H, Q) = plan.inputs, plan.sizes
    tables = plan.table(T, 4, H, Q), plan.table(T, 4, H), plan.table(T, k, H), plan.table(T, k, H)
    beta_parts, direction_parts = plan.table(T, H), plan.table(T, H, 3)
    grid, count, constants = plan.grid(T, k)
    kernels.target_gradients_kernel[grid](
        outputs[0].contiguous(), outputs[1].contiguous(), inputs.target_field, lifted, keys, inputs.neighbours,
        inputs.beta, inputs.keep, inputs.target_directions, *tables, field_gradient, beta_parts, direction_parts,
        count, T, S, k, H, Q, KEEP=plan.keep, **constants,
    )  # fmt: skip
    return tables, beta_parts, direction_parts


def _source_gradients(
    plan: LaunchPlan,
    lifted: Tensor,
    tables: tuple[Tensor, Tensor, Tensor, Tensor],
    field_gradient: Tensor,
    features_gradient: Tensor,
) -> Tensor:
    """Write dx_j and dq_j; return the parts of dp_j (B, S, H, 3)."""
    inputs, (_, T, S, k, H, Q) = plan.inputs, plan.sizes
    ends, edges = inputs.neighbours.reshape(-1).sort(
        stable=True
    )  # the edges into j are edges[offsets[j]:offsets[j + 1]]
    offsets = torch.searchsorted(ends, torch.arange(S + 1, device=ends.device))
    direction_parts = plan.table(S, H, 3)
    grid, count, constants = plan.grid(S, EDGES_PER_ROUND)
    kernels.source_gradients_kernel[grid](
        inputs.source_field, lifted, inputs.source_directions, offsets, edges, *tables,
        features_gradient, field_gradient, direction_parts, count, T, S, k, H, Q, **constants,
    )  # fmt: skip
    return direction_parts
