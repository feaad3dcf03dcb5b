"""From the last shell's tokens to one vector per image."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from quatsphere.geometry.quaternion import mean_rotation, rotate
from quatsphere.nn.trace import Trace


class PoolAlong(torch.autograd.Function):
    """Σ_i softmax_i(x_i·a) x_i for tokens x (B, V, d) and an axis a (d,): (pooled, scores, weights).

    The tokens enter twice, so autograd would make two gradients of their size and add them. Both are outer products
    over the vertices: here they are one product of matrices with two columns. Only the tokens and only `pooled` have
    a gradient. Vectors multiply from the left, as rows: as columns they take libraries twice as long.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, axis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, d), (B, V), (B, V)."""
        scores = _times_rows(axis.expand(tokens.shape[0], -1), tokens)
        weights = torch.softmax(scores, dim=1)
        pooled = torch.bmm(weights.to(tokens.dtype).unsqueeze(1), tokens).squeeze(1)
        ctx.save_for_backward(tokens, axis, weights)
        ctx.mark_non_differentiable(scores, weights)
        return pooled, scores, weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, None]:
        """w_i g + w_i (x_i - pooled)·g a for each vertex i."""
        tokens, axis, weights = ctx.saved_tensors
        gradient = gradient.to(tokens.dtype)
        slopes = _times_rows(gradient, tokens)
        slopes = weights * (slopes - (weights * slopes).sum(1, keepdim=True))
        columns = torch.stack((weights, slopes), dim=2).to(tokens.dtype)
        return torch.bmm(columns, torch.stack((gradient, axis.expand_as(gradient)), dim=1)), None


def _times_rows(vectors: Float[Tensor, "b d"], tokens: Float[Tensor, "b v d"]) -> Float[Tensor, "b v"]:
    """The inner product of each image's vector with its tokens."""
    return torch.bmm(vectors.unsqueeze(1), tokens.transpose(1, 2)).squeeze(1)


class QuaternionPooling(nn.Module):
    """Softmax over vertices of Σ_q Im(x_i^q)·d, where d is ẑ turned by the sign-free mean of the base quaternions."""

    def forward(
        self, tokens: Float[Tensor, "b v d"], base: Float[Tensor, "v h 4"], trace: Trace
    ) -> Float[Tensor, "b d"]:
        """No parameters; no gradient to the base quaternions (see `mean_rotation`)."""
        mean = mean_rotation(base.reshape(-1, 4))
        direction = rotate(mean, torch.tensor([0.0, 0.0, 1.0], dtype=mean.dtype, device=mean.device))
        every_channel = F.pad(direction, (1, 0)).repeat(tokens.shape[2] // 4)  # (0, d) for each quaternion
        pooled: Tensor
        pooled, scores, weights = PoolAlong.apply(tokens, every_channel.to(tokens.dtype))
        trace.note(lambda: {"mean_rotation": mean, "pool_direction": direction, "pool_scores": scores})
        trace.note(lambda: {"pool_weights": weights, "pooled": pooled})
        return pooled


class MeanPooling(nn.Module):
    """The mean over vertices."""

    def forward(
        self, tokens: Float[Tensor, "b v d"], base: Float[Tensor, "v h 4"] | None, trace: Trace
    ) -> Float[Tensor, "b d"]:
        """Every vertex counts the same."""
        pooled = tokens.mean(dim=1)
        uniform = torch.full_like(tokens[..., 0], 1 / tokens.shape[1])
        trace.note(lambda: {"pool_weights": uniform, "pooled": pooled})
        return pooled


POOLINGS: dict[str, type[QuaternionPooling] | type[MeanPooling]] = {
    "quaternion": QuaternionPooling,
    "mean": MeanPooling,
}
