"""The quaternion field: base quaternions per shell, and the bounded, data-dependent perturbation of each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from quatsphere.geometry import quaternion
from quatsphere.kernels import Mixing, Network, perturb, resample_vertices
from quatsphere.kernels.torch_backend import perturb_by, tangent


def near_identity(vertices: int, heads: int) -> Float[Tensor, "{vertices} {heads} 4"]:
    """normalize(1 + 0.3 noise): heads start close but distinct (the paper does not say; see docs/paper_map.md)."""
    return quaternion.normalize(aligned(vertices, heads) + 0.3 * torch.randn(vertices, heads, 4))


def aligned(vertices: int, heads: int) -> Float[Tensor, "{vertices} {heads} 4"]:
    """Identity quaternions."""
    return torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(vertices, heads, 1)


FIELD_INITS: dict[str, Callable[[int, int], Tensor]] = {
    "near_identity": near_identity,
    "haar": quaternion.random_unit,
    "aligned": aligned,
}


class LearnedBound(nn.Module):
    """ω = ε tanh(φ) with a learned ε in (0.01, π/4) (eq:perturb-omega); ε = 0.398 at a zero logit."""

    roles = {"logit": "bounds"}
    LOWER, UPPER = 0.01, math.pi / 4

    def __init__(self) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.zeros(()))

    @property
    def value(self) -> Float[Tensor, ""]:
        """ε_l."""
        return self.limit(self.logit)

    @classmethod
    def limit(cls, logit: Float[Tensor, "*shells"]) -> Float[Tensor, "*shells"]:
        """ε of each logit."""
        return torch.sigmoid(logit) * (cls.UPPER - cls.LOWER) + cls.LOWER

    @staticmethod
    def perturb(
        hidden: Tensor, network: Network, shells: Sequence[ShellField], mixing: Mixing | None, backend: str
    ) -> tuple[Tensor, Tensor]:
        """normalize(q_base ⊗ exp(ε tanh(φ))) for each of one or two shells, with the bound of the shell."""
        bases = (shells[0].base, None if len(shells) == 1 else shells[1].base)
        return perturb(hidden, network, bounds_of(shells), *bases, mixing, backend=backend)


class NoBound(nn.Module):
    """ω = φ: the ablation of the bound."""

    @staticmethod
    def perturb(
        hidden: Tensor, network: Network, shells: Sequence[ShellField], mixing: Mixing | None, backend: str
    ) -> tuple[Tensor, Tensor]:
        """normalize(q_base ⊗ exp(φ)) for each of one or two shells."""
        source = perturb_by(tangent(hidden, *network).to(shells[0].base.dtype), shells[0].base)
        if len(shells) == 1:
            return source, source
        mixed = hidden if mixing is None else resample_vertices(hidden, *mixing, backend=backend)
        return source, perturb_by(tangent(mixed, *network).to(shells[1].base.dtype), shells[1].base)


BOUNDS: dict[str, type[LearnedBound] | type[NoBound]] = {"learned": LearnedBound, "none": NoBound}


class ShellField(nn.Module):
    """Base quaternions (V, H, 4) of one shell, learned or frozen, with the shell's perturbation bound and, where
    networks belong to shells and not to steps, its perturbation network."""

    roles = {"base": "quaternions"}
    base: Tensor

    def __init__(
        self,
        vertices: int,
        heads: int,
        init: str,
        learned: bool,
        bound: LearnedBound | NoBound,
        perturbation: Perturbation | None = None,
    ) -> None:
        super().__init__()
        self.init = init
        start = FIELD_INITS[init](vertices, heads)
        if learned:
            self.base = nn.Parameter(start)
        else:
            self.register_buffer("base", start)
        self.bound = bound
        self.perturbation = perturbation

    def extra_repr(self) -> str:
        """Vertices, heads, and whether the base quaternions are learned."""
        vertices, heads, _ = self.base.shape
        state = "learned" if isinstance(self.base, nn.Parameter) else "frozen"
        return f"{vertices} vertices, heads={heads}, {state}"

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Redraw the base quaternions."""
        self.base.copy_(FIELD_INITS[self.init](*self.base.shape[:2]))


