"""A graph layer as one differentiable function on CPUs: projections, field and attention.

The separate operators compute the same, but on graphs of some hundred nodes dispatch takes longer than their loops.
Here gradients of the features and of the field are added where they arise, and few heads of one image fill the lanes
of a vector: Q channels of a head become s heads of Q / s channels with equal quaternions, whose gradients are summed.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quatsphere.kernels import torch_backend
from quatsphere.kernels.cpu.attention import attend, attention_gradients
from quatsphere.kernels.cpu.field import perturb, perturb_backward
from quatsphere.kernels.cpu.loops import LANES
from quatsphere.kernels.cpu.ragged import attend_ragged, attend_ragged_backward, plain_ragged
from quatsphere.kernels.graphs import Graph
from quatsphere.kernels.inputs import ROUTINGS, TRANSPORTS, Network
from quatsphere.torch_operators import differentiated_again, plain_gradients


def graph_layer(
    x: Tensor,
    projections: tuple[Tensor, Tensor],
    network: Network,
    bound: Tensor,
    base: Tensor,
    beta: Tensor,
    graph: Graph,
    rules: tuple[str, str],
    keep: Tensor | None,
    keep_scale: float,
) -> Tensor:
    """Attention of W_v x (B, V, H Q 4) with the field normalize(base ⊗ exp(bound tanh(φ(x)))) -> (B, V, H, Q, 4).

    `projections` are the network's first layer and W_v, both (H Q 4, C); base is (V, H, 4); `graph` is neighbours
    (V, k) without gaps, or CSR, with all indices in range; `rules` are names of ROUTINGS and TRANSPORTS.
    """
    table, rows = (graph, None) if isinstance(graph, Tensor) else (graph[1], graph[0])
    modes = ROUTINGS.index(rules[0]), TRANSPORTS.index(rules[1]), keep_scale
    out: Tensor = _GraphLayer.apply(x, *projections, *network, bound, base, beta, table, rows, keep, *modes)
    return out


class _GraphLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, value: Tensor, *rest: Any) -> Tensor:
        *network, beta, table, rows, keep, routing, transport, keep_scale = rest
        (B, V, _), heads = x.shape, len(beta)
        flat = x.flatten(0, 1)
        hidden, values = (torch.mm(flat, weight.t()).view(B, V, len(weight)) for weight in (first, value))
        field = perturb.function(hidden, *network, None, None, None)[0]
        ctx.copies = _copies(1 if rows is None else LANES, B, heads, values.shape[2] // (4 * heads))
        tensors = _split((field, values, beta, keep), ctx.copies)
        ctx.modes = routing, transport, keep_scale
        state = None
        if rows is None:
            out = attend.function(*_regular(tensors, table), *ctx.modes)
        else:
            out, state = attend_ragged.function(*_ragged(tensors, table, rows), *ctx.modes, False)
        out = out.view(B, V, heads, values.shape[2] // (4 * heads), 4)
        ctx.save_for_backward(x, first, value, *network, beta, table, rows, keep, hidden, *tensors, out, state)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, (hidden, *tensors, out, state) = ctx.saved_tensors[:12], ctx.saved_tensors[12:]
        if differentiated_again():
            return plain_gradients(_plain, (*inputs, *ctx.modes), gradients[0])
        x, first, value, *network, beta, table, rows, _ = inputs
        gradient, out = (y.reshape(tensors[1].shape) for y in (gradients[0], out))
        if rows is None:
            found = attention_gradients(gradient, out, _regular(tensors, table), ctx.modes, None)
            beta_grad = found[3]
        else:
            arguments = *_ragged(tensors, table, rows), *ctx.modes, False
            found = attend_ragged_backward.function(gradient, out, state, *arguments)
            beta_grad = found[4]
        parts = found[0].add_(found[1]).view(*x.shape[:2], len(beta), ctx.copies, 4).unbind(3)
        field_grad = sum(parts[1:], parts[0])
        hidden_grad, *network_grads, _ = perturb_backward.function(
            field_grad, hidden.new_empty(0), hidden, *network, None, None, None
        )
        flat, rows_grad, values_grad = (y.flatten(0, 1) for y in (x, hidden_grad, found[2].flatten(2)))
        x_grad = None
        if ctx.needs_input_grad[0]:
            x_grad = torch.mm(rows_grad, first).addmm_(values_grad, value).view(x.shape)
        weights = torch.mm(rows_grad.t(), flat), torch.mm(values_grad.t(), flat)
        return (x_grad, *weights, *network_grads, beta_grad.view(len(beta), -1).sum(1), *[None] * 6)


def _copies(packed: int, images: int, heads: int, channels: int) -> int:
    """Heads that one head is split into: as many as there are lanes for it, if its channels can be divided so.

    The loops over regular graphs fill the lanes with the heads of several images instead.
    """
    copies = LANES // heads if packed > 1 or images == 1 else 1
    return max(n for n in range(1, max(1, copies) + 1) if channels % n == 0)


def _split(tensors: Any, copies: int) -> tuple[Any, ...]:
    """Field (B, V, H, 4), values (B, V, d) as (B, V, H, Q, 4), β (H,), mask (..., H), with each head `copies` times."""
    field, values, beta, keep = tensors
    features = values.unflatten(2, (copies * len(beta), values.shape[2] // (4 * copies * len(beta)), 4))
    if copies == 1:
        return field, features, beta, keep
    field = torch.stack([field] * copies, dim=3).flatten(2, 3)
    return field, features, beta.repeat_interleave(copies), None if keep is None else keep.repeat_interleave(copies, -1)


def _regular(tensors: Any, table: Tensor) -> tuple[Any, ...]:
    """Tensors of `attend`."""
    field, features, beta, keep = tensors
    return field, field, features, table, beta, keep, None, None


def _ragged(tensors: Any, source: Tensor, rows: Tensor) -> tuple[Any, ...]:
    """Tensors of `attend_ragged`."""
    field, features, beta, keep = tensors
    return field, field, features, rows, source, None, beta, keep, None, None


def _plain(x: Tensor, first: Tensor, value: Tensor, *rest: Any) -> Tensor:
    """The same in plain torch."""
    *network, beta, table, rows, keep, routing, transport, keep_scale = rest
    perturbed: tuple[Any, ...] = (F.linear(x, first), *network, None, None, None)
    field = torch_backend.perturb(*perturbed)[0]
    tensors, modes = _split((field, F.linear(x, value), beta, keep), 1), (routing, transport, keep_scale)
    if rows is None:
        regular: tuple[Any, ...] = (*_regular(tensors, table), *modes)
        return torch_backend.attend(*regular)
    return plain_ragged(*_ragged(tensors, table, rows), *modes, False)
