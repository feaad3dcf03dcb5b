"""Pooling: tokens of the last shell -> one vector per image."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from quatsphere.geometry.quaternion import mean_rotation, rotate
from quatsphere.nn.trace import Trace
from quatsphere.torch_operators import differentiated_again, transformed


class PoolAlong(torch.autograd.Function):
    """Σ_i softmax_i(x_i·a) x_i for tokens x (B, V, d) and an axis a (d,): (pooled, scores, weights).

    The tokens enter twice, so autograd would compute two gradients of their size and add them. Both are outer products
    over the vertices: here they are one product of matrices with two columns. Only the tokens have a gradient, and only
    of `pooled`. Vectors multiply from the left, as rows, which is twice as fast as columns.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, axis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, d), (B, V), (B, V)."""
        pooled, scores, weights = _pool_along(tokens, axis)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(tokens, axis, weights)
        ctx.mark_non_differentiable(scores, weights)
        return pooled, scores, weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, None]:
        """w_i g + w_i (x_i - pooled)·g a for each vertex i."""
        if gradient is None:
            return None, None
        tokens, axis, weights = ctx.saved_tensors
        if differentiated_again():
            weights = _pool_along(tokens, axis)[2]
        gradient = gradient.to(tokens.dtype)
        slopes = _times_rows(gradient, tokens)
        slopes = weights * (slopes - (weights * slopes).sum(1, keepdim=True))
        columns = torch.stack((weights, slopes), dim=2).to(tokens.dtype)
        return torch.bmm(columns, torch.stack((gradient, axis.expand_as(gradient)), dim=1)), None


def _pool_along(tokens: Tensor, axis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scores = _times_rows(axis.expand(tokens.shape[0], -1), tokens)
    weights = torch.softmax(scores, dim=1)
    return torch.bmm(weights.to(tokens.dtype).unsqueeze(1), tokens).squeeze(1), scores, weights


def pool_along(tokens: Tensor, axis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`PoolAlong`, or plain torch inside transforms of `torch.func`."""
    return _pool_along(tokens, axis) if transformed() else PoolAlong.apply(tokens, axis)


def _times_rows(vectors: Float[Tensor, "b d"], tokens: Float[Tensor, "b v d"]) -> Float[Tensor, "b v"]:
    """Inner products of each image's vector with its tokens."""
    return torch.bmm(vectors.unsqueeze(1), tokens.transpose(1, 2)).squeeze(1)


class QuaternionPooling(nn.Module):
    """Softmax over vertices of Σ_q Im(x_i^q)·d, where d is ẑ rotated by the sign-free mean of the base quaternions.

    d is a quadratic form of the mean q̄, and on accelerators computed as one, in three launches: the buffer `axis_form`
    (3, 16) times the products q̄_a q̄_b.
    """

    axis_form: Tensor

    def __init__(self) -> None:
        super().__init__()
        w, x, y, z = range(4)
        form = torch.zeros(3, 4, 4)
        form[0, x, z] = form[0, w, y] = form[1, y, z] = 2.0
        form[1, w, x] = -2.0
        form[2] = torch.diag(torch.tensor([1.0, -1.0, -1.0, 1.0]))
        self.register_buffer("axis_form", form.flatten(1), persistent=False)

    def direction(self, mean: Float[Tensor, "4"]) -> Float[Tensor, "3"]:
        """ẑ rotated by the mean."""
        if mean.is_cpu:
            return rotate(mean, F.pad(mean.new_ones(1), (2, 0)))
        return (self.axis_form.to(mean.dtype) * (mean[:, None] * mean).flatten()).sum(-1)

    def forward(
        self, tokens: Float[Tensor, "b v d"], base: Float[Tensor, "v h 4"], trace: Trace
    ) -> Float[Tensor, "b d"]:
        """Pool the tokens; the base quaternions get no gradient (see `mean_rotation`)."""
        mean = mean_rotation(base.reshape(-1, 4))
        direction = self.direction(mean)
        every_channel = F.pad(direction, (1, 0)).repeat(tokens.shape[2] // 4)  # (0, d) for each quaternion
        pooled: Tensor
        pooled, scores, weights = self.along(tokens, every_channel.to(tokens.dtype), base.shape[1])
        trace.note(lambda: {"mean_rotation": mean, "pool_direction": direction, "pool_scores": scores})
        trace.note(lambda: {"pool_weights": weights, "pooled": pooled})
        return pooled

    def along(self, tokens: Tensor, axis: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """(pooled, scores (B, V), weights (B, V)): one weight per vertex, from its score summed over all heads."""
        return pool_along(tokens, axis)


class PerHeadPooling(QuaternionPooling):
    """Quaternion pooling with a softmax per head: the score of head h sums over its channels only."""

    def along(self, tokens: Tensor, axis: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """(pooled, scores (B, V, H), weights (B, V, H)): each head is pooled separately."""
        by_head = tokens.unflatten(2, (heads, -1)).transpose(1, 2).flatten(0, 1)  # (B H, V, C)
        pooled, *edges = pool_along(by_head, axis[: by_head.shape[2]])
        scores, weights = (edge.unflatten(0, (-1, heads)).transpose(1, 2) for edge in edges)
        return pooled.unflatten(0, (-1, heads)).flatten(1), scores, weights


class MeanPooling(nn.Module):
    """The mean over vertices."""

    def forward(
        self, tokens: Float[Tensor, "b v d"], base: Float[Tensor, "v h 4"] | None, trace: Trace
    ) -> Float[Tensor, "b d"]:
        """Average the tokens."""
        pooled = tokens.mean(dim=1)
        uniform = torch.full_like(tokens[..., 0], 1 / tokens.shape[1])
        trace.note(lambda: {"pool_weights": uniform, "pooled": pooled})
        return pooled


POOLINGS: dict[str, type[QuaternionPooling] | type[MeanPooling]] = {
    "quaternion": QuaternionPooling,
    "quaternion_per_head": PerHeadPooling,
    "mean": MeanPooling,
}
