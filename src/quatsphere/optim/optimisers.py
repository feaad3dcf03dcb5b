"""The two optimisers of a run, with parameter groups by role and rates by step, and the repulsion of vertices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quatsphere.config import OptimConfig
from quatsphere.errors import CheckpointError
from quatsphere.geometry.neighbours import nearest_neighbours
from quatsphere.geometry.sphere import angular_separation, directions, mean_spacing
from quatsphere.optim.riemannian_adam import EagerAdamW, RenormalisedAdamW, RiemannianAdam


def one_cycle(step: int, total: int, warmup: float, div: float, final_div: float) -> float:
    """Fraction of the peak rate at a step: 1/div -> 1 over the warm-up, then 1 -> 1/(div final_div), cosine-shaped.

    Equal to torch's OneCycleLR with cosine annealing at every step.
    """
    top = warmup * total - 1
    if step <= top:
        return _cosine(1 / div, 1.0, step / top if top > 0 else 1.0)
    return _cosine(1.0, 1 / (div * final_div), (step - top) / (total - 1 - top) if total - 1 > top else 1.0)


def constant(step: int, total: int, warmup: float, div: float, final_div: float) -> float:
    """The peak rate at every step."""
    return 1.0


def decay(step: int, total: int, until: float) -> float:
    """Scale of the repulsion step: 1 -> 0 along a half cosine over the fraction `until` of the run, then 0."""
    end = until * total
    return 0.0 if step >= end else 0.5 * (1 + math.cos(math.pi * step / end))


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))


SCHEDULES: dict[str, Callable[[int, int, float, float, float], float]] = {"one_cycle": one_cycle, "constant": constant}


QUATERNION_OPTIMISERS: dict[str, Any] = {
    "riemannian_adam": lambda params, config: RiemannianAdam(params, config.quaternion_lr),
    "adamw_renormalise": lambda params, config: RenormalisedAdamW(
        params, config.quaternion_lr, weight_decay=config.weight_decay
    ),
}


class Optimisers:
    """AdamW for everything but quaternions, Riemannian Adam for those; rates are a function of the step.

    Weight decay applies to all of AdamW's parameters except positions (the paper excludes those only). Every group of
    AdamW follows the schedule with its own peak; the quaternions' rate is constant unless `annealed`.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], roles: Mapping[str, list[str]], config: OptimConfig):
        self.config = config
        peaks = {"positions": config.position_lr, "bounds": config.bound_lr_factor * config.peak_lr}
        groups = [
            {
                "params": [parameters[name] for name in names],
                "names": names,
                "peak": peaks.get(role, config.peak_lr),
                "weight_decay": 0.0 if role == "positions" else config.weight_decay,
                "role": role,
            }
            for role, names in roles.items()
            if names and role != "quaternions"
        ]
        self.optimisers: list[torch.optim.Optimizer] = [_adamw(groups, config.peak_lr)]
        if roles.get("quaternions"):
            group = {
                "params": [parameters[name] for name in roles["quaternions"]],
                "names": roles["quaternions"],
                "peak": config.quaternion_lr,
                "role": "quaternions",
            }
            self.optimisers.append(QUATERNION_OPTIMISERS[config.quaternion_optimizer]([group], config))

    def set_rates(self, step: int, total: int) -> dict[str, float]:
        """Set every group's rate for this step of `total`; returns role -> rate."""
        config, rates = self.config, {}
        share = SCHEDULES[config.schedule](step, total, config.warmup, config.initial_div, config.final_div)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                constant = group["role"] == "quaternions" and config.quaternion_schedule == "constant"
                group["lr"] = rates[group["role"]] = group["peak"] * (1.0 if constant else share)
        return rates

    def zero_grad(self) -> None:
        """Clear all gradients."""
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def step(self) -> None:
        """Step both optimisers."""
        for optimiser in self.optimisers:
            optimiser.step()

    def state_tensors(self) -> dict[str, Tensor]:
        """State as plain tensors, `parameter name/moment` -> tensor: needs no pickle."""
        return {
            f"{name}/{key}": value
            for optimiser, name, parameter in self._parameters()
            for key, value in optimiser.state.get(parameter, {}).items()
        }

    def load_state_tensors(self, state: Mapping[str, Tensor]) -> None:
        """Inverse of `state_tensors`; CheckpointError if a tensor is missing or of another shape or type."""
        wrong = self.state_misfit(state)
        if wrong is not None:
            raise CheckpointError(f"{wrong}; use an older checkpoint")
        for optimiser, name, parameter in self._parameters():
            for key in _moments(optimiser, parameter):
                if f"{name}/{key}" in state:
                    host = key == "step" and not optimiser.defaults.get("fused")
                    place = torch.device("cpu") if host else parameter.device
                    optimiser.state[parameter][key] = state[f"{name}/{key}"].to(place).clone()

    def state_misfit(self, state: Mapping[str, Tensor]) -> str | None:
        """Describe the first tensor that is missing, unknown or of another shape or type; None if there is none.

        Parameters that never had a gradient have no state.
        """
        known: set[str] = set()
        for optimiser, name, parameter in self._parameters():
            moments = _moments(optimiser, parameter)
            names = {f"{name}/{key}" for key in moments}
            known |= names
            if not names.isdisjoint(state) and not names <= state.keys():
                return f"optimiser state {min(names - state.keys())} is missing"
            for key, (shape, dtype) in moments.items():
                value = state.get(f"{name}/{key}")
                if value is None:
                    continue
                typed = value.dtype == dtype or (key == "step" and value.is_floating_point())
                if tuple(value.shape) != shape or not typed:
                    return f"optimiser state {name}/{key} has shape {tuple(value.shape)} and type {value.dtype}"
        unknown = sorted(state.keys() - known)
        return f"optimiser state {unknown[0]} is unknown" if unknown else None

    def _parameters(self) -> Iterator[tuple[torch.optim.Optimizer, str, Tensor]]:
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                for name, parameter in zip(group["names"], group["params"], strict=True):
                    yield optimiser, name, parameter


