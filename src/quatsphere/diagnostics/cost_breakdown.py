"""Parameters and forward time of each part of a model."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quatsphere.diagnostics.traced_model import patched_attribute, unfused_steps
from quatsphere.models import QSV, LinearModel, Model, ResNet20
from quatsphere.models.lattice import model_steps

Clock = Callable[[], float]
Method = tuple[str, Any, str]
"""Part, object, name of its method."""
REPEATS = 3
"""Timed passes."""
FUSED_NOTE = "measured part by part; training runs these parts fused"
"""Note on the times of a model whose steps otherwise run in one operator."""


def timed_methods(model: Any) -> list[Method]:
    """Return the methods to time; none of them calls another."""
    if isinstance(model, LinearModel):
        return [("classifier", model.classifier, "forward")]
    if isinstance(model, ResNet20):
        stages = [(f"stage {i}", stage, "forward") for i, stage in enumerate(model.stages, start=1)]
        return [("stem", model.stem, "forward"), *stages, ("classifier", model.classifier, "forward")]
    modules = (("patch embedding", model.embed), ("pooling", model.pool), ("classifier", model.classifier))
    parts: list[Method] = [(name, module, "forward") for name, module in modules]
    for step in (step.module for step in model_steps(model)):
        if isinstance(model, QSV):
            parts += [("perturbation", step.perturbation, "fields"), ("kernel", step, "attend")]
            parts.append(("Hamilton block", step.ffn, "forward"))
        else:
            parts += [("attention", step.attention, "forward"), ("ffn", step.ffn, "forward")]
    return parts


@torch.no_grad()
def time_parts(
    model: Model, images: Tensor, repeats: int = REPEATS, clock: Clock = time.perf_counter
) -> dict[str, float]:
    """Return the seconds of a forward pass by part, the mean of `repeats` after a warm-up.

    `rest` is the time outside all parts. Steps run unfused, because a fused operator has no parts to time.
    """
    seconds: dict[str, float] = {}
    now = _synchronized(clock, images.device)

    def timed(part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            start = now()
            out = method(*arguments, **named)
            seconds[part] = seconds.get(part, 0.0) + now() - start
            return out

        return call

    with ExitStack() as stack:
        stack.enter_context(unfused_steps(model))
        model(images)
        for part, owner, name in timed_methods(model):
            stack.enter_context(patched_attribute(owner, name, partial(timed, part)))
        start = now()
        for _ in range(repeats):
            model(images)
        total = now() - start
    return {part: value / repeats for part, value in {**seconds, "rest": total - sum(seconds.values())}.items()}


@torch.no_grad()
def time_forward(model: Model, images: Tensor) -> float:
    """Return the seconds of an unmodified forward pass, the mean of `REPEATS` after a warm-up."""
    now = _synchronized(time.perf_counter, images.device)
    model(images)
    start = now()
    for _ in range(REPEATS):
        model(images)
    return (now() - start) / REPEATS


@torch.no_grad()
def runs_fused(model: Model, images: Tensor) -> bool:
    """Return whether any step of a forward pass runs in one fused operator."""
    calls: list[str] = []

    def recorded(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*arguments: Any) -> Tensor:
            calls.append("step")
            return forward(*arguments)

        return call

    with ExitStack() as stack:
        for step in model_steps(model):
            if hasattr(step.module, "forward_fused"):
                stack.enter_context(patched_attribute(step.module, "forward_fused", recorded))
        model(images)
    return bool(calls)


def _synchronized(clock: Clock, device: torch.device) -> Clock:
    """Return a clock that waits for the device first."""
    if device.type != "cuda":
        return clock

    def wait_and_read() -> float:
        torch.cuda.synchronize(device)
        return clock()

    return wait_and_read


def fractions(amounts: dict[str, float]) -> dict[str, float]:
    """Return each amount as a fraction of their sum."""
    total = sum(amounts.values())
    return {name: amount / total if total else 0.0 for name, amount in amounts.items()}
