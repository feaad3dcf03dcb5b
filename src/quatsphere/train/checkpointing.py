"""Checkpoints of a trainer: snapshot and restore, checks of their numbers, saving on time and on full disks."""

from __future__ import annotations

import dataclasses
import errno
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quatsphere.config import TrainConfig
from quatsphere.errors import CheckpointError, ResourceError
from quatsphere.geometry.quaternion import normalize
from quatsphere.nn.layout import FlatShell, Shell
from quatsphere.storage.atomic import is_disk_full
from quatsphere.storage.checkpoint import Checkpoint, prune, save_checkpoint
from quatsphere.storage.run_folder import RunFolder
from quatsphere.storage.sealed_json import misfit, natural
from quatsphere.train.distributed import Team
from quatsphere.train.provenance import numeric_environment
from quatsphere.train.reporting import Progress, Reporter, Tracker
from quatsphere.train.resources import Interrupted, StopSwitch
from quatsphere.train.step import BrokenNumber, first_not_finite

if TYPE_CHECKING:
    from quatsphere.train.trainer import Trainer

NORM_TOLERANCE = 1e-4
"""Largest deviation of a stored quaternion's norm from 1, and of a vertex from its sphere relative to the radius."""
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
    """Load weights if every key, type, shape and value is right.

    `repair` renormalises quaternions and projects vertices onto their spheres, with a note for each tensor.
    """
    wrong = weights_misfits(model, weights)
    if wrong:
        more = f" and {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise CheckpointError(f"weights do not fit the model: {'; '.join(wrong[:10])}{more}; check the configuration")
    bad = first_not_finite(weights.items())
    if bad is not None:
        raise CheckpointError(f"{bad} holds values that are not finite; use an older checkpoint")
    sound = dict(weights)
    for fault in constraint_faults(model, weights):
        if fault.repaired is None:
            raise CheckpointError(f"{fault.name} {fault.what}; use an older checkpoint")
        if not repair:
            raise CheckpointError(f"{fault.name} {fault.what}; --repair {fault.cure} it")
        note(f"repaired {fault.name}: {fault.was}")
        sound[fault.name] = fault.repaired
    model.load_state_dict(sound)
    for shell in _shells(model).values():
        shell.mark_projected()  # saved on their radii: projecting again would change the last bits


def weights_misfits(model: nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """Differences in names, types and shapes between stored weights and those of a model."""
    own = model.state_dict()
    wrong = [f"missing {name}" for name in own if name not in weights]
    wrong += [f"unknown {name}" for name in weights if name not in own]
    for name, value in weights.items():
        if name in own and value.shape != own[name].shape:
            wrong.append(f"{name} has shape {tuple(value.shape)}, the model {tuple(own[name].shape)}")
        elif name in own and value.dtype != own[name].dtype:
            wrong.append(f"{name} has type {value.dtype}, the model {own[name].dtype}")
    return wrong


@dataclass(frozen=True)
class ConstraintFault:
    """A tensor off its manifold: quaternions without unit length, vertices off their sphere."""

    name: str
    what: str
    lost: str
    """The fault in the words for a run that is about to be saved."""
    was: str = ""
    """The fault in the words for a tensor that has been repaired."""
    cure: str = ""
    repaired: Tensor | None = None
    """The tensor on its manifold; None if it cannot be repaired."""


def constraint_faults(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[ConstraintFault]:
    """Yield every tensor of finite weights that violates a constraint of the model by more than the tolerance."""
    for name in weights:
        if name.endswith(".base"):
            yield from _norm_fault(name, weights[name])
    for prefix, shell in _shells(model).items():
        yield from _position_fault(f"{prefix}.positions", weights[f"{prefix}.positions"], shell)


def _norm_fault(name: str, value: Tensor) -> Iterator[ConstraintFault]:
    norm = value.norm(dim=-1)
    worst = float((norm - 1).abs().max())
    if worst > NORM_TOLERANCE:
        repaired = normalize(value) if float(norm.min()) > 0 else None
        what, was = f"has a quaternion whose norm is off by {worst:.1e}", f"a norm was off by {worst:.1e}"
        yield ConstraintFault(name, what, "has lost its unit length", was, "renormalises", repaired)


def _position_fault(name: str, value: Tensor, shell: Shell) -> Iterator[ConstraintFault]:
    norm, radius = value.norm(dim=-1, keepdim=True), shell.radius.to(value.device)
    worst = float(((norm - radius) / radius).abs().max())
    if len(value) > 1 and bool((value == value[0]).all()):
        yield ConstraintFault(name, "has all vertices at one point", "has all vertices at one point")
    elif isinstance(shell, FlatShell):
        if float(value.abs().max()) > 1 + NORM_TOLERANCE:
            yield ConstraintFault(name, "has a vertex outside the image", "has left the image")
    elif worst > NORM_TOLERANCE:
        repaired = value * (radius / norm) if float(norm.min()) > 0 else None
        what, was = f"has a vertex whose radius is off by {worst:.1e}", f"a radius was off by {worst:.1e}"
        yield ConstraintFault(name, what, "has left its sphere", was, "projects", repaired)


def _shells(model: nn.Module) -> dict[str, Shell]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Shell)}


