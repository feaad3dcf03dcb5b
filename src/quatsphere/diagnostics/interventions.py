"""A test-time intervention: messages of some heads or steps arrive unturned; their weights stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from quatsphere.diagnostics.traced_model import Step, part_by_part, shadow, steps_of
from quatsphere.models import Model
from quatsphere.models.scoring import Evaluation


@contextmanager
def transport_off(steps: Sequence[Step], heads: Tensor) -> Iterator[None]:
    """Within the block the kernel of these steps hands on x_j instead of r_ij x_j r_ij* for the heads (H,) marked."""
    with ExitStack() as stack:
        for step in steps:
            stack.enter_context(shadow(step.module, "attend", _partly(step.module.transport, heads)))
        yield


def _partly(transport: Any, heads: Tensor) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """The kernel twice, turned and unturned, head by head one or the other."""

    def around(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def attend_partly(*arguments: Any) -> Tensor:
            turned = attend(*arguments)
            with shadow(transport, "rule", lambda rule: "identity"):
                unturned = attend(*arguments)
            return torch.where(heads.to(turned.device)[:, None, None], unturned, turned)

        return attend_partly

    return around


def transport_effects(model: Model, evaluate: Callable[[], Evaluation]) -> dict[str, Any]:
    """Accuracy and likelihood as they are, and what changes without each head's, each step's, and all transport.

    Everything is evaluated part by part, so that differences hold no rounding of another path.
    """
    steps = steps_of(model)
    count = int(steps[0].module.routing.beta.shape[0])
    every = torch.ones(count, dtype=torch.bool)

    def without(which: Sequence[Step], heads: Tensor) -> dict[str, float]:
        with transport_off(which, heads):
            seen = evaluate()
        return {"accuracy": seen.accuracy - whole.accuracy, "nll": seen.nll - whole.nll}

    with part_by_part(model):
        whole = evaluate()
        return {
            "accuracy": whole.accuracy,
            "nll": whole.nll,
            "heads": [without(steps, torch.arange(count) == head) for head in range(count)],
            "steps": [without([step], every) for step in steps],
            "all": without(steps, every),
        }
