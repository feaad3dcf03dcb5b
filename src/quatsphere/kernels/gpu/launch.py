"""Launches of the attention kernels: shared tables, blocks and warps."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from quatsphere.kernels.gpu.kernels import attention, attention_backward
from quatsphere.kernels.inputs import ROUTINGS
from quatsphere.kernels.neighbour_ops import reversed_edges

CHUNK, BACKWARD_CHUNK, DOT_CHUNK = 16, 4, 8
"""Neighbours that a program processes together, the last for the dot product; with these no kernel spills registers."""
LIFTED = 1024
"""Numbers that a program lifts."""
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


class Modes(NamedTuple):
    """Indices of the rules, the site of a hashed mask, and the scale of kept weights."""

    routing: int
    transport: int
    site: int
    keep_scale: float

    @property
    def geometric(self) -> bool:
        """True if scores depend on directions."""
        return ROUTINGS[self.routing] == "geometric"


class LaunchSizes(NamedTuple):
    """B, T, S, k, H, Q."""

    images: int
    targets: int
    sources: int
    neighbours: int
    heads: int
    channels: int


def mask_arguments(keep: Tensor | None, site: int, keep_scale: float) -> tuple[tuple[int, int], dict[str, Any]]:
    """((site, threshold), constants) of a dropout mask: a bool tensor, or the int64 keys (B,) of a hashed one."""
    dropped = dropped_by(keep_scale)
    mode = 0 if keep is None else 1 if keep.dtype == torch.bool else 2
    return (site, dropped - 2**15), {"KEEP": mode, "KEEP_SCALE": 1.0 if keep is None else keep_scale}


def dropped_by(keep_scale: float) -> int:
    """Dropout rate in units of 2**-16 whose survivors have this scale (`randomness.keep_scale`)."""
    return 2**16 - round(2**16 / keep_scale)


class LaunchPlan(NamedTuple):
    """Inputs and the constants that the kernels are compiled with."""

    inputs: LaunchInputs
    sizes: LaunchSizes
    modes: Modes
    mask: tuple[tuple[int, int], dict[str, Any]]
    dtype: torch.dtype

    @property
    def rules(self) -> dict[str, Any]:
        """Constants of all kernels."""
        rules = {"ROUTING": self.modes.routing, "TRANSPORT": self.modes.transport}
        sizes = {"H": self.sizes.heads, "Q": self.sizes.channels}
        return {**rules, **sizes, "ACCUMULATE": ACCUMULATE[self.dtype]}

    def blocks(self, chunk: int) -> dict[str, Any]:
        """Constants of the kernels of vertices, with `chunk` edges at a time in as few warps as hold them."""
        heads, channels = (triton.next_power_of_2(n) for n in (self.sizes.heads, self.sizes.channels))
        row = heads * 4 * channels
        chunk = max(1, min(triton.next_power_of_2(self.sizes.neighbours), chunk, 2**15 // row))
        warps = min(8, max(1, chunk * row // 2**12))
        blocks = {"HEADS": heads, "CHANNELS": channels, "CHUNK": chunk, "K": self.sizes.neighbours}
        return {**self.rules, **blocks, "num_warps": warps}

    def lifting(self, count: int) -> tuple[tuple[int], dict[str, Any]]:
        """Grid and constants of the kernels that lift `count` heads."""
        channels = triton.next_power_of_2(self.sizes.channels)
        items = max(1, LIFTED // (4 * channels))
        return (triton.cdiv(count, items),), {"CHANNELS": channels, "N": items, "num_warps": 4, **self.rules}

    def table(self, *shape: int) -> Tensor:
        """Uninitialised table (B, *shape) in the accumulation type."""
        return self.inputs.features.new_empty(self.sizes.images, *shape, dtype=self.dtype)

    @property
    def no_table(self) -> Tensor:
        """Placeholder for a table that is neither read nor written."""
        return self.inputs.beta


def make_launch_plan(tensors: tuple[Any, ...], modes: Modes, dtype: torch.dtype) -> LaunchPlan:
    """Plan of an attention problem with sums in `dtype`."""
    _, _, features, neighbours, beta, keep, *_ = tensors
    inputs = LaunchInputs(*((beta if tensor is None else tensor).contiguous() for tensor in tensors))
    B, S, H, Q, _ = features.shape
    T, k = neighbours.shape
    mask = mask_arguments(keep, modes.site, modes.keep_scale)
    return LaunchPlan(inputs, LaunchSizes(B, T, S, k, H, Q), modes, mask, dtype)


def launch_attention(
    tensors: tuple[Any, ...], modes: Modes, out: Tensor, log_sums: Tensor, lifted: Tensor | None = None
) -> None:
    """Lift, route, sum and lower into `out` (B, T, H, Q, 4); the logarithms of the softmax's sums into (B, T, H).

    `lifted` are the lifted features (B, S, H, Q, 4) if there are any yet.
    """
    with torch.cuda.device_of(out):
        plan = make_launch_plan(tensors, modes, out.dtype)
        inputs, (B, T, S, *_) = plan.inputs, plan.sizes
        sources = _lift_sources(plan) if lifted is None else (lifted, inputs.source_field)
        attention.attend_kernel[(T, B)](
            inputs.target_field, *sources, inputs.neighbours, inputs.beta, inputs.keep,
            inputs.target_directions, out, log_sums, T, S, *plan.mask[0], **plan.mask[1], **plan.blocks(CHUNK),
        )  # fmt: skip


class LiftedRows(NamedTuple):
    """Lifted features (B, S, H, Q, 4) and output gradient dz (B, T, H, Q, 4), ⟨dz, z⟩ and the log-sums (B, T, H)."""

    features: Tensor
    gradient: Tensor
    through: Tensor
    log_sums: Tensor


class StepResidual(NamedTuple):
    """Output gradient of a step's residual (B, T, d) from its own features; between shells its gate and mixing."""

    gradient: Tensor
    gate: Tensor | None = None
    indices: Tensor | None = None
    weights: Tensor | None = None


