"""The loop. One object holds what a run is made of; `fit` reads as what happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quatsphere.config import RunConfig
from quatsphere.data import Dataset
from quatsphere.data.augment import normalize
from quatsphere.errors import NumericsError, ResourceError
from quatsphere.files.atomic import write_json
from quatsphere.files.checkpoint import Checkpoint, load_best, prune, save_checkpoint
from quatsphere.files.run_folder import RunFolder
from quatsphere.models import Model
from quatsphere.optim import Optimisers, repel
from quatsphere.train.batches import Batch, Batches
from quatsphere.train.evaluation import evaluate, predict_logits
from quatsphere.train.losses import Auxiliary, cross_entropy
from quatsphere.train.monitor import field_motion, look_inside
from quatsphere.train.parallel import Team
from quatsphere.train.progress import Progress, Reporter
from quatsphere.train.restore import restore_weights
from quatsphere.train.signals import Interrupted, StopSwitch

AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MONITORED = 256
"""Validation images on which routing is measured each epoch."""
RETRY_SECONDS = 30.0
"""Pause between attempts to save on a full disk."""


@dataclass
class Setting:
    """What surrounds the loop: files, processes, device, whoever listens."""

    run: RunFolder
    team: Team
    device: torch.device
    reporter: Reporter
    stop: StopSwitch


class Trainer:
    """Trains one model on one data set; every number is a function of the configuration and the data."""

    def __init__(self, config: RunConfig, dataset: Dataset, model: Model, setting: Setting) -> None:
        self.config, self.dataset, self.model, self.setting = config, dataset, model.to(setting.device), setting
        train = config.train
        self.batches = Batches(dataset, config.data, train.seed, train.batch_size, train.label_smoothing)
        roles = model.parameter_roles()
        self.optimisers = Optimisers(dict(model.named_parameters()), roles, config.optim)
        self.auxiliary = Auxiliary(model, roles, train)
        self.positions = [p for name, p in model.named_parameters() if name in roles["positions"]]
        self.forward: Callable[..., Any] = torch.compile(model) if train.compile else model
        self.scaler = torch.amp.GradScaler(setting.device.type, enabled=train.precision == "fp16")
        self.progress = Progress()
        self.total_steps = train.epochs * self.batches.steps
        self.rates: dict[str, float] = {}
        self._saved_at = self._last_tick = time.monotonic()

    def fit(self) -> None:
        """Epoch after epoch until the horizon or until patience runs out."""
        while not self.finished:
            self.model.train()
            for step in range(self.progress.step_in_epoch, self.batches.steps):
                self.train_step(step)
                self.tell()
                self.save_if_due()
                self.leave_if_asked()
            self.end_epoch()

    @property
    def finished(self) -> bool:
        """Whether no epoch is left to train."""
        patience = self.config.train.patience
        return self.progress.epoch >= self.config.train.epochs or (
            patience is not None and self.progress.waited >= patience
        )

    def train_step(self, step: int) -> None:
        """Batch, loss by name, gradients, both optimisers, repulsion, back onto the spheres."""
        progress, team = self.progress, self.setting.team
        batch = self.batches.batch(progress.epoch, step, self.setting.device, team.rank, team.world)
        size = len(self.batches.samples(progress.epoch, step))
        self.rates = self.optimisers.set_rates(progress.step, self.total_steps)
        self.optimisers.zero_grad()
        with torch.autocast(
            self.setting.device.type, AUTOCAST[self.config.train.precision], self.config.train.precision != "fp32"
        ):
            logits = self.forward(batch.images, sample_keys=batch.keys)
        terms = {"cross_entropy": cross_entropy(logits, batch.targets, size)}
        auxiliary = self.auxiliary.terms()
        loss = terms["cross_entropy"] + sum(auxiliary.values()) / team.world
        self.scaler.scale(loss).backward()
        team.sum_gradients(self.model.parameters())
        self.require_finite({**terms, **auxiliary}, batch)
        self.apply_gradients()
        repel(self.positions, progress.step, self.total_steps, self.config.optim)
        self.model.constrain()
        self.count(logits, batch, terms["cross_entropy"], auxiliary, size)

    def apply_gradients(self) -> None:
        """One step of both optimisers; in fp16 a step whose gradients overflowed is left out."""
        for optimiser in self.optimisers.optimisers:
            self.scaler.step(optimiser)
        self.scaler.update()

    def require_finite(self, terms: dict[str, Tensor], batch: Batch) -> None:
        """Stop before the update if a loss or gradient is not finite; name the first bad one."""
        named = list(terms.items())
        if not self.scaler.is_enabled():
            named += [(f"gradient of {n}", p.grad) for n, p in self.model.named_parameters() if p.grad is not None]
        if bool(torch.stack([value.detach().abs().max() for _, value in named]).isfinite().all()):
            return
        bad = next(name for name, value in named if not bool(value.isfinite().all()))
        where = f"epoch {self.progress.epoch + 1}, step {self.progress.step}"
        if self.setting.team.leads:
            crash = self.setting.run.path / "crash"
            crash.mkdir(exist_ok=True)
            facts = {"tensor": bad, "epoch": self.progress.epoch, "step": self.progress.step}
            facts["samples"] = batch.samples.tolist()
            write_json(crash / "crash.json", {**facts, "seed": self.config.train.seed})
        raise NumericsError(
            f"{bad} is not finite ({where}, images {batch.samples[:4].tolist()}...; details in crash/); "
            "the last checkpoint is intact: lower the learning rate or use fp32"
        )

    def count(self, logits: Tensor, batch: Batch, entropy: Tensor, auxiliary: dict[str, Tensor], size: int) -> None:
        """Add this step to the epoch's sums, over all processes."""
        right = (logits.detach().argmax(1) == batch.labels).sum()
        sums = self.setting.team.sum(torch.stack((entropy.detach() * size, right)).double().cpu())
        values = {name: float(value.detach()) * size for name, value in auxiliary.items()}
        total = float(sums[0]) + sum(values.values())
        self.progress.add({"loss": total, "cross_entropy": float(sums[0]), **values})
        self.progress.add({"accuracy": float(sums[1]), "images": float(size)})
        self.progress.step += 1
        self.progress.step_in_epoch += 1

    def end_epoch(self) -> None:
        """Validate, log, remember the field, save; a new best checkpoint is marked as such."""
        progress, train = self.progress, self.config.train
        self.setting.team.share_buffers(self.model.buffers())
        accuracy = self.validate()
        inside = look_inside(self.model, self.probe())
        motion = field_motion(self.auxiliary.fields, self.auxiliary.previous)
        self.auxiliary.remember()
        progress.epoch += 1
        improved = progress.improved(accuracy, train.min_delta)
        self.clock()
        record = {
            "epoch": progress.epoch,
            "step": progress.step,
            "train": progress.means(),
            "val_accuracy": accuracy,
            "best_val_accuracy": progress.best_accuracy,
            "learning_rates": self.rates,
            **inside,
            "field_motion": motion,
            "seconds": progress.seconds,
            "images_per_second": progress.sums["images"] / max(1e-9, progress.seconds - self._epoch_start),
        }
        self._epoch_start = progress.seconds
        progress.sums, progress.step_in_epoch = {}, 0
        if self.setting.team.leads:
            self.setting.run.append_metrics(record)
        self.setting.reporter.epoch(record)
        self.save(best=improved)
        self.leave_if_asked()

    _epoch_start = 0.0

    def validate(self) -> float:
        """Accuracy on the validation images, shared among the processes; may be interrupted and done again."""
        team, split = self.setting.team, self.dataset.val
        part, labels = split.images[team.rank :: team.world], split.labels[team.rank :: team.world]

        def watch(done: int, total: int) -> None:
            self.setting.reporter.validating(done, total)
            if team.world == 1:
                self.leave_if_asked()

        logits = predict_logits(self.model, self.dataset, part, progress=watch)
        right = team.sum((logits.argmax(1) == labels).sum().double().reshape(1))
        return float(right[0]) / len(split.labels)

    def probe(self) -> Tensor:
        """The validation images on which routing is measured: evenly spread over the classes."""
        images = self.dataset.val.images
        chosen = images[:: max(1, len(images) // MONITORED)][:MONITORED]
        return normalize(chosen, self.dataset.mean, self.dataset.std).to(self.setting.device)

    def tell(self) -> None:
        """Report the step."""
        before = self.progress.seconds
        self.clock()
        speed = self.config.train.batch_size / max(1e-9, self.progress.seconds - before)
        self.setting.reporter.step(self.progress, self.batches.steps, self.config.train.epochs, speed)

    def clock(self) -> None:
        """Add the time since the last call."""
        now = time.monotonic()
        self.progress.seconds += now - self._last_tick
        self._last_tick = now

    def save_if_due(self) -> None:
        """Save when so many steps or seconds have passed; the leader's clock decides for all."""
        every = self.config.train.checkpoint_steps
        late = time.monotonic() - self._saved_at >= self.config.train.checkpoint_seconds
        if (every is not None and self.progress.step % every == 0) or late:
            self.save(best=False)

    def save(self, *, best: bool) -> None:
        """Write a checkpoint; on a full disk wait for space, as long as the user lets us."""
        while self.setting.team.leads:
            try:
                save_checkpoint(self.setting.run.checkpoints, self.checkpoint(), best=best)
                prune(self.setting.run.checkpoints, self.config.train.keep)
                break
            except ResourceError as error:
                self.setting.reporter.note(f"{error}; training paused, retrying every {RETRY_SECONDS:.0f} s")
                self.pause()
        self._saved_at = time.monotonic()

    def pause(self) -> None:
        """Wait for the next attempt to save; a signal ends the wait and the run."""
        until = time.monotonic() + RETRY_SECONDS
        while time.monotonic() < until:
            time.sleep(0.2)
            if self.setting.stop.number:
                raise Interrupted("stopped while the disk was full; the last checkpoint is intact", 2)

    def checkpoint(self) -> Checkpoint:
        """Everything a bit-identical continuation needs."""
        state = self.optimisers.state_tensors()
        for index, field in enumerate(self.auxiliary.previous or []):
            state[f"previous_field/{index}"] = field
        meta = {
            "progress": self.progress.to_json(),
            "epoch_start": self._epoch_start,
            "metrics_offset": self.setting.run.metrics_offset(),
            "fingerprint": self.dataset.fingerprint,
            "classes": list(self.dataset.classes),
            "mean": self.dataset.mean.tolist(),
            "std": self.dataset.std.tolist(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "scaler": self.scaler.state_dict(),
        }
        weights = {name: value.detach() for name, value in self.model.state_dict().items()}
        return Checkpoint(self.progress.step, weights, state, meta)

    def restore(self, checkpoint: Checkpoint, *, repair: bool = False) -> None:
        """Go on exactly where a checkpoint was written."""
        restore_weights(self.model, checkpoint.weights, repair=repair, say=self.setting.reporter.note)
        moments = {k: v for k, v in checkpoint.state.items() if not k.startswith("previous_field/")}
        self.optimisers.load_state_tensors(moments)
        previous = [checkpoint.state.get(f"previous_field/{i}") for i in range(len(self.auxiliary.fields))]
        fields = [field.to(self.setting.device) for field in previous if field is not None]
        self.auxiliary.previous = fields or None
        self.progress = Progress(**checkpoint.meta["progress"])
        self._epoch_start = checkpoint.meta["epoch_start"]
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(checkpoint.meta["scaler"])
        if self.setting.team.leads:
            self.setting.run.truncate_metrics(checkpoint.meta["metrics_offset"])

    def leave_if_asked(self) -> None:
        """Save and leave when a signal asked for it, all processes together."""
        number = self.setting.stop.number
        if self.setting.team.any(bool(number)):
            self.save(best=False)
            raise Interrupted(
                f"stopped at step {self.progress.step}, saved; go on with "
                f"'quatsphere train --run-dir {self.setting.run.path} --resume'",
                number or 15,
            )

    def test(self) -> dict[str, Any]:
        """The test set, once, with the weights of the best validation accuracy."""
        best = load_best(self.setting.run.checkpoints)
        restore_weights(self.model, best.weights)
        return evaluate(self.model, self.dataset, "test").report()