def require_sound(checkpoint: Checkpoint, model: nn.Module) -> None:
    """Raise BrokenNumber for a tensor that must not be saved."""
    bad = first_not_finite([*checkpoint.weights.items(), *checkpoint.state.items()])
    if bad is not None:
        raise BrokenNumber(bad)
    fault = next(constraint_faults(model, checkpoint.weights), None)
    if fault is not None:
        raise BrokenNumber(fault.name, fault.lost)


# Types and shapes of a stored checkpoint, checked before any part of it is used.

_PROGRESS = {
    **dict.fromkeys(("epoch", "step_in_epoch", "step", "waited"), natural),
    "best_accuracy": (float, None),
    "best_step": (natural, None),
    "best_epoch": (natural, None),
    "sums": {str: float},
    "seconds": float,
    "epoch_start": float,
}
META_SHAPE: dict[str, Any] = {
    "progress": _PROGRESS,
    "metrics_offset": natural,
    "fingerprint": str,
    "classes": [str, ...],
    "mean": [float, ...],
    "std": [float, ...],
    "scaler?": dict,
    "circumstances?": {str: object},
}
"""Fields of a checkpoint's meta, as `storage.sealed_json.misfit` checks them."""
_SCALER = {
    "scale": float,
    "growth_factor": float,
    "backoff_factor": float,
    "growth_interval": int,
    "_growth_tracker": int,
}


def meta_misfit(checkpoint: Checkpoint, classes: int, channels: int) -> str | None:
    """Describe what is wrong with a checkpoint's meta; None if it fits the data's classes and channels."""
    meta = checkpoint.meta
    wrong = misfit(meta, META_SHAPE)
    if wrong is not None:
        return wrong
    progress = meta["progress"]
    if set(progress) != set(_PROGRESS) or progress["step"] != checkpoint.step:
        return f"field progress is not that of step {checkpoint.step}"
    if progress["step_in_epoch"] and "images" not in progress["sums"]:
        return "field progress.sums.images is missing"
    if len(meta["classes"]) != classes or not len(meta["mean"]) == len(meta["std"]) == channels:
        return "classes, mean or std do not fit the model"
    return "field std is not positive" if min(meta["std"]) <= 0 else None


def checkpoint_misfit(trainer: Trainer, checkpoint: Checkpoint) -> str | None:
    """Describe the first field or tensor that a trainer cannot have written; None if there is none."""
    return next((wrong for wrong in _misfits(trainer, checkpoint) if wrong is not None), None)


def _misfits(trainer: Trainer, checkpoint: Checkpoint) -> Iterator[str | None]:
    """Yield the results of all checks; later ones rely on earlier ones."""
    step, model = trainer.step, trainer.config.model
    fields = {f"{PREVIOUS_FIELD}/{index}": field for index, field in enumerate(step.auxiliary.fields)}
    stored = {name: value for name, value in checkpoint.state.items() if name.startswith(f"{PREVIOUS_FIELD}/")}
    moments = {name: value for name, value in checkpoint.state.items() if name not in stored}
    yield meta_misfit(checkpoint, model.num_classes, model.in_channels)
    if step.scaler.is_enabled():
        yield misfit(checkpoint.meta.get("scaler"), _SCALER, "scaler")
    yield from weights_misfits(trainer.model, checkpoint.weights)
    shapes, own = ({name: (v.shape, v.dtype) for name, v in tensors.items()} for tensors in (stored, fields))
    if stored and shapes != own:
        yield "the field of the last epoch does not fit the model"
    yield step.optimisers.state_misfit(moments)
    bad = first_not_finite(checkpoint.state.items())
    if bad is not None:
        yield f"{bad} holds values that are not finite"
    for name, count in moments.items():
        if name.endswith("/step") and not 0 <= float(count) <= checkpoint.step:
            yield f"{name} is {float(count):g} at step {checkpoint.step}"


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
                cause = error.__cause__
                if not isinstance(cause, OSError):
                    raise
                unreliable = cause.errno in UNRELIABLE and attempts <= UNRELIABLE_ATTEMPTS
                if not is_disk_full(cause) and not unreliable:
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