def bound_logits(shells: Sequence[ShellField]) -> list[Tensor]:
    """Logits of the learned bounds."""
    return [shell.bound.logit for shell in shells if isinstance(shell.bound, LearnedBound)]


def bounds_of(shells: Sequence[ShellField]) -> Float[Tensor, " shells"]:
    """Learned bounds of one or two shells."""
    return LearnedBound.limit(torch.stack(bound_logits(shells)))


class Perturbation(nn.Module):
    """φ_h: Linear(d, d/H), GELU, Linear(d/H, 3) per head; q_eff = normalize(q_base ⊗ exp(ω)) (eq:perturb).

    The first layers of all heads are one Linear(d, d). It is linear, so it commutes with interpolation along the
    vertices: it runs once on the sources and its output is mixed for the targets, before the GELU.
    """

    def __init__(self, dim: int, heads: int, zero_init: bool = True, backend: str = "auto") -> None:
        super().__init__()
        self.zero_init, self.backend = zero_init, backend
        self.inner = nn.Linear(dim, dim)
        self.outer_weight = nn.Parameter(torch.empty(heads, dim // heads, 3))
        self.outer_bias = nn.Parameter(torch.zeros(heads, 3))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """With `zero_init`, set the last layer to zero: no perturbation at the start; otherwise as in nn.Linear."""
        bound = 0.0 if self.zero_init else 1 / math.sqrt(self.outer_weight.shape[1])
        nn.init.uniform_(self.outer_weight, -bound, bound)
        nn.init.uniform_(self.outer_bias, -bound, bound)

    def extra_repr(self) -> str:
        """Heads."""
        return f"heads={len(self.outer_weight)}"

    def fields(
        self, tokens: Float[Tensor, "b s d"], source: ShellField, target: ShellField, mixing: Mixing | None
    ) -> tuple[Float[Tensor, "b s h 4"], Float[Tensor, "b t h 4"]]:
        """(source field, target field) from one network and the bases and bounds of both shells.

        In the precision of the quaternions, also under autocast.
        """
        shells = [source] if target is source else [source, target]
        hidden = F.linear(tokens, self.inner.weight)
        return source.bound.perturb(hidden, self.network, shells, mixing, self.backend)

    @property
    def network(self) -> Network:
        """The network φ after its first product."""
        return Network(self.inner.bias, self.outer_weight, self.outer_bias)


class PerturbationOfShells(nn.Module):
    """Perturbs every vertex by the network of its shell (`ShellField.perturbation`), the same in all steps."""

    def fields(
        self, tokens: Float[Tensor, "b s d"], source: ShellField, target: ShellField, mixing: Mixing | None
    ) -> tuple[Float[Tensor, "b s h 4"], Float[Tensor, "b t h 4"]]:
        """(source field, target field) from two networks; that of the targets is applied to interpolated tokens."""
        source_field = perturbed(source, tokens)
        if target is source:
            return source_field, source_field
        return source_field, perturbed(target, tokens if mixing is None else resample_vertices(tokens, *mixing))


def perturbed(shell: ShellField, tokens: Float[Tensor, "b v d"]) -> Float[Tensor, "b v h 4"]:
    """Field of one shell from its tokens and network."""
    assert shell.perturbation is not None
    return shell.perturbation.fields(tokens, shell, shell, None)[0]


class NoPerturbation(nn.Module):
    """The field is its base for every input."""

    def fields(
        self, tokens: Tensor, source: ShellField, target: ShellField, mixing: Mixing | None
    ) -> tuple[Tensor, Tensor]:
        """Base quaternions, expanded to the batch."""
        batch = tokens.shape[0]
        return source.base.expand(batch, -1, -1, -1), target.base.expand(batch, -1, -1, -1)
