"""The loop. One object holds what a run is made of; `fit` reads as what happens."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from quatsphere.config import RunConfig
from quatsphere.data import Dataset
from quatsphere.data.augment import normalize
from quatsphere.errors import NumericsError
from quatsphere.models import Model
from quatsphere.models.scoring import Evaluation
from quatsphere.nn.field import LearnedBound
from quatsphere.nn.measures import field_motion, routing_entropy, routing_peak
from quatsphere.nn.routing import Routing
from quatsphere.nn.trace import Trace
from quatsphere.optim import Optimisers, repel
from quatsphere.runtime import working_time
from quatsphere.storage.checkpoint import Checkpoint, load_best
from quatsphere.train.batches import Batch, Batches
from quatsphere.train.checkpointing import (
    Keeper,
    Setting,
    first_not_finite,
    restore_weights,
    take_snapshot,
    unfit_to_save,
    write_crash,
)
from quatsphere.train.evaluation import evaluate, predict_logits
from quatsphere.train.losses import Auxiliary, cross_entropy
from quatsphere.train.provenance import config_to_dict
from quatsphere.train.reporting import Progress
from quatsphere.train.resources import Interrupted


@torch.no_grad()
def look_inside(model: nn.Module, images: Tensor, batch_size: int = 32) -> dict[str, Any]:
    """Per step: routing entropy, peak, beta (mean and by head); per shell: bound. Empty for models without them.

    A trace of all images at once would need more memory than a training step; means of parts are as good.
    """
    was_training = model.training
    model.eval()
    parts = images.split(batch_size)
    seen = [_measure(model(part, return_trace=True)[1]) for part in parts]
    model.train(was_training)
    shares = [len(part) / len(images) for part in parts]
    means = {name: _mean([part[name] for part in seen], shares) for name in seen[0]}
    return {
        **means,
        "beta_heads": [m.beta.tolist() for m in model.modules() if isinstance(m, Routing)],
        "bound": [float(m.value) for m in model.modules() if isinstance(m, LearnedBound)],
    }


def _measure(trace: Trace) -> dict[str, list[float]]:
    weights = trace.get("weights", [])
    return {
        "routing_entropy": [routing_entropy(w) for w in weights],
        "routing_peak": [routing_peak(w) for w in weights],
        "beta": [float(beta.mean()) for beta in trace.get("beta", [])],
    }


def _mean(rows: Sequence[Sequence[float]], shares: Sequence[float]) -> list[float]:
    """The mean of rows, each with its share."""
    return [sum(s * value for s, value in zip(shares, column, strict=True)) for column in zip(*rows, strict=True)]


AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MONITORED = 256
"""Validation images on which routing is measured each epoch."""


class Trainer:
    """Trains one model on one data set; every number is a function of the configuration and the data."""

    def __init__(self, config: RunConfig, dataset: Dataset, model: Model, setting: Setting) -> None:
        self.config, self.dataset, self.model, self.setting = config, dataset, model.to(setting.device), setting
        train = config.train
        self.batches = Batches(dataset, config.data, train.seed, train.batch_size, train.label_smoothing)
        roles = model.parameter_roles()
        self.optimisers = Optimisers(dict(model.named_parameters()), roles, config.optim)
        self.auxiliary = Auxiliary(model, roles, train)
        self.positions = {name: p for name, p in model.named_parameters() if name in roles["positions"]}
        self.forward: Callable[..., Any] = torch.compile(model) if train.compile else model
        self.scaler = torch.amp.GradScaler(setting.device.type, enabled=train.precision == "fp16")
        self.keeper = Keeper(setting, train)
        self.progress = Progress()
        self.total_steps = train.epochs * self.batches.steps
        self.rates: dict[str, float] = {}
        self._at = (0, 0)
        self._last_tick = working_time()

    def fit(self) -> None:
        """Epoch after epoch until the horizon or until patience runs out."""
        while not self.finished:
            self.model.train()
            for step in range(self.progress.step_in_epoch, self.batches.steps):
                self.train_step(step)
                self.setting.stop.wait_for_step()
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
        self._at = (progress.epoch, step)
        self.require_places()
        batch = self.batches.batch(progress.epoch, step, self.setting.device, team.rank, team.world)
        size = len(self.batches.samples(progress.epoch, step))
        self.rates = self.optimisers.set_rates(progress.step, self.total_steps)
        self.optimisers.zero_grad()
        precision = self.config.train.precision
        with torch.autocast(self.setting.device.type, AUTOCAST[precision], precision != "fp32"):
            logits = self.forward(batch.images, sample_keys=batch.keys)
        entropy = cross_entropy(logits, batch.targets, size)
        auxiliary = self.auxiliary.terms()
        loss = entropy + sum(auxiliary.values()) / team.world
        self.scaler.scale(loss).backward()
        team.sum_gradients(self.model.parameters())
        self.require_finite({"cross_entropy": entropy, **auxiliary})
        self.apply_gradients()
        repel(list(self.positions.values()), progress.step, self.total_steps, self.config.optim)
        self.model.constrain()
        self.count(logits, batch, entropy, auxiliary, size)

    def apply_gradients(self) -> None:
        """One step of both optimisers; in fp16 a step whose gradients overflowed is left out."""
        for optimiser in self.optimisers.optimisers:
            self.scaler.step(optimiser)
        self.scaler.update()
        if self.scaler.is_enabled() and self.scaler.get_scale() < 1:
            self.crash("a gradient", "overflows fp16 at every scale")

    def require_finite(self, terms: dict[str, Tensor]) -> None:
        """Stop before the update, all processes together, if a loss or gradient is not finite anywhere."""
        named = list(terms.items())
        if not self.scaler.is_enabled():
            named += [(f"gradient of {n}", p.grad) for n, p in self.model.named_parameters() if p.grad is not None]
        bad = first_not_finite(named)
        if self.setting.team.any(bad is not None):
            self.crash(bad or "a loss of another process")

    def require_places(self) -> None:
        """Stop if a vertex is nowhere: torch samples a pixel at NaN, and the gradient of that ends the process."""
        bad = first_not_finite(self.positions.items())
        if bad is not None:
            self.crash(bad)

    def crash(self, tensor: str, fault: str = "is not finite") -> NoReturn:
        """Leave what is needed to make the bad step again, and stop."""
        epoch, step = self._at
        samples = self.batches.samples(epoch, step).tolist()
        if self.setting.team.leads:
            facts = {"tensor": tensor, "epoch": epoch, "step_in_epoch": step, "step": self.progress.step}
            facts |= {"samples": samples, "seed": self.config.train.seed, "config": config_to_dict(self.config)}
            write_crash(self.setting.run, facts)
        raise NumericsError(
            f"{tensor} {fault} (epoch {epoch + 1}, step {self.progress.step}, images {samples[:4]}...; "
            "details in crash/); the last checkpoint is intact: lower the learning rate or use fp32"
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
        progress = self.progress
        self.clock()
        speed = progress.sums["images"] / max(1e-9, progress.seconds - progress.epoch_start)
        self.setting.team.share_buffers(self.model.buffers())
        accuracy = self.validate()
        inside = look_inside(self.model, self.probe())
        inside["field_motion"] = field_motion(self.auxiliary.fields, self.auxiliary.previous)
        self.setting.stop.wait_for_step()
        self.auxiliary.remember()
        progress.epoch += 1
        improved = progress.improved(accuracy, self.config.train.min_delta)
        self.clock()
        self.record({"val_accuracy": accuracy, **inside, "images_per_second": speed})
        progress.begin_epoch()
        self.save(best=improved)
        self.leave_if_asked()

    def record(self, seen: dict[str, Any]) -> None:
        """One line of metrics."""
        progress = self.progress
        record = {
            "epoch": progress.epoch,
            "step": progress.step,
            "train": progress.means(),
            "best_val_accuracy": progress.best_accuracy,
            "learning_rates": self.rates,
            "seconds": progress.seconds,
            **seen,
        }
        if self.setting.team.leads:
            self.setting.run.append_metrics(record)
        self.setting.reporter.epoch(record)

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
        """The validation images on which routing is measured: evenly spread, so over all classes."""
        images = self.dataset.val.images
        count = min(MONITORED, len(images))
        chosen = images[torch.arange(count) * len(images) // count]
        return normalize(chosen, self.dataset.mean, self.dataset.std).to(self.setting.device)

    def tell(self) -> None:
        """Report the step."""
        before = self.progress.seconds
        self.clock()
        speed = self.config.train.batch_size / max(1e-9, self.progress.seconds - before)
        self.setting.reporter.step(self.progress, self.batches.steps, self.config.train.epochs, speed)

    def clock(self) -> None:
        """Add the time since the last call; kernels compiled meanwhile say nothing about the speed of training."""
        now = working_time()
        self.progress.seconds += now - self._last_tick
        self._last_tick = now

    def save_if_due(self) -> None:
        """Save after so many steps or seconds; the last step of an epoch is saved with the epoch's end."""
        if self.progress.step_in_epoch < self.batches.steps and self.keeper.due(self.progress.step):
            self.save(best=False)

    def save(self, *, best: bool) -> None:
        """Write a checkpoint, but never one with a broken number in it."""
        self.keeper.save(self.sound_snapshot, best=best)

    def sound_snapshot(self) -> Checkpoint:
        """The state as it is, if every number in it may be kept."""
        snapshot = take_snapshot(self)
        fault = unfit_to_save(snapshot)
        if fault is not None:
            self.crash(*fault)
        return snapshot

    def leave_if_asked(self) -> None:
        """Save and leave when a signal asked for it, all processes together."""
        number = self.setting.stop.number
        if self.setting.team.any(bool(number)):
            self.save(best=False)
            raise Interrupted(
                f"stopped at step {self.progress.step}, saved; go on with "
                f"'quatsphere train --run-dir {shlex.quote(str(self.setting.run.path))} --resume'",
                number or 15,
            )

    def test(self, *, repair: bool = False) -> Evaluation:
        """The test set, once, with the weights of the best validation accuracy; a signal is obeyed, nothing saved."""
        best = load_best(self.setting.run.checkpoints)
        restore_weights(self.model, best.weights, repair=repair, say=self.setting.reporter.note)

        def watch(done: int, total: int) -> None:
            if self.setting.stop.number:
                raise Interrupted("stopped while testing; go on with --resume", self.setting.stop.number)

        return evaluate(self.model, self.dataset, "test", progress=watch)