def _moments(optimiser: torch.optim.Optimizer, parameter: Tensor) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Name -> (shape, type) of the tensors that an optimiser keeps for a parameter."""
    tangent = isinstance(optimiser, RiemannianAdam)
    shape = (*parameter.shape[:-1], 3) if tangent else tuple(parameter.shape)
    names = ("mean", "square") if tangent else ("exp_avg", "exp_avg_sq")
    return {"step": ((), torch.float32), **dict.fromkeys(names, (shape, parameter.dtype))}


def _adamw(groups: list[dict[str, Any]], lr: float) -> EagerAdamW:
    """torch's fused AdamW, which passes over each tensor once and steps a group in one launch.

    A fused step changes tensors without incrementing their version, from which graphs detect moved positions: the hook
    increments it.
    """
    optimiser = EagerAdamW(groups, lr=lr, fused=True)
    optimiser.register_step_post_hook(_increment_versions)
    return optimiser


def _increment_versions(optimiser: torch.optim.Optimizer, *_: object) -> None:
    stepped = [p for group in optimiser.param_groups for p in group["params"] if p.grad is not None]
    torch.autograd.graph.increment_version(stepped)


# Repulsion: spreads the vertices of a shell at fixed radii (eq:coulomb).

SOFTENING = 1e-4
"""ε_r of eq:coulomb (the paper: "a small constant")."""


def repulsion_force(points: Float[Tensor, "v 3"], k: int) -> Float[Tensor, "v 3"]:
    """F_i = Σ_j t_ij / (ϑ_ij² + ε_r) over the k nearest others, tangential at the unit vector i.

    t_ij points away from j. Where i and j coincide or are antipodal, t_ij is undefined and set to zero, which also
    excludes the vertex itself.
    """
    neighbours = nearest_neighbours(points, points, min(k + 1, len(points)), "angular")
    own, other = points.unsqueeze(1), points[neighbours]
    away = (own * other).sum(-1, keepdim=True) * own - other
    length = away.norm(dim=-1, keepdim=True)
    unit = torch.where(length > 1e-9, away / length.clamp(min=1e-9), torch.zeros_like(away))
    angle = angular_separation(own, other).unsqueeze(-1)
    return (unit / (angle * angle + SOFTENING)).sum(dim=1)


@torch.no_grad()
def repel_(positions: Tensor, k: int, median_step: float) -> None:
    """Move every vertex along its force, scaled so that the median angular displacement is `median_step`.

    In place, along great circles, at constant distance from the centre. Near equilibrium the median force almost
    vanishes and the scale would move vertices beside a lattice fault across the sphere (by 177 degrees at V = 256), so
    no vertex moves further than half the mean spacing.
    """
    radius = positions.norm(dim=-1, keepdim=True)
    points = directions(positions.double())
    force = repulsion_force(points, k)
    size = force.norm(dim=-1, keepdim=True)
    median = size.median()
    if median_step <= 0:
        return
    angle = (size * (median_step / median)).clamp(max=0.5 * mean_spacing(len(points)))
    moved = torch.cos(angle) * points + torch.sin(angle) * force / size.clamp(min=1e-300)
    new = radius * directions(moved).to(positions.dtype)
    positions.copy_(torch.where(median > 0, new, positions))  # decided on the device: the host does not wait


def repel(shells: Sequence[Tensor], step: int, total: int, config: OptimConfig) -> None:
    """Apply repulsion if it is due: every `repulsion_every` batches, decaying to zero at `repulsion_until`."""
    share = decay(step, total, config.repulsion_until)
    if not config.repulsion or step % config.repulsion_every or share == 0:
        return
    for positions in shells:
        median_step = config.repulsion_start * mean_spacing(len(positions)) * share
        repel_(positions, config.repulsion_neighbours, median_step)
