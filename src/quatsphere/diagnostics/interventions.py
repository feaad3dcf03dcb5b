"""Test-time intervention: remove the transport of some heads or steps while the routing weights stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from quatsphere.diagnostics.traced_model import patched_attribute, unfused_steps
from quatsphere.models import Model
from quatsphere.models.lattice import ModelStep, model_steps
from quatsphere.models.scoring import Evaluation


@contextmanager
def transport_off(steps: Sequence[ModelStep], heads: Tensor) -> Iterator[None]:
    """Within the block, these steps pass x_j on instead of r_ij x_j r_ij* for the heads in the mask (H,)."""
    with ExitStack() as stack:
        for step in steps:
            attend = _without_transport(step.module.transport, heads)
            stack.enter_context(patched_attribute(step.module, "attend", attend))
        yield


def _without_transport(transport: Any, heads: Tensor) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Run the kernel with and without transport and choose between the two by head."""

    def change(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def attend_twice(*arguments: Any) -> Tensor:
            rotated = attend(*arguments)
            with patched_attribute(transport, "rule", lambda rule: "identity"):
                unrotated = attend(*arguments)
            return torch.where(heads.to(rotated.device)[:, None, None], unrotated, rotated)

        return attend_twice

    return change


def transport_effects(model: Model, evaluate: Callable[[], Evaluation]) -> dict[str, Any]:
    """Return accuracy and likelihood, and their changes without each head's, each step's, and all transport.

    All evaluations run unfused, so differences contain no rounding of another code path.
    """
    steps = model_steps(model)
    count = int(steps[0].module.routing.beta.shape[0])
    all_heads = torch.ones(count, dtype=torch.bool)

    def effect(without: Sequence[ModelStep], heads: Tensor) -> dict[str, float]:
        with transport_off(without, heads):
            changed = evaluate()
        return {"accuracy": changed.accuracy - full.accuracy, "nll": changed.nll - full.nll}

    with unfused_steps(model):
        full = evaluate()
        return {
            "accuracy": full.accuracy,
            "nll": full.nll,
            "heads": [effect(steps, torch.arange(count) == head) for head in range(count)],
            "steps": [effect([step], all_heads) for step in steps],
            "all": effect(steps, all_heads),
        }
