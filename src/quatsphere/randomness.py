"""Random numbers as a pure function of named integers, and dropout from them: equal for any batch size and order.

A key is an int64 made by folding integers such as (seed, epoch, sample) with the finaliser of SplitMix64
(Steele, Lea and Flood 2014); element i of a key's stream is the finaliser of key + (i + 1) * GOLDEN.
Plain integer tensor operations: the same bits on every device.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from quatsphere.torch_operators import operator

GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64 (torch's own is arithmetic)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def finalise(x: Tensor) -> Tensor:
    """SplitMix64's finaliser: a bijection of int64 that flips each output bit with probability 1/2."""
    x = (x ^ _shift_right(x, 30)) * _FIRST
    x = (x ^ _shift_right(x, 27)) * _SECOND
    return x ^ _shift_right(x, 31)


def _finalise_integer(x: int) -> int:
    """`finalise` of an integer below 2**64."""
    x = (x ^ (x >> 30)) * _FIRST % 2**64
    x = (x ^ (x >> 27)) * _SECOND % 2**64
    return x ^ (x >> 31)


def fold(*parts: int | Tensor) -> Tensor:
    """Fold integers into one int64 key per element of the broadcast parts; their order matters.

    The key is on the device of the tensors; integers are combined without copies between devices.
    """
    key: Any = 0
    for part in parts:
        if isinstance(key, int) and isinstance(part, int):
            key = _finalise_integer((key + GOLDEN + part) % 2**64)
        else:
            grown: Any = _signed(key + GOLDEN) if isinstance(key, int) else key + GOLDEN
            key = finalise(grown + (_signed(part) if isinstance(part, int) else part.long()))
    return torch.tensor(_signed(key)) if isinstance(key, int) else key


def stream(keys: Tensor, count: int) -> Tensor:
    """The first `count` int64 values of every key's stream: (...) -> (..., count)."""
    counters = torch.arange(1, count + 1, device=keys.device, dtype=torch.int64) * GOLDEN
    return finalise(keys.unsqueeze(-1) + counters)


def uniform(keys: Tensor, count: int) -> Tensor:
    """Uniform float64 in [0, 1) with 53 bits: (...) -> (..., count)."""
    return _shift_right(stream(keys, count), 11).double() * 2.0**-53


def dropped_of_65536(rate: float) -> int:
    """Dropout rate in units of 2**-16, rounded: each int64 of a stream gives four 16-bit decisions."""
    return round(rate * 2**16)


def keep_scale(rate: float) -> float:
    """Scale of the survivors in inverted dropout: the inverse of the probability after rounding."""
    return 2**16 / (2**16 - dropped_of_65536(rate))


def draw_mask(keys: Tensor, site: int, shape: Sequence[int], rate: float) -> Tensor:
    """Dropout mask (B, *shape): False with probability `rate`; one key per sample, folded with the mask's site."""
    count = math.prod(shape)
    bits = stream(fold(keys, site), -(-count // 4)).view(torch.int16)[..., :count]
    return (bits >= dropped_of_65536(rate) - 2**15).reshape(*keys.shape, *shape)


@operator("keep_mask")
def keep_mask(keys: Tensor, site: int, shape: Sequence[int], rate: float) -> Tensor:
    """`draw_mask` as a torch operator, opaque to torch.compile, whose code for the 64-bit stream on CPUs writes past
    its buffers (torch 2.13). `kernels` registers compiled loops for CPUs.
    """
    return draw_mask(keys, site, shape, rate)


@keep_mask.register_fake
def _(keys: Tensor, site: int, shape: Sequence[int], rate: float) -> Tensor:
    return keys.new_empty((*keys.shape, *shape), dtype=torch.bool)


def name_seed(seed: int, name: str) -> int:
    """63-bit seed for a name (of a parameter, say), from the run's seed."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


class KeyedDropout(nn.Module):
    """Inverted dropout whose masks are equal for any batch size, order or resume.

    A mask is a function of `site`, the layer's name, and of keys (B,), one per image.
    """

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


def _signed(value: int) -> int:
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value
