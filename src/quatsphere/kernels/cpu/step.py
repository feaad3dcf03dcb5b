"""Operators of a whole QSV step on CPUs.

The tokens of a step are inputs of the perturbation network, the attention and the residual. Within one operator their
three gradients are added where they arise, without separate passes over memory.
"""

from typing import Any

import torch
from torch import Tensor

from quatsphere.kernels import torch_backend
from quatsphere.kernels.cpu.arrays import argument_cache, flat, flat_mask
from quatsphere.kernels.cpu.attention import attention_arguments, attention_gradients
from quatsphere.kernels.cpu.feed_forward import (
    feed_forward_arguments,
    feed_forward_backward,
    paired_backward,
    pairs_available,
)
from quatsphere.kernels.cpu.field import empty_fields, perturb_backward, shell_arguments
from quatsphere.kernels.cpu.resample import residual_grad, residual_input
from quatsphere.torch_operators import (
    backward_operator,
    differentiated_again,
    operator,
    plain_gradients,
    record_function,
)

IMAGES_PER_BLOCK = 16
"""Images whose rows stay in the cache for both matrix products of the first layer's gradient."""


@operator("step", "cpu")
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
    mix_weights: Tensor | None,
    keep_edges: Tensor | None,
    keep_update: Tensor | None,
    edge_scale: float,
    update_scale: float,
    routing: int,
    transport: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """keep_update FFN(attention(x)) + residual for tokens x (B, S, d).

    first (d, d), inner, weight and bias are the perturbation network; source and target the bases of the shells with
    their bounds; up and down the Hamilton block; gate, indices and mix_weights the interpolated residual. A step within
    a shell has no target, no interpolation and no gate. The product with `first` and its gradients are computed in the
    dtype of `first`, float or bfloat16, and so is the Hamilton block where the processor has instructions for it.
    Returns the result (B, T, d) and, for the gradient, the network's hidden rows (B, S, d), both fields (the second
    empty within a shell) and the aggregate (B, T, d). With such a block rows and aggregate are in bfloat16, too.
    """
    parameters = (inner, weight, bias, bounds, source, target, beta, up, down, gate, neighbours, indices, mix_weights)
    dropped, scales = (keep_edges is not None, keep_update is not None), (edge_scale, update_scale)
    arguments = _arguments(tokens, parameters, dropped, scales, (routing, transport), _is_paired(first))
    return _run(arguments, tokens, first, source, target, (keep_edges, keep_update))


def infer(tokens: Tensor, first: Tensor, *rest: Any) -> Tensor:
    """The result of `step`, without a gradient; arguments derived from the parameters are cached."""
    parameters, masks, scales, modes = rest[:13], rest[13:15], rest[15:17], rest[17:]
    dropped = (masks[0] is not None, masks[1] is not None)
    inner, weight, bias, bounds, source, target, beta, up, down, gate, neighbours, indices, mix_weights = parameters
    arrays = [x for x in (source, target, neighbours, indices) if x is not None]
    used_in_place = [x for x in arrays if x.is_contiguous()]  # of the others `flat` makes a copy
    copied = [x for x in (inner, weight, bias, bounds, beta, gate, mix_weights, up, down) if x is not None]
    copied += [x for x in arrays if not x.is_contiguous()]
    places = tuple((x.data_ptr(), 0 if x.is_inference() else x._version) for x in used_in_place)
    paired = _is_paired(first)
    key = (places, gate is None, tokens.shape, tokens.dtype, dropped, scales, modes, paired)
    arguments = argument_cache.get(key, copied, lambda: _arguments(tokens, parameters, dropped, scales, modes, paired))
    out, *_ = _run(arguments, tokens, first, source, target, masks)
    return out


def _is_paired(first: Tensor) -> bool:
    """Return True if the Hamilton block multiplies in bfloat16, too: where the processor has instructions for it."""
    return first.dtype == torch.bfloat16 and pairs_available()


def _arguments(tokens: Tensor, parameters: Any, dropped: Any, scales: Any, modes: Any, paired: bool) -> Any:
    """`StepArguments` of the loops, with empty arrays for everything that depends on the tokens."""
    from quatsphere.kernels.cpu.loops.step import PostBlock, ShellArguments, StepArguments

    inner, weight, bias, bounds, source, target, beta, up, down, gate, neighbours, indices, mix_weights = parameters
    network, targets, empty = (tokens, inner, weight, bias), len(neighbours), flat(tokens.new_empty(0))
    shells = shell_arguments(network, bounds, (source, target), (source, source), (indices, mix_weights))
    tensors = (source, source, tokens.unflatten(2, (len(beta), -1, 4)), neighbours, beta, None, None, None)
    inputs, sizes = attention_arguments(tensors, modes[0], modes[1], scales[0])
    post_sizes, weights = feed_forward_arguments(len(tokens) * targets, up, down, dropped[1], scales[1], paired)
    gated = None if gate is None else gate * mix_weights.to(tokens.dtype)
    residual = residual_input(tokens, targets, indices, gated)._replace(x=empty)
    return StepArguments(
        (ShellArguments(*shells[0]).with_arrays(empty, empty), ShellArguments(*shells[1]).with_arrays(empty, empty)),
        inputs._replace(target_field=empty, source_field=empty, features=empty),
        sizes._replace(dropped=dropped[0]),
        PostBlock(post_sizes, weights, inputs.keep, residual),
    )


