"""When a run is saved, and how patiently: by steps, by the clock, and again and again on a full disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quatsphere.config import TrainConfig
from quatsphere.errors import CheckpointError, ResourceError
from quatsphere.geometry.quaternion import normalize
from quatsphere.nn.layout import Shell
from quatsphere.storage.atomic import write_json
from quatsphere.storage.checkpoint import Checkpoint, prune, save_checkpoint
from quatsphere.storage.run_folder import RunFolder
from quatsphere.train.distributed import Team
from quatsphere.train.provenance import circumstances
from quatsphere.train.reporting import Progress, Reporter
from quatsphere.train.resources import Interrupted, StopSwitch

if TYPE_CHECKING:
    from quatsphere.train.trainer import Trainer


@dataclass
class Setting:
    """The surroundings of one run in one process."""

    run: RunFolder
    team: Team
    device: torch.device
    reporter: Reporter
    stop: StopSwitch


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
        shell.mark_projected()  # saved on their radii: projecting once more would move last bits of those that rest


def _unit(name: str, value: Tensor, repair: bool, say: Callable[[str], None]) -> Tensor:
    off = norm_error(name, value)
    if not off:
        return value
    if not repair:
        raise CheckpointError(f"{name} has a quaternion whose norm is off by {off:.1e}; --repair renormalises it")
    say(f"repaired {name}: a norm was off by {off:.1e}")
    return normalize(value)


PREVIOUS = "previous_field"
"""The field at the end of the last epoch, against which smoothness is measured."""


def take_snapshot(trainer: Trainer) -> Checkpoint:
    """The trainer's state; what the data and the random numbers are follows from the configuration and the step."""
    state = trainer.optimisers.state_tensors()
    for index, field in enumerate(trainer.auxiliary.previous or []):
        state[f"{PREVIOUS}/{index}"] = field
    dataset = trainer.dataset
    meta = {
        "progress": trainer.progress.to_json(),
        "metrics_offset": trainer.setting.run.metrics_offset(),
        "fingerprint": dataset.fingerprint,
        "classes": list(dataset.classes),
        "mean": dataset.mean.tolist(),
        "std": dataset.std.tolist(),
        "scaler": trainer.scaler.state_dict(),
        "circumstances": circumstances(trainer.setting.team.world),
    }
    weights = {name: value.detach() for name, value in trainer.model.state_dict().items()}
    return Checkpoint(trainer.progress.step, weights, state, meta)


def put_back(trainer: Trainer, checkpoint: Checkpoint, *, repair: bool = False) -> None:
    """Make the trainer go on exactly where the checkpoint was taken; files are not touched."""
    restore_weights(trainer.model, checkpoint.weights, repair=repair, say=trainer.setting.reporter.note)
    moments = {name: value for name, value in checkpoint.state.items() if not name.startswith(f"{PREVIOUS}/")}
    trainer.optimisers.load_state_tensors(moments)
    previous = [checkpoint.state.get(f"{PREVIOUS}/{index}") for index in range(len(trainer.auxiliary.fields))]
    fields = [field.to(trainer.setting.device) for field in previous if field is not None]
    trainer.auxiliary.previous = fields or None
    trainer.progress = progress = Progress(**checkpoint.meta["progress"])
    trainer.rates = trainer.optimisers.set_rates(max(0, progress.step - 1), trainer.total_steps)
    if trainer.scaler.is_enabled():
        trainer.scaler.load_state_dict(checkpoint.meta["scaler"])


RETRY_SECONDS = 30.0
"""Pause between attempts to save on a full disk."""


class Keeper:
    """Writes checkpoints in the process that leads; in the others it only keeps time."""

    def __init__(self, setting: Setting, config: TrainConfig) -> None:
        self.setting, self.config = setting, config
        self._saved_at = time.monotonic()

    def due(self, step: int) -> bool:
        """Whether so many steps or seconds have passed."""
        every = self.config.checkpoint_steps
        late = time.monotonic() - self._saved_at >= self.config.checkpoint_seconds
        return late or (every is not None and step % every == 0)

    def save(self, snapshot: Callable[[], Checkpoint], *, best: bool) -> None:
        """Write a checkpoint and forget old ones; on a full disk wait for space, as long as the user lets us."""
        folder = self.setting.run.checkpoints
        while self.setting.team.leads:
            try:
                save_checkpoint(folder, snapshot(), best=best)
                prune(folder, self.config.keep)
                break
            except ResourceError as error:
                self.setting.reporter.note(
                    f"{error}; training paused, retrying every {RETRY_SECONDS:g} s (Ctrl-C to stop)"
                )
                self.pause()
        self._saved_at = time.monotonic()

    def pause(self) -> None:
        """Wait for the next attempt; a signal ends the wait and the run."""
        until = time.monotonic() + RETRY_SECONDS
        while time.monotonic() < until:
            if self.setting.stop.number:
                raise Interrupted(
                    "stopped while the checkpoint could not be written; the last one is intact: go on with --resume",
                    self.setting.stop.number,
                )
            time.sleep(min(0.2, RETRY_SECONDS))
