"""From a checkpoint back into a model: all of it or nothing, and never a broken number."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from quatsphere.errors import CheckpointError
from quatsphere.geometry.quaternion import normalize

NORM_TOLERANCE = 1e-4


def restore_weights(
    model: nn.Module, weights: Mapping[str, Tensor], *, repair: bool = False, say: Callable[[str], None] = print
) -> None:
    """Load weights if every key, shape and value is right; `repair` renormalises quaternions and says which."""
    own = model.state_dict()
    wrong = [f"missing {name}" for name in own if name not in weights]
    wrong += [f"unknown {name}" for name in weights if name not in own]
    wrong += [
        f"{name} has shape {tuple(value.shape)}, the model {tuple(own[name].shape)}"
        for name, value in weights.items()
        if name in own and value.shape != own[name].shape
    ]
    if wrong:
        more = f" and {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise CheckpointError(f"weights do not fit the model: {'; '.join(wrong[:10])}{more}; check the configuration")
    sound = {name: _sound(name, value, repair, say) for name, value in weights.items()}
    model.load_state_dict(sound)


def _sound(name: str, value: Tensor, repair: bool, say: Callable[[str], None]) -> Tensor:
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        raise CheckpointError(f"{name} holds values that are not finite; use an older checkpoint")
    if not name.endswith(".base"):
        return value
    off = float((value.norm(dim=-1) - 1).abs().max())
    if off <= NORM_TOLERANCE:
        return value
    if not repair:
        raise CheckpointError(f"{name} has a quaternion whose norm is off by {off:.1e}; --repair renormalises it")
    say(f"repaired {name}: a norm was off by {off:.1e}")
    return normalize(value)
