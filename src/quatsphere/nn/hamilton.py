"""Linear layers whose weights are quaternions (eq:hamilton), and the feed-forward block made of them."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from quatsphere.geometry.quaternion import block_expand, full_precision, left_matrix
from quatsphere.kernels import feed_forward
from quatsphere.kernels.caches import ParameterCache


class HamiltonLinear(nn.Module):
    """y_ho = Σ_i W_hoi ⊗ x_hi (eq:hamilton), no bias; (B, V, H, Q_in, 4) -> (B, V, H, Q_out, 4).

    The paper does not specify bias and init: no bias (with one the model would have 0.65M parameters), and standard
    deviation scale/√(4 Q_in), which preserves the variance of every component.
    """

    def __init__(self, heads: int, in_channels: int, out_channels: int, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.empty(heads, out_channels, in_channels, 4))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal with standard deviation scale/√(4 Q_in)."""
        nn.init.normal_(self.weight, std=self.scale / math.sqrt(4 * self.weight.shape[2]))

    def extra_repr(self) -> str:
        """Heads, and quaternion channels in and out."""
        heads, outputs, inputs, _ = self.weight.shape
        return f"heads={heads}, in_channels={inputs}, out_channels={outputs}"

    def forward(self, x: Float[Tensor, "b v h inp 4"]) -> Float[Tensor, "b v h out 4"]:
        """One matrix product per head over the 4x4 block expansion."""
        mixed = torch.einsum("bvhi,hoi->bvho", x.flatten(3), block_expand(self.weight))
        return mixed.unflatten(3, (-1, 4))


class HamiltonFFN(nn.Module):
    """Hamilton(Q, 4Q) -> GELU -> Hamilton(4Q, Q); the down projection starts small, so that the residual dominates.

    With `skip` the block adds its input to its output. The buffer `left` (4, 16) makes q -> L(q) a matrix product.
    """

    left: Tensor

    def __init__(
        self,
        heads: int,
        channels: int,
        expansion: int = 4,
        down_scale: float = 0.1,
        backend: str = "auto",
        skip: bool = False,
    ) -> None:
        super().__init__()
        self.backend, self.skip = backend, skip
        self.up = HamiltonLinear(heads, channels, expansion * channels)
        self.down = HamiltonLinear(heads, expansion * channels, channels, scale=down_scale)
        self.register_buffer("left", left_matrix(torch.eye(4)).flatten(1), persistent=False)
        self._merged: ParameterCache[tuple[Tensor, Tensor]] = ParameterCache()

    def forward(
        self,
        x: Float[Tensor, "b v h q 4"],
        post: HamiltonLinear | None = None,
        keep: Bool[Tensor, "b v d"] | None = None,
        keep_scale: float = 1.0,
    ) -> Float[Tensor, "b v h q 4"]:
        """dropout(FFN(y)) with y = post(x), or dropout(y + FFN(y)) with `skip`.

        `post` is linear, so before the FFN it is multiplied into the up projection, once per step.
        GELU acts on every real component. `keep` is a dropout mask; kept outputs are multiplied by `keep_scale`.
        """
        up, down = self.weights(post)
        flat = x.flatten(3)
        mask = None if keep is None else keep.reshape(flat.shape)
        out = feed_forward(flat, up, down, keep=mask, keep_scale=keep_scale, backend=self.backend)
        if self.skip:
            skipped = flat if post is None else post(x).flatten(3)
            out = out + (skipped if mask is None else skipped * (mask.to(skipped.dtype) * keep_scale))
        return out.unflatten(3, (-1, 4))

    def weights(
        self, post: HamiltonLinear | None = None
    ) -> tuple[Float[Tensor, "h wide q 4"], Float[Tensor, "h q wide 4"]]:
        """(up post, down)."""
        weights = [layer.weight for layer in (self.up, self.down, post) if layer is not None]
        return self._merged.infer(weights, lambda: self._merge(*weights))

    def _merge(self, up: Tensor, down: Tensor, post: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(up post, down) of weights."""
        return (up if post is None else self.merge(up, post)), down

    def merge(self, up: Float[Tensor, "h o i 4"], post: Float[Tensor, "h i k 4"]) -> Float[Tensor, "h o k 4"]:
        """The quaternion matrices U P with (U P)_ok = Σ_i U_oi ⊗ P_ik, for any number of heads."""
        with full_precision(up):
            left = (up @ self.left.to(up)).unflatten(-1, (4, 4))
            return torch.einsum("hoixy,hiky->hokx", left, post)

    def merge_in_few_launches(
        self, up: Float[Tensor, "h o i 4"], post: Float[Tensor, "h i k 4"]
    ) -> Float[Tensor, "h o k 4"]:
        """`merge` for accelerators: by R(P), with U_oi ⊗ P_ik = R(P_ik) U_oi, results and gradients are contiguous."""
        with full_precision(up):
            right = (post @ self.left.to(post).view(16, 4).t()).unflatten(-1, (4, 4))
            heads, inputs, outputs, _ = post.shape
            matrices = right.transpose(2, 3).reshape(heads, 4 * inputs, 4 * outputs)
            return torch.bmm(up.flatten(2), matrices).unflatten(2, (-1, 4))
