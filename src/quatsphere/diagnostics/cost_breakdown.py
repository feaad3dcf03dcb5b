"""What each part of a model costs: parameters, and time of a forward pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from quatsphere.diagnostics.traced_model import part_by_part, shadow, steps_of
from quatsphere.models import QSV, AttentionNet, LinearModel, Model, ResNet20

Method = tuple[str, Any, str]
"""Part, object, name of its method."""
FUSED = "measured part by part; training runs these parts fused"
"""What to know of the times of a model whose steps run in one operator."""


def timed_methods(model: Model) -> list[Method]:
    """The methods whose time is taken; they do not call each other."""
    return METHODS[type(model)](model)


def _qsv_methods(model: Any) -> list[Method]:
    inside = [
        part
        for step in steps_of(model)
        for part in (
            ("perturbation", step.module.perturbation, "fields"),
            ("kernel", step.module, "attend"),
            ("Hamilton block", step.module.ffn, "forward"),
        )
    ]
    return [*_ends(model), *inside]


def _attention_methods(model: Any) -> list[Method]:
    inside = [
        part
        for step in steps_of(model)
        for part in (("attention", step.module.attention, "forward"), ("ffn", step.module.ffn, "forward"))
    ]
    return [*_ends(model), *inside]


def _ends(model: Any) -> list[Method]:
    parts = (("patch embedding", model.embed), ("pooling", model.pool), ("classifier", model.classifier))
    return [(name, module, "forward") for name, module in parts]


def _resnet_methods(model: Any) -> list[Method]:
    stages = [(f"stage {i}", stage, "forward") for i, stage in enumerate(model.stages, start=1)]
    return [("stem", model.stem, "forward"), *stages, ("classifier", model.classifier, "forward")]


METHODS: dict[type, Callable[[Any], list[Method]]] = {
    QSV: _qsv_methods,
    AttentionNet: _attention_methods,
    ResNet20: _resnet_methods,
    LinearModel: lambda model: [("classifier", model.classifier, "forward")],
}


@torch.no_grad()
def time_parts(
    model: Model, images: Tensor, repeats: int = 3, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Seconds of a forward pass by part, the mean of `repeats` after a warm-up; `rest` is what no part explains.

    Steps run part by part for it, also where they otherwise run in one operator, which has no parts to time.
    """
    seconds: dict[str, float] = {}
    now = _clock_of(images.device, clock)

    def taking(part: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def around(method: Callable[..., Any]) -> Callable[..., Any]:
            def timed(*arguments: Any, **named: Any) -> Any:
                start = now()
                out = method(*arguments, **named)
                seconds[part] = seconds.get(part, 0.0) + now() - start
                return out

            return timed

        return around

    with ExitStack() as stack:
        stack.enter_context(part_by_part(model))
        model(images)
        for part, owner, name in timed_methods(model):
            stack.enter_context(shadow(owner, name, taking(part)))
        start = now()
        for _ in range(repeats):
            model(images)
        whole = now() - start
    return {part: value / repeats for part, value in {**seconds, "rest": whole - sum(seconds.values())}.items()}


@torch.no_grad()
def time_whole(model: Model, images: Tensor, repeats: int = 3) -> float:
    """Seconds of a forward pass as it runs, the mean of `repeats` after a warm-up."""
    now = _clock_of(images.device, time.perf_counter)
    model(images)
    start = now()
    for _ in range(repeats):
        model(images)
    return (now() - start) / repeats


@torch.no_grad()
def runs_fused(model: Model, images: Tensor) -> bool:
    """Whether a step of a forward pass runs in one operator."""
    fused: list[str] = []

    def noting(whole: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def noted(*arguments: Any) -> Tensor:
            fused.append("step")
            return whole(*arguments)

        return noted

    with ExitStack() as stack:
        for step in steps_of(model):
            if hasattr(step.module, "forward_fused"):
                stack.enter_context(shadow(step.module, "forward_fused", noting))
        model(images)
    return bool(fused)


def _clock_of(device: torch.device, clock: Callable[[], float]) -> Callable[[], float]:
    """A clock that waits for the device first."""
    if device.type != "cuda":
        return clock

    def wait_and_look() -> float:
        torch.cuda.synchronize(device)
        return clock()

    return wait_and_look


def shares(amounts: dict[str, float]) -> dict[str, float]:
    """Each amount as a share of their sum."""
    total = sum(amounts.values())
    return {name: amount / total if total else 0.0 for name, amount in amounts.items()}
