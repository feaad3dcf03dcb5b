"""Dropout whose masks are a pure function of one key per image: same masks for any batch size, order or resume."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from quatsphere.randomness import keep_mask, keep_scale, name_seed


class KeyedDropout(nn.Module):
    """Inverted dropout. `site` tells the places of a model apart; keys (B,) tell the images apart."""

    def __init__(self, rate: float, site: str) -> None:
        super().__init__()
        self.rate, self.scale = rate, keep_scale(rate)
        self.site = name_seed(0, site)

    def mask(self, keys: Int[Tensor, "b"], shape: tuple[int, ...]) -> Bool[Tensor, "b *shape"] | None:
        """(B, *shape), False where something is dropped, or None where nothing is; survivors count `scale` times."""
        if not self.training or self.rate == 0:
            return None
        return keep_mask(keys, self.site, shape, self.rate)

    def forward(self, x: Float[Tensor, "b *rest"], keys: Int[Tensor, "b"]) -> Float[Tensor, "b *rest"]:
        """x with its mask applied."""
        mask = self.mask(keys, tuple(x.shape[1:]))
        return x if mask is None else x * (mask.to(x.dtype) * self.scale)
