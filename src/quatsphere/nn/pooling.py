"""From the last shell's tokens to one vector per image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from quatsphere.geometry.quaternion import mean_rotation, rotate
from quatsphere.nn.trace import Trace


class QuaternionPooling(nn.Module):
    """Softmax over vertices of Σ_q Im(x_i^q)·d, where d is ẑ turned by the sign-free mean of the base quaternions."""

    def forward(
        self, tokens: Float[Tensor, "b v d"], base: Float[Tensor, "v h 4"], trace: Trace
    ) -> Float[Tensor, "b d"]:
        """No parameters; no gradient to the base quaternions (see `mean_rotation`)."""
        mean = mean_rotation(base.reshape(-1, 4))
        direction = rotate(mean, torch.tensor([0.0, 0.0, 1.0], dtype=mean.dtype, device=mean.device))
        every_channel = F.pad(direction, (1, 0)).repeat(tokens.shape[2] // 4)  # (0, d) for each quaternion
        scores = tokens @ every_channel.to(tokens.dtype)
        weights = torch.softmax(scores, dim=1)
        pooled = einsum(weights, tokens, "b v, b v d -> b d")
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
