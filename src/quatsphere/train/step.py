"""One optimisation step: forward pass, losses, backward pass, check for broken numbers, updates, constraints.

On an accelerator the host waits once: all checks and the sums for the metrics are one vector, read before the update.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quatsphere.config import OptimConfig, TrainConfig
from quatsphere.geometry.sphere import directions
from quatsphere.models import Model
from quatsphere.optim import Optimisers, repel
from quatsphere.torch_operators import record_function
from quatsphere.train.batches import Batch
from quatsphere.train.cuda_graph import CudaRecorder, RecordedPass, Recorder
from quatsphere.train.distributed import Team
from quatsphere.train.losses import AuxiliaryLosses, cross_entropy

_log = logging.getLogger("quatsphere")
AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class BrokenNumber(ArithmeticError):
    """Error of a tensor that must not be used: its name, and its fault."""

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


def largest(tensors: list[Tensor]) -> Tensor:
    """Largest absolute value of all tensors, not finite if one is not; joined on CPUs, where each operation costs."""
    if tensors and all(tensor.is_cpu for tensor in tensors):
        low, high = torch.aminmax(torch.cat([tensor.reshape(-1) for tensor in tensors]))
        return torch.maximum(-low, high)
    return torch.nn.utils.get_total_norm(tensors, math.inf)


@dataclass(frozen=True)
class StepOutput:
    """Sums of a step over the images of all processes."""

    cross_entropy: float
    correct: float
    """Number of images whose largest logit is that of their label."""
    auxiliary: dict[str, float]
    """Name -> coefficient times loss times the number of images."""


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
        self.parameters = dict(model.named_parameters())
        self.optimisers = Optimisers(self.parameters, roles, optim)
        self.auxiliary = AuxiliaryLosses(model, roles, train)
        self.positions = {name: p for name, p in self.parameters.items() if name in roles["positions"]}
        self.forward: Callable[..., Any] = torch.compile(model) if train.compile else model
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=train.precision == "fp16")
        self.propagate: Callable[..., tuple[dict[str, Tensor], Tensor]] = self._propagate
        if self._recordable(train):
            self.record(CudaRecorder(self.device))
        self.rates: dict[str, float] = {}
        """Learning rates of the last step, by parameter role."""

    def __call__(self, batch: Batch, batch_size: int, step: int) -> StepOutput:
        """Train on this process's part of a batch of `batch_size` images; BrokenNumber if a number is not finite."""
        if self.device.type == "cpu":
            self._require_directions()
        self.rates = self.optimisers.set_rates(step, self.total_steps)
        self.optimisers.zero_grad()
        losses, logits = self.propagate(batch.images, batch.targets, batch.keys, batch_size=batch_size)
        with record_function("quatsphere::finite_check"):
            output = self._checked_sums(losses, logits, batch.labels, batch_size)
        with record_function("quatsphere::optimisers"):
            self._apply_gradients()
        with record_function("quatsphere::repulsion"):
            repel(list(self.positions.values()), step, self.total_steps, self.config)
        with record_function("quatsphere::constrain"):
            self.model.constrain()
        return output

    def _propagate(
        self, images: Tensor, targets: Tensor, keys: Tensor, batch_size: int
    ) -> tuple[dict[str, Tensor], Tensor]:
        """(losses by name, logits) of images; leaves the gradients of all parameters."""
        with (
            record_function("quatsphere::forward"),
            torch.autocast(self.device.type, AUTOCAST[self.precision], self.precision != "fp32"),
        ):
            logits = self.forward(images, sample_keys=keys)
        with record_function("quatsphere::losses"):
            losses = {"cross_entropy": cross_entropy(logits, targets, batch_size), **self.auxiliary.terms()}
            entropy, *auxiliary = losses.values()
            loss = entropy
            if auxiliary:
                regular = functools.reduce(torch.add, auxiliary)
                loss = entropy + (regular if self.team.world == 1 else regular / self.team.world)
        with record_function("quatsphere::backward"):
            self.scaler.scale(loss).backward()
            self.team.sum_gradients(self.parameters.values())
        return {name: loss.detach() for name, loss in losses.items()}, logits.detach()

    def record(self, recorder: Recorder) -> None:
        """Record and replay the operations before the checks from now on."""
        parameters = list(self.parameters.values())
        self.propagate = RecordedPass(self._propagate, parameters, lambda: self.auxiliary.previous, recorder)

    def _recordable(self, train: TrainConfig) -> bool:
        """True if steps are to be recorded as a CUDA graph and can be; a warning if they cannot."""
        if not train.cuda_graph:
            return False
        if self.device.type == "cuda" and self.team.world == 1 and train.precision != "fp16" and not train.compile:
            return True
        _log.warning(
            "quatsphere: warning: train.cuda_graph needs a CUDA device, one process, no fp16 and no compile; "
            "steps run eagerly"
        )
        return False

    def _checked_sums(self, losses: dict[str, Tensor], logits: Tensor, labels: Tensor, batch_size: int) -> StepOutput:
        """Read the sums of the step; stop, all processes together, if a number of any process is not finite."""
        entropy, *auxiliary = losses.values()
        correct = (logits.argmax(1) == labels).sum()
        checks = [self._directions().sum()] if self.positions and self.device.type != "cpu" else []
        if not self.scaler.is_enabled():
            gradients = [p.grad for p in self.parameters.values() if p.grad is not None and p.numel()]
            checks.append(largest(gradients))
        values = torch.stack([entropy * batch_size, correct, *auxiliary, *checks]).tolist()  # the only wait
        bad = None if all(map(math.isfinite, values)) else self._first_broken(losses)
        sums = torch.tensor([float(bad is not None), *values[:2]], dtype=torch.float64)
        broken, total, right = self.team.sum(sums).tolist()
        if broken:
            raise bad or BrokenNumber("a loss of another process")
        names = list(losses)[1:]
        return StepOutput(total, right, {name: values[2 + i] * batch_size for i, name in enumerate(names)})

    def _first_broken(self, losses: dict[str, Tensor]) -> BrokenNumber | None:
        """The first broken number among positions, losses and gradients, in this order."""
        try:
            self._require_directions()
        except BrokenNumber as broken:
            return broken
        named = list(losses.items())
        if not self.scaler.is_enabled():
            named += [(f"gradient of {n}", p.grad) for n, p in self.parameters.items() if p.grad is not None]
        bad = first_not_finite(named)
        return None if bad is None else BrokenNumber(bad)

    def _directions(self) -> Tensor:
        """Directions of the vertices of all shells."""
        return directions(torch.cat([p.detach() for p in self.positions.values()]))

    def _require_directions(self) -> None:
        """Stop if a vertex has no direction: on a CPU torch's gradient of a pixel sampled at NaN ends the process."""
        if not self.positions or first_not_finite([("positions", self._directions())]) is None:
            return
        bad = first_not_finite((name, directions(p.detach())) for name, p in self.positions.items())
        if bad is not None:
            finite = bool(self.positions[bad].detach().isfinite().all())
            raise BrokenNumber(bad, "has a vertex without a direction" if finite else "is not finite")

    def _apply_gradients(self) -> None:
        """Step both optimisers; in fp16 a step whose gradients overflowed is skipped."""
        for optimiser in self.optimisers.optimisers:
            self.scaler.step(optimiser)
        self.scaler.update()
        if self.scaler.is_enabled() and self.scaler.get_scale() < 1:
            raise BrokenNumber("a gradient", "overflows fp16 at every scale")
