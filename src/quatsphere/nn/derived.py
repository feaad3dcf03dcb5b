"""Tensors that the steps derive from parameters, with gradients written by hand: dozens of operations on a few numbers.

On CPUs the parts of autograd around such an operation take longer than the operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quatsphere.geometry.quaternion import full_precision
from quatsphere.nn.field import LearnedBound
from quatsphere.nn.routing import Routing
from quatsphere.torch_operators import differentiated_again


class DerivedFromParameters(torch.autograd.Function):
    """(bounds, β, up with post merged, gate) of several steps, with the bits that each step computes by itself.

    Arguments: the number of steps, `HamiltonFFN.left`, then one of each kind per step: stacked logits of bounds and
    logits of β, weights up (H, O, I, 4) and post (H, I, K, 4), logits of gates or None. Results are in this order too.
    """

    @staticmethod
    def forward(ctx: Any, count: int, left: Tensor, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        """Compute every kind step by step, but the products of all steps at once."""
        bounds, betas, ups, posts, gates = _by_kind(tensors, count)
        ctx.count = count
        ctx.save_for_backward(left, *tensors)
        ctx.factors = matrix, columns = _factors(left, ups, posts)
        merged = torch.bmm(matrix, columns).view(len(matrix), -1, 4, columns.shape[2]).transpose(2, 3)
        return (
            *(LearnedBound.limit(logits) for logits in bounds),
            *(Routing.positive(logit) for logit in betas),
            *merged.split(len(ups[0])),
            *(None if logit is None else torch.sigmoid(logit) for logit in gates),
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        """Gradients of the arguments, by the formulas and in the order of autograd."""
        count, (left, *tensors) = ctx.count, ctx.saved_tensors
        bounds, betas, ups, posts, gates = _by_kind(tensors, count)
        bound_grads, beta_grads, merged_grads, gate_grads = _by_kind(gradients, count)
        matrix, columns = _factors(left, ups, posts) if differentiated_again() else ctx.factors
        with full_precision(left):
            outer = torch.cat(list(merged_grads)).transpose(2, 3).reshape(len(matrix), -1, columns.shape[2])
            heads, (wide, inner) = len(matrix), ups[0].shape[1:3]
            rows = torch.bmm(outer, columns.transpose(1, 2)).view(heads, wide, 4, inner, 4).transpose(2, 3)
            up_grads = (rows.reshape(-1, 16) @ left.to(rows).t()).view(heads, wide, inner, 4)
            post_grads = torch.bmm(matrix.transpose(1, 2), outer).view(heads, inner, 4, -1).transpose(2, 3)
        span = LearnedBound.UPPER - LearnedBound.LOWER
        return (
            *(None, None),
            *(_through_sigmoid(grad * span, x) for grad, x in zip(bound_grads, bounds, strict=True)),
            *(torch.ops.aten.softplus_backward(g, x, 1, 20) for g, x in zip(beta_grads, betas, strict=True)),
            *up_grads.split(len(ups[0])),
            *post_grads.split(len(ups[0])),
            *(None if x is None else _through_sigmoid(g, x) for g, x in zip(gate_grads, gates, strict=True)),
        )


def _by_kind(tensors: Sequence[Any], count: int) -> list[Sequence[Any]]:
    return [tensors[start : start + count] for start in range(0, len(tensors), count)]


def _factors(left: Tensor, ups: Sequence[Tensor], posts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The matrices (heads of all steps, 4 O, 4 I) and (..., 4 I, K) whose product is `HamiltonFFN.merge`."""
    up, post = torch.cat(list(ups)), torch.cat(list(posts))
    with full_precision(up):
        blocks = (up @ left.to(up)).unflatten(-1, (4, 4))
    matrix = blocks.transpose(2, 3).reshape(len(up), 4 * up.shape[1], 4 * up.shape[2])
    return matrix, post.transpose(2, 3).reshape(len(post), matrix.shape[2], post.shape[2])


def _through_sigmoid(gradient: Tensor, logit: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten.sigmoid_backward(gradient, torch.sigmoid(logit))
    return found
