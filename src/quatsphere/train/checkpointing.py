"""Checkpoints of a trainer: snapshot and restore, checks of their numbers, saving on time and on full disks."""

from __future__ import annotations

import dataclasses
import errno
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quatsphere.config import TrainConfig
from quatsphere.errors import CheckpointError, ResourceError
from quatsphere.geometry.quaternion import normalize
from quatsphere.nn.layout import Shell
from quatsphere.storage.atomic import is_disk_full
from quatsphere.storage.checkpoint import Checkpoint, prune, save_checkpoint
from quatsphere.storage.run_folder import RunFolder
from quatsphere.train.distributed import Team
from quatsphere.train.provenance import numeric_environment
from quatsphere.train.reporting import Progress, Reporter
from quatsphere.train.resources import Interrupted, StopSwitch
from quatsphere.train.step import BrokenNumber, first_not_finite
from quatsphere.train.tracking import Tracker

if TYPE_CHECKING:
    from quatsphere.train.trainer import Trainer

NORM_TOLERANCE = 1e-4
"""Largest deviation of a stored quaternion's norm from 1."""
PREVIOUS_FIELD = "previous_field"
"""Prefix in a checkpoint of the field at the end of the last epoch, which the smoothness loss compares with."""
RETRY_SECONDS = 30.0
"""Pause between attempts to save on a full disk."""
UNRELIABLE = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
"""Errors of disks and networks that may go away."""
UNRELIABLE_ATTEMPTS = 3
"""Attempts to save after such an error."""


@dataclass
class RunContext:
    """Surroundings of a run in one process."""

    run: RunFolder
    team: Team
    device: torch.device
    reporter: Reporter
    stop: StopSwitch
    tracker: Tracker = dataclasses.field(default_factory=Tracker)


# Trainer <-> checkpoint.


def take_snapshot(trainer: Trainer) -> Checkpoint:
    """Return the trainer's state; data order and random numbers follow from the configuration and the step."""
    step, dataset = trainer.step, trainer.dataset
    state = step.optimisers.state_tensors()
    for index, field in enumerate(step.auxiliary.previous or []):
        state[f"{PREVIOUS_FIELD}/{index}"] = field
    meta = {
        "progress": trainer.progress.to_json(),
        "metrics_offset": trainer.context.run.metrics_offset(),
        "fingerprint": dataset.fingerprint,
        "classes": list(dataset.classes),
        "mean": dataset.mean.tolist(),
        "std": dataset.std.tolist(),
        "scaler": step.scaler.state_dict(),
        "circumstances": numeric_environment(trainer.context.team.world),
    }
    weights = {name: value.detach() for name, value in trainer.model.state_dict().items()}
    return Checkpoint(trainer.progress.step, weights, state, meta)


def restore_trainer(trainer: Trainer, checkpoint: Checkpoint, *, repair: bool = False) -> None:
    """Restore the state of `take_snapshot`, so that training continues bit for bit; no file is changed."""
    step = trainer.step
    restore_weights(trainer.model, checkpoint.weights, repair=repair, note=trainer.context.reporter.note)
    moments = {name: value for name, value in checkpoint.state.items() if not name.startswith(f"{PREVIOUS_FIELD}/")}
    step.optimisers.load_state_tensors(moments)
    stored = [checkpoint.state.get(f"{PREVIOUS_FIELD}/{index}") for index in range(len(step.auxiliary.fields))]
    step.auxiliary.previous = [field.to(trainer.context.device) for field in stored if field is not None] or None
    trainer.progress = progress = Progress(**checkpoint.meta["progress"])
    step.rates = step.optimisers.set_rates(max(0, progress.step - 1), trainer.total_steps)
    if step.scaler.is_enabled():
        step.scaler.load_state_dict(checkpoint.meta["scaler"])


def restore_weights(
    model: nn.Module, weights: Mapping[str, Tensor], *, repair: bool = False, note: Callable[[str], None] = print
) -> None:
    """Load weights if every key, shape and value is right; `repair` renormalises quaternions, with a note for each."""
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
    model.load_state_dict({name: _with_unit_norm(name, value, repair, note) for name, value in weights.items()})
    for shell in (module for module in model.modules() if isinstance(module, Shell)):
        shell.mark_projected()  # saved on their radii: projecting again would change the last bits


def _with_unit_norm(name: str, value: Tensor, repair: bool, note: Callable[[str], None]) -> Tensor:
    error = _norm_error(name, value)
    if not error:
        return value
    if not repair:
        raise CheckpointError(f"{name} has a quaternion whose norm is off by {error:.1e}; --repair renormalises it")
    note(f"repaired {name}: a norm was off by {error:.1e}")
    return normalize(value)


def _norm_error(name: str, value: Tensor) -> float:
    """Largest deviation from unit length in a quaternion field if it exceeds the tolerance, else 0."""
    if not name.endswith(".base"):
        return 0.0
    worst = float((value.norm(dim=-1) - 1).abs().max())
    return worst if worst > NORM_TOLERANCE else 0.0


def require_sound(checkpoint: Checkpoint) -> None:
    """Raise BrokenNumber for a tensor that must not be saved."""
    bad = first_not_finite([*checkpoint.weights.items(), *checkpoint.state.items()])
    if bad is not None:
        raise BrokenNumber(bad)
    off = next((name for name, value in checkpoint.weights.items() if _norm_error(name, value)), None)
    if off is not None:
        raise BrokenNumber(off, "has lost its unit length")


# Saving.


class CheckpointSaver:
    """Writes checkpoints in rank 0; in the other processes it only keeps time."""

    def __init__(self, context: RunContext, config: TrainConfig) -> None:
        self.context, self.config = context, config
        self._saved_at = time.monotonic()

    def due(self, step: int) -> bool:
        """True if `checkpoint_steps` or `checkpoint_seconds` have passed."""
        every = self.config.checkpoint_steps
        late = time.monotonic() - self._saved_at >= self.config.checkpoint_seconds
        return late or (every is not None and step % every == 0)

    def save(self, snapshot: Callable[[], Checkpoint], *, best: bool) -> None:
        """Write a checkpoint and delete old ones; on a full disk retry until there is space or a signal comes.

        An unreliable disk is retried a few times. All other errors, such as missing permissions, end the run.
        """
        folder = self.context.run.checkpoints
        attempts = 0
        while self.context.team.is_rank_zero:
            try:
                save_checkpoint(folder, snapshot(), best=best)
                prune(folder, self.config.keep_checkpoints)
                break
            except ResourceError as error:
                attempts += 1
                if not _may_heal(error, attempts):
                    raise
                self.context.reporter.note(
                    f"{error}; training paused, retrying every {RETRY_SECONDS:g} s (Ctrl-C to stop)"
                )
                self._pause()
        self._saved_at = time.monotonic()

    def _pause(self) -> None:
        until = time.monotonic() + RETRY_SECONDS
        while time.monotonic() < until:
            if self.context.stop.signal_number:
                raise Interrupted(
                    "stopped while the checkpoint could not be written; the last one is intact: continue with --resume",
                    self.context.stop.signal_number,
                )
            time.sleep(min(0.2, RETRY_SECONDS))


def _may_heal(error: ResourceError, attempts: int) -> bool:
    """True if a later attempt to write may succeed: there may be space again, or a network disk may be back."""
    cause = error.__cause__
    if not isinstance(cause, OSError):
        return False
    return is_disk_full(cause) or (cause.errno in UNRELIABLE and attempts <= UNRELIABLE_ATTEMPTS)
