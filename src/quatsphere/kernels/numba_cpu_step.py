"""A whole step of QSV on CPUs (Numba): one torch operator around the loops of `numba_step`, and one for its gradient.

The tokens of a step are read three times: by the perturbation network, by the kernel and by the residual. In one
operator their three gradients are added up where they arise instead of in passes of their own.
"""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from quatsphere.kernels import numba_cpu, numba_cpu_field, numba_cpu_hamilton, numba_cpu_resample
from quatsphere.kernels import torch_backend as plain
from quatsphere.kernels.numba_cpu import flat, flat_mask
from quatsphere.kernels.transforms import differentiated_again, plain_gradients


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
    scales, rules = (edge_scale, update_scale), (routing, transport)
    constant = (inner, weight, bias, bounds, source, target, beta, up, down, gate, neighbours, indices, shares)
    problem = _problem(tokens, constant, (keep_edges is not None, keep_update is not None), scales, rules)
    return _propagate(problem, tokens, first, source, target, (keep_edges, keep_update))


def infer(tokens: Tensor, first: Tensor, *rest: Any) -> Tensor:
    """The result of `step` where no gradient is wanted: what follows from its constants is kept for the next call."""
    constant, masks, scales, rules = rest[:13], rest[13:15], rest[15:17], rest[17:]
    dropped = (masks[0] is not None, masks[1] is not None)
    problem = _kept_problem(tokens, constant, dropped, scales, rules)
    out, *_ = _propagate(problem, tokens, first, rest[4], rest[5], masks)
    return out


MANY = 64
"""As many steps as may take turns."""
_problems: OrderedDict[tuple[Any, ...], tuple[list[Tensor], Any]] = OrderedDict()
"""Problems of the last calls, by the addresses of what they read where it lies; with copies of what they hold."""


def _kept_problem(tokens: Tensor, constant: Any, dropped: Any, scales: Any, rules: Any) -> Any:
    """`_problem`, made again when one of the constants it holds by value has changed."""
    inner, weight, bias, bounds, source, target, beta, up, down, gate, neighbours, indices, shares = constant
    lying = [tensor for tensor in (inner, source, target, neighbours, indices) if tensor is not None]
    held = [tensor for tensor in (weight, bias, bounds, beta, gate, shares, up, down) if tensor is not None]
    places = tuple((tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in lying)
    key = (places, tokens.shape, tokens.dtype, dropped, scales, rules)
    kept = _problems.get(key)
    if kept is None or not all(map(torch.equal, kept[0], held)):
        kept = ([tensor.detach().clone() for tensor in held], _problem(tokens, constant, dropped, scales, rules))
        _problems[key] = kept
        if len(_problems) > MANY:
            _problems.popitem(last=False)
    _problems.move_to_end(key)
    return kept[1]


def _problem(tokens: Tensor, constant: Any, dropped: Any, scales: Any, rules: Any) -> Any:
    """`StepProblem` of the compiled loops, with nothing in the places of what depends on the tokens."""
    from quatsphere.kernels import numba_step as loops

    inner, weight, bias, bounds, source, target, beta, up, down, gate, neighbours, indices, shares = constant
    network, targets, nothing = (tokens, inner, weight, bias), len(neighbours), flat(tokens.new_empty(0))
    shells = numba_cpu_field.shells_of(network, bounds, (source, target), (source, source), (indices, shares))
    features = tokens.unflatten(2, (beta.shape[0], -1, 4))
    tensors = (source, source, features, neighbours, beta, None, None, None)
    inputs, sizes = numba_cpu.arguments(tensors, rules[0], rules[1], scales[0])
    widths, matrices = numba_cpu_hamilton.arguments(len(tokens) * targets, up, down, dropped[1], scales[1])
    onto = numba_cpu_resample.onto_of(
        tokens, targets, indices, None if gate is None else gate * shares.to(tokens.dtype)
    )
    post = loops.Post(widths, matrices, inputs.keep, onto._replace(x=nothing))
    ends = loops.Shell(*shells[0]).of(nothing, nothing), loops.Shell(*shells[1]).of(nothing, nothing)
    inputs = inputs._replace(target_field=nothing, source_field=nothing, features=nothing)
    return loops.StepProblem(ends, inputs, sizes._replace(dropped=dropped[0]), post)


def _propagate(
    problem: Any, tokens: Tensor, first: Tensor, source: Tensor, target: Tensor | None, masks: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The step of these tokens: the result, and what the gradient needs."""
    from quatsphere.kernels import numba_step as loops

    (ends, inputs, sizes, post), (B, _, d) = problem, tokens.shape
    rows = torch.mm(tokens.flatten(0, 1), first.t()).view(tokens.shape)
    fields = numba_cpu_field.empty_fields(tokens, source, target)
    aggregated, out = tokens.new_empty(B, sizes.targets, d), tokens.new_empty(B, sizes.targets, d)
    hidden, here, there, x = flat(rows), flat(fields[0]), flat(fields[0 if target is None else 1]), flat(tokens)
    edges = B * sizes.targets * sizes.neighbours * sizes.heads
    now = loops.StepProblem(
        (ends[0].of(hidden, here), ends[1].of(hidden, there)),
        inputs._replace(target_field=there, source_field=here, features=x, keep=flat_mask(masks[0], edges)),
        sizes,
        post._replace(keep=flat_mask(masks[1], out.numel()), onto=post.onto._replace(x=x)),
    )
    loops.propagate_all(now, flat(aggregated), flat(out))
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
    with record_function("quatsphere::attend_backward"):
        felt, told, back, beta_gradient, _, _, gate_gradient = numba_cpu.differentiate(
            there.unflatten(3, (-1, 4)), heard, tensors, rules, residual
        )
    found = numba_cpu_field.perturb_backward(
        told.add_(felt) if within else told,
        nothing if within else felt,
        rows, inner, weight, bias, bounds, source, target, indices, shares,
    )  # fmt: skip
    back = back.flatten(2)
    first_gradient = _through_first(found[0], tokens, first, back)
    gates = nothing if gate is None else gate_gradient
    return [back, first_gradient, *found[1:], beta_gradient, up_gradient, down_gradient, gates]


TOGETHER = 16
"""Images whose rows pass through both products of the first layer's gradient while they are in the cache."""


def _through_first(gradient: Tensor, tokens: Tensor, first: Tensor, back: Tensor) -> Tensor:
    """The gradient of rows = tokens firstᵀ (B, S, d) on to the tokens, added to `back`, and, returned, to first."""
    total = torch.zeros_like(first)
    for part in zip(*(tensor.split(TOGETHER) for tensor in (gradient, tokens, back)), strict=True):
        rows, x, onto = (tensor.flatten(0, 1) for tensor in part)
        onto.addmm_(rows, first)
        total.addmm_(rows.t(), x)
    return total


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
    if differentiated_again():
        return plain_gradients(plain.step, (*ctx.saved_tensors[4:], *ctx.rules), gradient)
    found = step_backward(gradient, *ctx.saved_tensors, *ctx.rules)
    needed = zip(found, ctx.needs_input_grad[:12], strict=True)
    return *(value if need else None for value, need in needed), *[None] * 9


step.register_autograd(_backward, setup_context=_save)
