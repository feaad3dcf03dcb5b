"""A whole step of QSV on CPUs (Numba): one torch operator around the loops of `numba_step`, and one for its gradient.

The tokens of a step are read three times: by the perturbation network, by the kernel and by the residual. In one
operator their three gradients are added up where they arise instead of in passes of their own.
"""

from typing import Any

import torch
from torch import Tensor

from quatsphere.kernels import numba_cpu, numba_cpu_field, numba_cpu_hamilton, numba_cpu_resample
from quatsphere.kernels.numba_cpu import flat, flat_mask


@torch.library.custom_op("quatsphere::step", mutates_args=(), device_types="cpu")
def step(
    tokens: Tensor,
    first: Tensor,
    inner: Tensor,
    weight: Tensor,
    bias: Tensor,
    bounds: Tensor,
    source: Tensor,
    target: Tensor | None,
    beta: Tensor,
    up: Tensor,
    down: Tensor,
    gate: Tensor | None,
    neighbours: Tensor,
    indices: Tensor | None,
    shares: Tensor | None,
    keep_edges: Tensor | None,
    keep_update: Tensor | None,
    edge_scale: float,
    update_scale: float,
    routing: int,
    transport: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """keep_update FFN(kernel(x)) + residual for tokens x (B, S, d): first (d, d), inner, weight and bias are the
    perturbation network, source and target the bases of the shells with their bounds, up and down the Hamilton block,
    indices and shares with the gate what a target has of the shell before. Within a shell there is no target, no
    mixture and no gate. Beside the result (B, T, d) what the gradient needs: the network's rows (B, S, d), both fields
    (the second empty within a shell) and the aggregate (B, T, d)."""
    from quatsphere.kernels import numba_step as loops

    (B, _, d), (T, _) = tokens.shape, neighbours.shape
    rows = torch.mm(tokens.flatten(0, 1), first.t()).view(tokens.shape)
    fields = numba_cpu_field.empty_fields(tokens, source, target)
    aggregated, out = tokens.new_empty(B, T, d), tokens.new_empty(B, T, d)
    shells = numba_cpu_field.shells_of((rows, inner, weight, bias), bounds, (source, target), fields, (indices, shares))
    features = tokens.unflatten(2, (beta.shape[0], -1, 4))
    tensors = (fields[0 if target is None else 1], fields[0], features, neighbours, beta, keep_edges, None, None)
    inputs, sizes = numba_cpu.arguments(tensors, routing, transport, edge_scale)
    widths, matrices = numba_cpu_hamilton.arguments(B * T, up, down, keep_update is not None, update_scale)
    onto = numba_cpu_resample.onto_of(tokens, T, indices, None if gate is None or shares is None else gate * shares)
    post = loops.Post(widths, matrices, flat_mask(keep_update, out.numel()), onto)
    ends = loops.Shell(*shells[0]), loops.Shell(*shells[1])
    loops.propagate_all(loops.StepProblem(ends, inputs, sizes, post), flat(aggregated), flat(out))
    return out, rows, fields[0], fields[1], aggregated


@torch.library.custom_op("quatsphere::step_backward", mutates_args=(), device_types="cpu")
def step_backward(
    gradient: Tensor,
    rows: Tensor,
    source_field: Tensor,
    target_field: Tensor,
    aggregated: Tensor,
    tokens: Tensor,
    first: Tensor,
    inner: Tensor,
    weight: Tensor,
    bias: Tensor,
    bounds: Tensor,
    source: Tensor,
    target: Tensor | None,
    beta: Tensor,
    up: Tensor,
    down: Tensor,
    gate: Tensor | None,
    neighbours: Tensor,
    indices: Tensor | None,
    shares: Tensor | None,
    keep_edges: Tensor | None,
    keep_update: Tensor | None,
    edge_scale: float,
    update_scale: float,
    routing: int,
    transport: int,
) -> list[Tensor]:
    """Gradients of the first twelve arguments of `step`, those of an absent target or gate empty."""
    heads, nothing = beta.shape[0], tokens.new_empty(0)
    by_head, quaternions, within = (heads, -1), (heads, -1, 4), target is None
    there, up_gradient, down_gradient = numba_cpu_hamilton.feed_forward_backward(
        gradient.unflatten(2, by_head), aggregated.unflatten(2, by_head), up, down, keep_update, update_scale
    )
    residual = numba_cpu.told_back(gradient, tokens, indices, shares, 1.0 if gate is None else float(gate))
    field = source_field if within else target_field
    features, heard = tokens.unflatten(2, quaternions), aggregated.unflatten(2, quaternions)
    tensors = (field, source_field, features, neighbours, beta, keep_edges, None, None)
    rules = (routing, transport, edge_scale)
    felt, told, back, beta_gradient, _, _, gate_gradient = numba_cpu.differentiate(
        there.unflatten(3, (-1, 4)), heard, tensors, rules, residual
    )
    found = numba_cpu_field.perturb_backward(
        told.add_(felt) if within else told,
        nothing if within else felt,
        rows, inner, weight, bias, bounds, source, target, indices, shares,
    )  # fmt: skip
    back = back.flatten(2)
    row_gradient = found[0].flatten(0, 1)
    back.flatten(0, 1).addmm_(row_gradient, first)
    first_gradient = torch.mm(row_gradient.t(), tokens.flatten(0, 1))
    gates = nothing if gate is None else gate_gradient
    return [back, first_gradient, *found[1:], beta_gradient, up_gradient, down_gradient, gates]


@step.register_fake
def _(tokens: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    source, target, neighbours = rest[5], rest[6], rest[11]
    out = tokens.new_empty(tokens.shape[0], neighbours.shape[0], tokens.shape[2])
    fields = numba_cpu_field.empty_fields(tokens, source, target)
    return out, tokens.new_empty(tokens.shape), *fields, out.new_empty(out.shape)


@step_backward.register_fake
def _(gradient: Tensor, *rest: Any) -> list[Tensor]:
    return [gradient.new_empty(0 if tensor is None else tensor.shape) for tensor in rest[4:16]]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:], *inputs[:17])
    ctx.rules = inputs[17:]


def _backward(ctx: Any, gradient: Tensor | None, *rest: Any) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 21
    found = step_backward(gradient, *ctx.saved_tensors, *ctx.rules)
    needed = zip(found, ctx.needs_input_grad[:12], strict=True)
    return *(value if need else None for value, need in needed), *[None] * 9


step.register_autograd(_backward, setup_context=_save)
