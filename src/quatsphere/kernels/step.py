"""A whole step of QSV in one operator, where a backend has one: same numbers as its parts one after the other."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from quatsphere.kernels.attention import choose_backend
from quatsphere.kernels.cpu import step as numba_cpu_step
from quatsphere.kernels.per_token import Mixing, Network
from quatsphere.kernels.problem import ROUTINGS, TRANSPORTS


class Ends(NamedTuple):
    """The two shells of a step: bases (S, H, 4) and (T, H, 4), none for the second within a shell, and their bounds."""

    bounds: Tensor
    source: Tensor
    target: Tensor | None


class Kept(NamedTuple):
    """Dropout of the weights and of the update: masks or None, and what survivors count."""

    edges: Tensor | None
    update: Tensor | None
    edge_scale: float
    update_scale: float


def runs_whole(tokens: Tensor, base: Tensor, backend: str = "auto") -> bool:
    """Whether steps of such tokens run in one operator: fused loops for the CPU, and one precision throughout."""
    if choose_backend(backend, str(tokens.device)) != "numba_cpu" or torch.is_autocast_enabled("cpu"):
        return False
    return tokens.dtype == base.dtype and tokens.dtype in (torch.float32, torch.float64)


def whole_step(
    tokens: Tensor,
    first: Tensor,
    network: Network,
    ends: Ends,
    neighbours: Tensor,
    beta: Tensor,
    post: tuple[Tensor, Tensor],
    *,
    residual: tuple[Tensor | None, Mixing | None],
    kept: Kept,
    rules: tuple[str, str],
) -> Tensor:
    """Tokens (B, S, d) -> (B, T, d): `perturb` of tokens firstᵀ, `quaternion_attention` by rules = (routing,
    transport), `feed_forward` by post = (up, down), and the residual = (gate, mixing), none of both within a shell."""
    gate, mixing = residual
    mixture = (None, None) if mixing is None else mixing
    numbers = ROUTINGS.index(rules[0]), TRANSPORTS.index(rules[1])
    arguments = (tokens, first, *network, *ends, beta, *post, gate, neighbours, *mixture, *kept, *numbers)
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        out, *_ = numba_cpu_step.step(*arguments)
        return out
    return numba_cpu_step.infer(*arguments)
