"""Numbers that may be kept: finite everywhere, quaternions of unit length. Anything else has a name and stops."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from quatsphere.files.atomic import write_json
from quatsphere.files.checkpoint import Checkpoint
from quatsphere.files.run_folder import RunFolder

NORM_TOLERANCE = 1e-4


def first_not_finite(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first tensor with a NaN or infinity; one look at the device if there is none.

    A sum is not finite if one of its terms is not. The converse fails for huge numbers only: then all are looked at.
    """
    values = [(name, value.detach()) for name, value in named if value.is_floating_point()]
    if not values or bool(torch.stack([value.sum(dtype=torch.float32) for _, value in values]).isfinite().all()):
        return None
    return next((name for name, value in values if not bool(value.isfinite().all())), None)


def norm_error(name: str, value: Tensor) -> float:
    """How far the worst quaternion of a field is from unit length, where that is too far; else 0."""
    if not name.endswith(".base"):
        return 0.0
    worst = float((value.norm(dim=-1) - 1).abs().max())
    return worst if worst > NORM_TOLERANCE else 0.0


def unfit_to_save(checkpoint: Checkpoint) -> tuple[str, str] | None:
    """The first tensor that must not get into a checkpoint, and what is wrong with it."""
    bad = first_not_finite([*checkpoint.weights.items(), *checkpoint.state.items()])
    if bad is not None:
        return bad, "is not finite"
    off = next((name for name, value in checkpoint.weights.items() if norm_error(name, value)), None)
    return None if off is None else (off, "has lost its unit length")


def write_crash(run: RunFolder, facts: dict[str, Any]) -> None:
    """The bundle from which the bad step can be made again: `crash/crash.json`."""
    folder = run.path / "crash"
    folder.mkdir(exist_ok=True)
    write_json(folder / "crash.json", facts)