def launch_attention_backward(
    tensors: tuple[Any, ...], modes: Modes, outputs: tuple[Tensor, Tensor, Tensor], into: list[Tensor]
) -> None:
    """Gradients of fields, features, beta and directions into `into`, from (output gradient, output, log-sums)."""
    with torch.cuda.device_of(outputs[1]):
        plan = make_launch_plan(tensors, modes, outputs[1].dtype)
        lifted, keys = _lift_sources(plan)
        gradient, through, target_keys = _lift_gradient(plan, *outputs[:2])
        rows = LiftedRows(lifted, gradient, through, outputs[2].contiguous())
        beta_parts, target_parts, source_parts, _ = _launch_gradients(plan, rows, (keys, target_keys), into)
        if ROUTINGS[modes.routing] != "uniform":
            into[3].copy_(beta_parts.sum((0, 1), dtype=torch.float64))
        if modes.geometric:
            into[4].copy_(target_parts.sum((0, 2), dtype=torch.float64))
            into[5].copy_(source_parts.sum((0, 2), dtype=torch.float64))


def launch_step_attention_backward(
    tensors: tuple[Any, ...], modes: Modes, rows: LiftedRows, into: list[Tensor], residual: StepResidual
) -> tuple[Tensor, Tensor]:
    """Gradients of fields and features, with that of the residual, into `into`.

    Returns the parts (B, T, H) of the gradient of beta, except for `uniform`, and (B, S) of that of the gate.
    """
    with torch.cuda.device_of(rows.gradient):
        plan = make_launch_plan(tensors, modes, rows.gradient.dtype)
        keys = (plan.inputs.source_field, plan.inputs.target_field)
        beta_parts, _, _, gate_parts = _launch_gradients(plan, rows, keys, into, residual)
    return beta_parts, gate_parts


def _lift_sources(plan: LaunchPlan) -> tuple[Tensor, Tensor]:
    """(lifted features (B, S, H, Q, 4), keys (B, S, H, 4)); keys are the field itself except for `geometric`."""
    inputs, (B, _, S, _, H, Q) = plan.inputs, plan.sizes
    lifted, keys = plan.table(S, H, Q, 4), plan.table(S, H, 4) if plan.modes.geometric else inputs.source_field
    grid, blocks = plan.lifting(B * S * H)
    attention.lift_sources_kernel[grid](
        inputs.source_field, inputs.features, inputs.source_directions, lifted, keys, B * S * H, S, **blocks
    )
    return lifted, keys


def _lift_gradient(plan: LaunchPlan, gradient: Tensor, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(lifted output gradient, its inner products with the output (B, T, H), keys of the targets (B, T, H, 4))."""
    inputs, (B, T, _, _, H, Q) = plan.inputs, plan.sizes
    keys = plan.table(T, H, 4) if plan.modes.geometric else inputs.target_field
    lifted, through = plan.table(T, H, Q, 4), plan.table(T, H)
    grid, blocks = plan.lifting(B * T * H)
    attention.lift_gradient_kernel[grid](
        inputs.target_field, gradient.contiguous(), out.contiguous(), inputs.target_directions, lifted, through, keys,
        B * T * H, T, **blocks,
    )  # fmt: skip
    return lifted, through, keys


def _launch_gradients(
    plan: LaunchPlan,
    rows: LiftedRows,
    keys: tuple[Tensor, Tensor],
    into: list[Tensor],
    residual: StepResidual | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Write dq_i, dq_j and dx_j; return the parts of dβ (B, T, H), dp_i, dp_j (B, V, H, 3) and the gate (B, S)."""
    inputs, (B, T, S, _, H, _), none = plan.inputs, plan.sizes, plan.no_table
    directions = (plan.table(T, H, 3), plan.table(S, H, 3)) if plan.modes.geometric else (none, none)
    beta_parts, gate_parts, mode, terms = plan.table(T, H), none, 0, 1
    rest: tuple[Any, ...] = (none,) * 6
    if residual is not None:
        mode, rest = 1, (residual.gradient, *rest[1:])
        if residual.gate is not None and residual.indices is not None and residual.weights is not None:
            gate_parts, mode, terms = plan.table(S), 2, residual.indices.shape[1]
            reverse = (*reversed_edges(residual.indices, S), residual.weights.contiguous())
            rest = (residual.gradient, residual.gate, gate_parts, *reverse)
    attention_backward.attention_gradients_kernel[(T + S, B)](
        inputs.target_field, inputs.source_field, rows.features, keys[0], rows.gradient, rows.log_sums, rows.through,
        keys[1], inputs.neighbours, *reversed_edges(inputs.neighbours, S), inputs.beta, inputs.keep,
        inputs.target_directions, inputs.source_directions, *into[:3], beta_parts, *directions, *rest, T, S,
        *plan.mask[0], RESIDUAL=mode, TERMS=terms, **plan.mask[1], **plan.blocks(BACKWARD_CHUNK),
    )  # fmt: skip
    return beta_parts, *directions, gate_parts
