"""Dropout with masks that depend on one key per image only: equal for any batch size, order or resume."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from quatsphere.randomness import keep_mask, keep_scale, name_seed


class KeyedDropout(nn.Module):
    """Inverted dropout; the mask is a function of `site`, the layer's name, and of keys (B,), one per image."""

    def __init__(self, rate: float, site: str) -> None:
        super().__init__()
        self.rate, self.scale = rate, keep_scale(rate)
        self.site = name_seed(0, site)

    def extra_repr(self) -> str:
        """Dropout rate."""
        return f"rate={self.rate}"

    def mask(self, keys: Int[Tensor, "b"], shape: tuple[int, ...]) -> Bool[Tensor, "b *shape"] | None:
        """Mask (B, *shape), False where an element is dropped, or None without dropout; scale the rest by `scale`."""
        if not self.training or self.rate == 0:
            return None
        return keep_mask(keys, self.site, shape, self.rate)

    def hashed_mask(self, keys: Int[Tensor, "b"]) -> Int[Tensor, "b"] | None:
        """Keys in place of the mask, for kernels that compute the mask from them and `site`; None without dropout."""
        return keys if self.training and self.rate > 0 else None

    def forward(self, x: Float[Tensor, "b *rest"], keys: Int[Tensor, "b"]) -> Float[Tensor, "b *rest"]:
        """Apply dropout to x."""
        mask = self.mask(keys, tuple(x.shape[1:]))
        return x if mask is None else x * (mask.to(x.dtype) * self.scale)
