"""Operators of a whole QSV step on CUDA and ROCm GPUs: Triton's kernels around torch's matrix products.

Inputs are those of the CPU's fused step. Tokens may be narrower than the base quaternions; field, attention and
Hamilton block compute in the precision of the base, and the result has the dtype of the tokens. The gradient recomputes
what is larger than a row per vertex. Masks may be keys (B,), which the kernels hash (`randomness.draw_mask`).
"""

from typing import Any

import torch
from torch import Tensor

from quatsphere.kernels import torch_backend
from quatsphere.kernels.gpu.attention import stored_mask
from quatsphere.kernels.inputs import ROUTINGS
from quatsphere.torch_operators import backward_operator, differentiated_again, operator, plain_gradients

UNIFORM = ROUTINGS.index("uniform")


@operator("step_gpu")
def step_gpu(
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
    mix_weights: Tensor | None,
    keep_edges: Tensor | None,
    keep_update: Tensor | None,
    edge_scale: float,
    update_scale: float,
    routing: int,
    transport: int,
    edge_site: int,
    update_site: int,
    products: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """keep_update FFN(attention(x)) + residual for tokens x (B, S, d), with matrix products in dtype `products`.

    Returns the result (B, T, d) and, for the gradient, the network's hidden rows (B, S, d), both fields (the second
    empty within a shell), the lifted tokens (B, S, d), the aggregate (B, T, d) and the softmax's log-sums (B, T, H).
    """
    from quatsphere.kernels.gpu.launch import Modes, launch_attention
    from quatsphere.kernels.gpu.step_launch import Dropout, LiftedFeatures, Mixture, launch_hamilton, launch_perturb

    (B, _, d), T = tokens.shape, neighbours.shape[0]
    aggregated, log_sums = source.new_empty(B, T, d), source.new_empty(B, T, len(beta))
    lifted = source.new_empty(tokens.shape)
    x, mixture, own = tokens.contiguous(), Mixture(indices, mix_weights), Mixture(None, None)
    rows = torch.mm(x.flatten(0, 1).to(products), first.to(products).t()).view(tokens.shape)
    lifting = LiftedFeatures(x, lifted, transport)
    source_field = launch_perturb(rows, (inner, weight, bias), bounds[:1], source, own, lifting)
    target_field = source_field.new_empty(0)
    if target is not None:
        target_field = launch_perturb(rows, (inner, weight, bias), bounds[1:], target, mixture)
    features, field = x.unflatten(2, (len(beta), -1, 4)), source_field if target is None else target_field
    tensors = (field, source_field, features, neighbours, beta, keep_edges, None, None)
    modes = Modes(routing, transport, edge_site, edge_scale)
    launch_attention(tensors, modes, aggregated.view(*aggregated.shape[:2], *features.shape[2:]), log_sums, lifted)
    dropout = Dropout(keep_update, update_site, update_scale)
    out = launch_hamilton(aggregated, (up, down), dropout, x, gate, mixture)
    return out, rows, source_field, target_field, lifted, aggregated, log_sums


@backward_operator(
    step_gpu, ("gradient", "rows", "source_field", "target_field", "lifted", "aggregated", "log_sums"), device=None
)
def step_gpu_backward(
    gradient: Tensor,
    rows: Tensor,
    source_field: Tensor,
    target_field: Tensor,
    lifted: Tensor,
    aggregated: Tensor,
    log_sums: Tensor,
    *inputs: Any,
) -> list[Tensor]:
    """Gradients of the first twelve arguments of `step_gpu`, empty for an absent target or gate."""
    from quatsphere.kernels.gpu import step_launch
    from quatsphere.kernels.gpu.launch import LiftedRows, Modes, StepResidual, launch_step_attention_backward

    tokens, first, *network, bounds, source, target, beta, up, down, gate, neighbours, indices, mix_weights = inputs[
        :15
    ]
    keep_edges, keep_update, edge_scale, update_scale, routing, transport, edge_site, update_site, _ = inputs[15:]
    x, out_gradient = tokens.contiguous(), gradient.contiguous()
    field = source_field if target is None else target_field
    dropout = step_launch.Dropout(keep_update, update_site, update_scale)
    through = step_launch.launch_hamilton_backward(out_gradient, aggregated, field, (up, down), dropout, transport)
    tokens_grad = torch.empty_like(x)
    into = [torch.empty_like(field), torch.empty_like(source_field), tokens_grad]
    beta_parts, gate_parts = launch_step_attention_backward(
        (field, source_field, x.unflatten(2, (len(beta), -1, 4)), neighbours, beta, keep_edges, None, None),
        Modes(routing, transport, edge_site, edge_scale),
        LiftedRows(lifted, through.lifted, through.through, log_sums),
        into,
        StepResidual(out_gradient, gate, indices, mix_weights),
    )
    shells = (source,) if target is None else (source, target)
    parts = step_launch.StepParts(network[1], len(x), shells)
    mixture = step_launch.Mixture(indices, mix_weights)
    edge_parts = (None if routing == UNIFORM else beta_parts, None if gate is None else gate_parts)
    rows_grad = step_launch.launch_step_perturb_backward(
        (into[0], into[1]), rows, tuple(network), bounds, shells, mixture, parts, edge_parts
    ).flatten(0, 1)
    found = step_launch.launch_sums(parts, through.parts, (up, down))
    flat, narrow = tokens_grad.flatten(0, 1), first.to(rows.dtype)
    first_grad = torch.mm(rows_grad.t(), x.flatten(0, 1).to(rows.dtype)).to(first.dtype)
    if flat.dtype == rows.dtype:
        flat.addmm_(rows_grad, narrow)
    else:
        flat.add_(torch.mm(rows_grad, narrow))
    empty = tokens.new_empty(0)
    bases = (*found.bases, empty)[:2]
    gate_grad = empty if gate is None else found.gate.view(gate.shape).to(gate.dtype)
    rest = (found.beta.to(beta.dtype), found.up, found.down, gate_grad)
    return [tokens_grad, first_grad, *found.network, found.bounds[: len(bounds)], *bases, *rest]


@step_gpu.register_fake
def _(tokens: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    source, target, neighbours, products = rest[5], rest[6], rest[11], rest[22]
    (B, _, d), T = tokens.shape, neighbours.shape[0]
    target_field = source.new_empty(0) if target is None else source.new_empty(B, *target.shape)
    fields = source.new_empty(B, *source.shape), target_field
    sums = source.new_empty(B, T, source.shape[1])
    return (
        tokens.new_empty(B, T, d),
        tokens.new_empty(tokens.shape, dtype=products),
        *fields,
        source.new_empty(tokens.shape),
        source.new_empty(B, T, d),
        sums,
    )


@step_gpu_backward.register_fake
def _(gradient: Tensor, *rest: Any) -> list[Tensor]:
    inputs = rest[6:18]
    return [gradient.new_empty(0) if tensor is None else tensor.new_empty(tensor.shape) for tensor in inputs]


def plain_step(*inputs: Any) -> Tensor:
    """The first result of `step_gpu` in plain torch."""
    tokens, source, beta, neighbours, sites = inputs[0], inputs[6], inputs[8], inputs[12], inputs[21:23]
    keep_edges, keep_update, edge_scale, update_scale = inputs[15:19]
    edges = stored_mask(keep_edges, sites[0], (*neighbours.shape, len(beta)), edge_scale)
    update = stored_mask(keep_update, sites[1], (len(neighbours), tokens.shape[2]), update_scale)
    operands = (tokens.to(source.dtype), *inputs[1:15], edges, update, *inputs[17:21])
    return torch_backend.step(*operands).to(tokens.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:], *inputs[:17])
    ctx.constants = inputs[17:]


def _backward(ctx: Any, gradient: Tensor | None, *rest: Any) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 24
    if differentiated_again():
        return plain_gradients(plain_step, (*ctx.saved_tensors[6:], *ctx.constants), gradient)
    found = step_gpu_backward(gradient, *ctx.saved_tensors, *ctx.constants)
    needed = zip(found, ctx.needs_input_grad[:12], strict=True)
    return *(value if need else None for value, need in needed), *[None] * 12


step_gpu.register_autograd(_backward, setup_context=_save)
