"""From a checkpoint back into a model: all of it or nothing, and never a broken number."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from quatsphere.errors import CheckpointError
from quatsphere.geometry.quaternion import normalize
from quatsphere.nn.layout import Shell
from quatsphere.train.soundness import first_not_finite, norm_error


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
    bad = first_not_finite(weights.items())
    if bad is not None:
        raise CheckpointError(f"{bad} holds values that are not finite; use an older checkpoint")
    model.load_state_dict({name: _unit(name, value, repair, say) for name, value in weights.items()})
    for shell in (module for module in model.modules() if isinstance(module, Shell)):
        shell.settle()  # saved on their radii: projecting once more would move last bits of those that rest


def _unit(name: str, value: Tensor, repair: bool, say: Callable[[str], None]) -> Tensor:
    off = norm_error(name, value)
    if not off:
        return value
    if not repair:
        raise CheckpointError(f"{name} has a quaternion whose norm is off by {off:.1e}; --repair renormalises it")
    say(f"repaired {name}: a norm was off by {off:.1e}")
    return normalize(value)