def _run(
    arguments: Any, tokens: Tensor, first: Tensor, source: Tensor, target: Tensor | None, masks: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The outputs of `step`."""
    from quatsphere.kernels.cpu.loops.step import StepArguments, run_step

    (shells, inputs, sizes, post), (B, _, d) = arguments, tokens.shape
    x, paired = tokens.flatten(0, 1), _is_paired(first)
    rows = x.to(first.dtype) @ first.T if paired else torch_backend.narrow_product(x, first)
    fields = empty_fields(tokens, source, target)
    out = tokens.new_empty(B, sizes.targets, d)
    aggregated = out.new_empty(out.shape, dtype=rows.dtype)
    hidden, x = flat(rows), flat(tokens)
    source_field, target_field = flat(fields[0]), flat(fields[0 if target is None else 1])
    keep_edges = flat_mask(masks[0], B * sizes.targets * sizes.neighbours * sizes.heads)
    complete = StepArguments(
        (shells[0].with_arrays(hidden, source_field), shells[1].with_arrays(hidden, target_field)),
        inputs._replace(target_field=target_field, source_field=source_field, features=x, keep=keep_edges),
        sizes,
        post._replace(keep=flat_mask(masks[1], out.numel()), residual=post.residual._replace(x=x)),
    )
    run_step(complete, flat(aggregated), flat(out))
    return out, rows.view(tokens.shape), fields[0], fields[1], aggregated


@backward_operator(step, ("gradient", "rows", "source_field", "target_field", "aggregated"))
def step_backward(
    gradient: Tensor, rows: Tensor, source_field: Tensor, target_field: Tensor, aggregated: Tensor, *inputs: Any
) -> list[Tensor]:
    """Gradients of the first twelve arguments of `step`, empty for an absent target or gate."""
    tokens, first, *network, bounds, source, target, beta, up, down, gate, neighbours, indices, mix_weights = inputs[
        :15
    ]
    keep_edges, keep_update, edge_scale, update_scale, routing, transport = inputs[15:]
    heads, empty, within = beta.shape[0], tokens.new_empty(0), target is None
    by_head, quaternions = (heads, -1), (heads, -1, 4)
    block_backward = paired_backward if _is_paired(first) else feed_forward_backward
    aggregated_grad, up_grad, down_grad = block_backward(
        gradient.unflatten(2, by_head), aggregated.unflatten(2, by_head), up, down, keep_update, update_scale
    )
    residual = residual_grad(gradient, tokens, indices, mix_weights, 1.0 if gate is None else float(gate))
    field, features = source_field if within else target_field, tokens.unflatten(2, quaternions)
    tensors = (field, source_field, features, neighbours, beta, keep_edges, None, None)
    with record_function("quatsphere::attend_backward"):
        target_field_grad, source_field_grad, features_grad, beta_grad, _, _, gate_grad = attention_gradients(
            aggregated_grad.unflatten(3, (-1, 4)),
            aggregated.unflatten(2, quaternions),
            tensors,
            (routing, transport, edge_scale),
            residual,
        )
    if within:
        source_field_grad, target_field_grad = source_field_grad.add_(target_field_grad), empty
    perturbed = (rows, *network, bounds, source, target, indices, mix_weights)
    rows_grad, *network_grads = perturb_backward(source_field_grad, target_field_grad, *perturbed)
    tokens_grad = features_grad.flatten(2)
    first_grad = _first_layer_backward(rows_grad, tokens, first, tokens_grad)
    gate_grad = empty if gate is None else gate_grad
    return [tokens_grad, first_grad, *network_grads, beta_grad, up_grad, down_grad, gate_grad]


def _first_layer_backward(rows_grad: Tensor, tokens: Tensor, first: Tensor, tokens_grad: Tensor) -> Tensor:
    """Gradient of `first` in rows = tokens firstᵀ (B, S, d); that of the tokens is added to `tokens_grad`."""
    total = torch.zeros_like(first, dtype=tokens.dtype)
    blocks = (tensor.split(IMAGES_PER_BLOCK) for tensor in (rows_grad, tokens, tokens_grad))
    for block in zip(*blocks, strict=True):
        grad, x, x_grad = (tensor.flatten(0, 1) for tensor in block)
        if first.dtype == x.dtype:
            x_grad.addmm_(grad, first)
            total.addmm_(grad.t(), x)
        else:
            narrow = grad.to(first.dtype)
            x_grad.add_(narrow @ first)
            total.add_(narrow.t() @ x.to(first.dtype))
    return total.to(first.dtype)


@step.register_fake
def _(tokens: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    source, target, neighbours = rest[5], rest[6], rest[11]
    out = tokens.new_empty(tokens.shape[0], neighbours.shape[0], tokens.shape[2])
    kind = rest[0].dtype if _is_paired(rest[0]) else tokens.dtype
    rows, aggregated = tokens.new_empty(tokens.shape, dtype=kind), out.new_empty(out.shape, dtype=kind)
    return out, rows, *empty_fields(tokens, source, target), aggregated


@step_backward.register_fake
def _(gradient: Tensor, *rest: Any) -> list[Tensor]:
    return [gradient.new_empty(0) if tensor is None else tensor.new_empty(tensor.shape) for tensor in rest[4:16]]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:], *inputs[:17])
    ctx.constants = inputs[17:]


def _backward(ctx: Any, gradient: Tensor | None, *rest: Any) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 21
    if differentiated_again():
        return plain_gradients(torch_backend.step, (*ctx.saved_tensors[4:], *ctx.constants), gradient)
    found = step_backward(gradient, *ctx.saved_tensors, *ctx.constants)
    needed = zip(found, ctx.needs_input_grad[:12], strict=True)
    return *(value if need else None for value, need in needed), *[None] * 9


step.register_autograd(_backward, setup_context=_save)
