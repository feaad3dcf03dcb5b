"""Transport: how a message changes on its way. `prepare` acts on the sources, `rule` names what the kernel does."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn


class Sandwich(nn.Module):
    """m_ij = r_ij ⊗ x_j ⊗ r_ij* (eq:attn-weight)."""

    rule = "sandwich"

    def __init__(self, heads: int, channels: int) -> None:
        super().__init__()

    def prepare(self, features: Float[Tensor, "b v h q 4"]) -> Float[Tensor, "b v h q 4"]:
        """The features as they are."""
        return features


class Identity(Sandwich):
    """m_ij = x_j: the transport role switched off."""

    rule = "identity"


class OneSided(Sandwich):
    """m_ij = r_ij ⊗ x_j, QuatE's product: mixes real and imaginary parts."""

    rule = "one_sided"


class Lift(Sandwich):
    """m_ij = q_j ⊗ x_j ⊗ q_j*: into the shared frame, and not out of it."""

    rule = "lift"


class Lower(Sandwich):
    """m_ij = q_i* ⊗ x_j ⊗ q_i: into the target's frame, as if the tokens lay in a shared one."""

    rule = "lower"


class Projected(Sandwich):
    """m_ij = W_h x_j, a real linear map per head: does the form of transport matter?"""

    rule = "identity"

    def __init__(self, heads: int, channels: int) -> None:
        super().__init__(heads, channels)
        self.weight = nn.Parameter(torch.empty(heads, 4 * channels, 4 * channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal with standard deviation 1/√(4Q), which keeps the variance."""
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.weight.shape[-1]))

    def prepare(self, features: Float[Tensor, "b v h q 4"]) -> Float[Tensor, "b v h q 4"]:
        """W_h x_j."""
        flat = rearrange(features, "b v h q c -> b v h (q c)")
        mapped = einsum(flat, self.weight, "b v h i, h o i -> b v h o")
        return rearrange(mapped, "b v h (q c) -> b v h q c", c=4)


class HeadMixing(nn.Module):
    """x_j -> W x_j with one real matrix over all heads, no bias: what attention's W_V does, before any transport."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal with standard deviation 1/√d, which keeps the variance."""
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.weight.shape[1]))

    def forward(self, tokens: Float[Tensor, "b v d"]) -> Float[Tensor, "b v d"]:
        """W x_j."""
        return F.linear(tokens, self.weight)


TRANSPORTS: dict[str, type[Sandwich]] = {
    "sandwich": Sandwich,
    "identity": Identity,
    "one_sided": OneSided,
    "lift": Lift,
    "lower": Lower,
    "projected": Projected,
}
