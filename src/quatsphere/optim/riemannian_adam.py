"""Riemannian Adam on S³ with moments in the Lie algebra (eqs rieadam-pullback to rieadam)."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.geometry import quaternion


def pull_back(q: Float[Tensor, "*batch 4"], gradient: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 3"]:
    """ω = Im(q* ⊗ (g - ⟨g, q⟩ q)): the tangent part of a Euclidean gradient, in su(2) (eq:rieadam-pullback).

    Computed as Im(q* ⊗ g): q* ⊗ q is real, so the part along q vanishes.
    """
    return _product(q, gradient, *_product_table(q.device, q.dtype, conjugate=True))[..., 1:]


def adam_step(
    gradient: Tensor, mean: Tensor, square: Tensor, step: int, lr: float, betas: tuple[float, float], eps: float
) -> Tensor:
    """Adam's step -η m̂/(√v̂ + ε) in a flat space; updates the moments in place."""
    mean.lerp_(gradient, 1 - betas[0])
    square.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    corrected = square.sqrt() / (1 - betas[1] ** step) ** 0.5
    return -lr / (1 - betas[0] ** step) * mean / (corrected + eps)


def retract(q: Float[Tensor, "*batch 4"], step: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 4"]:
    """q ← normalize(q ⊗ exp(Δω)) (eq:rieadam)."""
    moved = _product(q, quaternion.exp(step), *_product_table(q.device, q.dtype))
    return quaternion.normalize(moved, check=False)


def _product(a: Tensor, b: Tensor, order: Tensor, signs: Tensor) -> Tensor:
    """Hamilton product in 4 or 6 operations instead of 29: 16 products, sorted; on CPUs with the bits of `multiply`."""
    products = (a.unsqueeze(-1) * b.unsqueeze(-2)).flatten(-2)
    terms = (products.index_select(-1, order) * signs).unflatten(-1, (4, 4))
    if not a.is_cpu:
        return terms.sum(-1)
    first, second, third, fourth = terms.unbind(-1)
    return first + second + third + fourth


@functools.cache
def _product_table(device: torch.device, dtype: torch.dtype, conjugate: bool = False) -> tuple[Tensor, Tensor]:
    """Indices 4 i + j of the products a_i b_j that a Hamilton product sums, four per component, and their signs."""
    units = torch.eye(4, device="cpu")
    left = quaternion.conjugate(units) if conjugate else units
    table = quaternion.multiply(left[:, None], units[None]).flatten(0, 1).T  # (component, product)
    order = table.abs().argsort(dim=1, descending=True, stable=True)[:, :4]
    return order.flatten().to(device), table.gather(1, order).flatten().to(device, dtype)


class EagerOptimizer(torch.optim.Optimizer):
    """torch's optimiser without the wrappers that import torch's compiler, which takes longer than importing torch."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)


class EagerAdamW(EagerOptimizer, torch.optim.AdamW):
    """AdamW without the wrappers that import torch's compiler."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class RiemannianAdam(EagerOptimizer):
    """Adam for unit quaternions `(..., 4)`, real part first.

    Both moments are in su(2) at the identity, to which left multiplication maps every tangent space: they need no
    transport between steps, and the method commutes with global left rotations. All tensors of a group are stepped at
    once; their moments are views of one tensor. `p.grad` is not modified.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 2.5e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        if not 0 <= lr < float("inf"):
            raise ConfigError(f"lr must be a finite number >= 0: got {lr}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ConfigError(f"betas must lie in [0, 1): got {betas}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        for group in self.param_groups:
            for q in group["params"]:
                _check_unit(q)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step every quaternion tensor that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for batch in self._by_step(group["params"]):
                self._step_batch(batch, group["lr"], group["betas"], group["eps"])
        return loss

    def _by_step(self, parameters: list[Tensor]) -> list[list[Tensor]]:
        """Tensors with a gradient, grouped by number of steps, dtype and device."""
        batches: dict[tuple[Any, ...], list[Tensor]] = {}
        for q in parameters:
            if q.grad is None:
                continue
            state = self.state[q]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                state["mean"] = torch.zeros_like(q[..., 1:])
                state["square"] = torch.zeros_like(q[..., 1:])
            batches.setdefault((int(state["step"]), q.dtype, q.device), []).append(q)
        return list(batches.values())

    def _step_batch(self, params: list[Tensor], lr: float, betas: tuple[float, float], eps: float) -> None:
        q = torch.cat([p.reshape(-1, 4) for p in params])
        gradient = torch.cat([p.grad.reshape(-1, 4) for p in params if p.grad is not None])
        mean, square = (self._moments(params, name) for name in ("mean", "square"))
        step = int(self.state[params[0]]["step"]) + 1
        q = retract(q, adam_step(pull_back(q, gradient), mean, square, step, lr, betas, eps))
        moved = q.split([p.numel() // 4 for p in params])
        torch._foreach_copy_(params, [new.view_as(p) for p, new in zip(params, moved, strict=True)])
        for p in params:
            self.state[p]["step"] += 1

    def _moments(self, params: list[Tensor], name: str) -> Tensor:
        """The moments of all tensors in one (N, 3), of which the state of each is a view."""
        views = [self.state[p][name] for p in params]
        whole = views[0]._base
        starts = [0, *itertools.accumulate(view.numel() for view in views)]
        if (
            whole is not None
            and whole.numel() == starts[-1]
            and all(
                view._base is whole and view.storage_offset() == start
                for view, start in zip(views, starts, strict=False)
            )
        ):
            return whole
        whole = torch.cat([view.reshape(-1, 3) for view in views])
        for p, view, part in zip(params, views, whole.split([view.numel() // 3 for view in views]), strict=True):
            self.state[p][name] = part.view_as(view)
        return whole


class RenormalisedAdamW(EagerAdamW):
    """AdamW in R⁴ followed by hard renormalisation: the comparison of the paper's optimisation section."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step AdamW, then normalise every quaternion."""
        loss = super().step(closure)
        for group in self.param_groups:
            for q in group["params"]:
                q.copy_(quaternion.normalize(q))
        return loss


def _check_unit(q: Tensor) -> None:
    if q.shape[-1:] != (4,):
        raise ConfigError(f"quaternions must have shape (..., 4), real part first: got {tuple(q.shape)}")
    worst = float((q.detach().norm(dim=-1) - 1).abs().max())
    if not worst < 1e-4:
        raise ConfigError(f"quaternions must be unit: a norm is off by {worst:.1e}; call quaternion.normalize first")
