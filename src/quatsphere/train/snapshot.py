"""Between a trainer and a checkpoint: everything a bit-identical continuation needs, out and in again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quatsphere.files.checkpoint import Checkpoint
from quatsphere.train.identity import circumstances
from quatsphere.train.progress import Progress
from quatsphere.train.restore import restore_weights

if TYPE_CHECKING:
    from quatsphere.train.trainer import Trainer

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
