"""One optimisation step: forward pass, losses, backward pass, check for broken numbers, updates, constraints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from quatsphere.config import OptimConfig, TrainConfig
from quatsphere.geometry.sphere import directions
from quatsphere.models import Model
from quatsphere.optim import Optimisers, repel
from quatsphere.train.batches import Batch
from quatsphere.train.distributed import Team
from quatsphere.train.losses import AuxiliaryLosses, cross_entropy

AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class BrokenNumber(ArithmeticError):
    """A tensor that stops the run, by name, and what is wrong with it."""

    def __init__(self, tensor: str, fault: str = "is not finite") -> None:
        super().__init__(f"{tensor} {fault}")
        self.tensor, self.fault = tensor, fault


def first_not_finite(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """Name of the first tensor with a NaN or infinity; None, after a single wait for the device, if there is none.

    A sum is not finite if one of its terms is not. The converse fails only for huge numbers: then each is checked.
    """
    values = [(name, value.detach()) for name, value in named if value.is_floating_point()]
    if not values or bool(torch.stack([value.sum(dtype=torch.float32) for _, value in values]).isfinite().all()):
        return None
    return next((name for name, value in values if not bool(value.isfinite().all())), None)


@dataclass(frozen=True)
class StepOutput:
    """Logits of this process's images and the losses of the step."""

    logits: Tensor
    cross_entropy: Tensor
    """This process's share of the mean over all images."""
    auxiliary: dict[str, Tensor]
    """Name -> coefficient times loss, the same in every process."""


class OptimisationStep:
    """A model with its optimisers and losses; each call is one step of `total_steps`.

    Training calls it with batches of the data, the benchmark with random images.
    """

    def __init__(
        self,
        model: Model,
        train: TrainConfig,
        optim: OptimConfig,
        total_steps: int,
        *,
        device: torch.device | None = None,
        team: Team | None = None,
    ) -> None:
        roles = model.parameter_roles()
        self.model, self.config, self.total_steps = model, optim, total_steps
        self.device, self.team = device or torch.device("cpu"), team or Team()
        self.precision = train.precision
        self.optimisers = Optimisers(dict(model.named_parameters()), roles, optim)
        self.auxiliary = AuxiliaryLosses(model, roles, train)
        self.positions = {name: p for name, p in model.named_parameters() if name in roles["positions"]}
        self.forward: Callable[..., Any] = torch.compile(model) if train.compile else model
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=train.precision == "fp16")
        self.rates: dict[str, float] = {}
        """Learning rates of the last step, by parameter role."""

    def __call__(self, batch: Batch, batch_size: int, step: int) -> StepOutput:
        """Train on this process's part of a batch of `batch_size` images; BrokenNumber before any harm is done."""
        with record_function("quatsphere::finite_check"):
            self._require_directions()
        self.rates = self.optimisers.set_rates(step, self.total_steps)
        self.optimisers.zero_grad()
        with (
            record_function("quatsphere::forward"),
            torch.autocast(self.device.type, AUTOCAST[self.precision], self.precision != "fp32"),
        ):
            logits = self.forward(batch.images, sample_keys=batch.keys)
        with record_function("quatsphere::losses"):
            entropy = cross_entropy(logits, batch.targets, batch_size)
            auxiliary = self.auxiliary.terms()
            loss = entropy + sum(auxiliary.values()) / self.team.world
        with record_function("quatsphere::backward"):
            self.scaler.scale(loss).backward()
            self.team.sum_gradients(self.model.parameters())
        with record_function("quatsphere::finite_check"):
            self._require_finite({"cross_entropy": entropy, **auxiliary})
        with record_function("quatsphere::optimisers"):
            self._apply_gradients()
        with record_function("quatsphere::repulsion"):
            repel(list(self.positions.values()), step, self.total_steps, self.config)
        with record_function("quatsphere::constrain"):
            self.model.constrain()
        return StepOutput(logits, entropy, auxiliary)

    def _require_directions(self) -> None:
        """Stop if a vertex has no direction: torch's gradient of a pixel sampled at NaN ends the process."""
        if not self.positions:
            return
        found = {name: p.detach() for name, p in self.positions.items()}
        if first_not_finite([("positions", directions(torch.cat(list(found.values()))))]) is None:  # all shells at once
            return
        bad = first_not_finite((name, directions(p)) for name, p in found.items())
        if bad is not None:
            finite = bool(found[bad].isfinite().all())
            raise BrokenNumber(bad, "has a vertex without a direction" if finite else "is not finite")

    def _require_finite(self, losses: dict[str, Tensor]) -> None:
        """Stop before the update, all processes together, if a loss or gradient of any process is not finite."""
        named = list(losses.items())
        if not self.scaler.is_enabled():
            named += [(f"gradient of {n}", p.grad) for n, p in self.model.named_parameters() if p.grad is not None]
        bad = first_not_finite(named)
        if self.team.any(bad is not None):
            raise BrokenNumber(bad or "a loss of another process")

    def _apply_gradients(self) -> None:
        """Step both optimisers; in fp16 a step whose gradients overflowed is skipped."""
        for optimiser in self.optimisers.optimisers:
            self.scaler.step(optimiser)
        self.scaler.update()
        if self.scaler.is_enabled() and self.scaler.get_scale() < 1:
            raise BrokenNumber("a gradient", "overflows fp16 at every scale")
