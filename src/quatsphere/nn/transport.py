"""Transport: the map from a source's features to the message that a target receives.

To add a rule to the package, touch three files: this one (a class whose `rule` is a static function on edges, and its
name in TRANSPORTS), `config/schema.py` (the choice) and `study/variants.py` (its row of an ablation). Plain torch runs
it on every device; fused kernels may follow. A rule outside the package touches none: see `quatsphere.nn.extensions`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from quatsphere.kernels import Rule


class Transport(nn.Module):
    """Base of all rules: `prepare` maps the features of every source, then the kernel applies `rule`."""

    rule: Rule
    """Name of the kernel's transport, or a function on edges."""

    def __init__(self, heads: int, channels: int) -> None:
        super().__init__()

    def prepare(self, features: Float[Tensor, "b v h q 4"]) -> Float[Tensor, "b v h q 4"]:
        """Return the features unchanged."""
        return features


class Sandwich(Transport):
    """m_ij = r_ij ⊗ x_j ⊗ r_ij* (eq:attn-weight)."""

    rule = "sandwich"


class Identity(Transport):
    """m_ij = x_j: the transport role switched off."""

    rule = "identity"


class OneSided(Transport):
    """m_ij = r_ij ⊗ x_j, QuatE's product: mixes real and imaginary parts."""

    rule = "one_sided"


class Lift(Transport):
    """m_ij = q_j ⊗ x_j ⊗ q_j*: into the shared frame only."""

    rule = "lift"


class Lower(Transport):
    """m_ij = q_i* ⊗ x_j ⊗ q_i: from the shared frame into the target's only."""

    rule = "lower"


class Projected(Transport):
    """m_ij = W_h x_j, a learned real linear map per head, independent of the field."""

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
        mapped = torch.einsum("bvhi,hoi->bvho", features.flatten(3), self.weight)
        return mapped.unflatten(3, (-1, 4))


class HeadMixing(nn.Module):
    """x_j -> W x_j with one real matrix over all heads, no bias, before any transport: attention's W_V."""

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


TRANSPORTS: dict[str, type[Transport]] = {
    "sandwich": Sandwich,
    "identity": Identity,
    "one_sided": OneSided,
    "lift": Lift,
    "lower": Lower,
    "projected": Projected,
}
