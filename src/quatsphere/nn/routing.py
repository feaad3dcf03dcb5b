"""Routing: how much each neighbour weighs. Every rule owns β, used or not, so that variants keep their parameters."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from quatsphere.nn.layout import Shell


class Alignment(nn.Module):
    """softmax_j(β_h Re(r_ij)) with β_h = softplus(logit) + 0.1 learned per head and step (eq:attn-weight)."""

    roles = {"beta_logit": "betas"}
    rule = "alignment"
    beta_logit: Tensor

    def __init__(self, heads: int, beta_start: float | None = None, frozen: bool = False) -> None:
        super().__init__()
        logit = torch.full((heads,), 0.0 if beta_start is None else _inverse_softplus(beta_start - 0.1))
        if frozen:
            self.register_buffer("beta_logit", logit)
        else:
            self.beta_logit = nn.Parameter(logit)

    @property
    def beta(self) -> Float[Tensor, "h"]:
        """β_h > 0.1, an inverse temperature: high is sharp."""
        return F.softplus(self.beta_logit) + 0.1

    def directions(self, shell: Shell) -> Tensor | None:
        """What the rule needs to know of the vertices' places: nothing."""
        return None


class Absolute(Alignment):
    """softmax_j(β_h |Re(r_ij)|): folds the double cover."""

    rule = "absolute"


class Uniform(Alignment):
    """1/k: the routing role switched off; β stays as a parameter that nothing reaches."""

    rule = "uniform"


class Geometric(Alignment):
    """softmax_j(-β_h ‖p_i - q_i p_j q_i*‖²) on unit directions, differentiable in the positions."""

    rule = "geometric"

    def directions(self, shell: Shell) -> Tensor | None:
        """Unit vectors from the centre of the sphere."""
        return shell.directions()


def _inverse_softplus(value: float) -> float:
    return value + math.log(-math.expm1(-value))


ROUTINGS: dict[str, type[Alignment]] = {
    "alignment": Alignment,
    "absolute": Absolute,
    "uniform": Uniform,
    "geometric": Geometric,
}
