"""Routing: the weight of each neighbour.

To add a rule to the package, touch three files: this one (a class whose `rule` is a static function on edges, and its
name in ROUTINGS), `config/schema.py` (the choice) and `study/variants.py` (its row of an ablation). Plain torch runs
it on every device; fused kernels may follow. A rule outside the package touches none: see `quatsphere.nn.extensions`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from quatsphere.kernels import Rule
from quatsphere.nn.layout import Shell


class Routing(nn.Module):
    """Base of all rules. Every rule has the parameter β, used or not, so that variants have equal parameters.

    β_h = softplus(logit) + 0.1, learned per head and step, or frozen.
    """

    roles = {"beta_logit": "betas"}
    rule: Rule
    """Name of the kernel's routing, or a function on edges."""
    beta_logit: Tensor

    def __init__(self, heads: int, beta_start: float | None = None, frozen: bool = False) -> None:
        super().__init__()
        logit = torch.full((heads,), 0.0 if beta_start is None else _inverse_softplus(beta_start - 0.1))
        if frozen:
            self.register_buffer("beta_logit", logit)
        else:
            self.beta_logit = nn.Parameter(logit)

    def extra_repr(self) -> str:
        """Heads, and whether β is fixed."""
        return f"heads={len(self.beta_logit)}{'' if isinstance(self.beta_logit, nn.Parameter) else ', frozen'}"

    @property
    def beta(self) -> Float[Tensor, "h"]:
        """β_h > 0.1, an inverse temperature: high is sharp."""
        return self.positive(self.beta_logit)

    @staticmethod
    def positive(logit: Float[Tensor, "*steps h"]) -> Float[Tensor, "*steps h"]:
        """β of each logit."""
        return F.softplus(logit) + 0.1

    def directions(self, shell: Shell) -> Tensor | None:
        """Directions (V, 3) of the vertices, for rules that need them."""
        return None


class Alignment(Routing):
    """softmax_j(β_h Re(r_ij)) (eq:attn-weight)."""

    rule = "alignment"


class Absolute(Routing):
    """softmax_j(β_h |Re(r_ij)|): q and -q count as one rotation."""

    rule = "absolute"


class Uniform(Routing):
    """1/k: the routing role switched off; β has no gradient."""

    rule = "uniform"


class Geometric(Routing):
    """softmax_j(-β_h ‖p_i - q_i p_j q_i*‖²) on unit directions, differentiable in the positions."""

    rule = "geometric"

    def directions(self, shell: Shell) -> Tensor | None:
        """Unit vectors from the centre of the sphere."""
        return shell.directions()


def _inverse_softplus(value: float) -> float:
    return value + math.log(-math.expm1(-value))


ROUTINGS: dict[str, type[Routing]] = {
    "alignment": Alignment,
    "absolute": Absolute,
    "uniform": Uniform,
    "geometric": Geometric,
}
