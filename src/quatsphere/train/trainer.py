"""The training loop: epochs of steps, validation, metrics, checkpoints."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor

from quatsphere.config import RunConfig
from quatsphere.config.resolve import config_to_dict
from quatsphere.data import Dataset
from quatsphere.data.augment import normalize
from quatsphere.errors import NumericsError
from quatsphere.models import Model
from quatsphere.models.scoring import Evaluation, measure_routing
from quatsphere.nn.trace import field_motion
from quatsphere.runtime import working_time
from quatsphere.storage.atomic import write_json
from quatsphere.storage.checkpoint import Checkpoint, load_best
from quatsphere.train.batches import Batches, BatchFeed
from quatsphere.train.checkpointing import CheckpointSaver, RunContext, require_sound, restore_weights, take_snapshot
from quatsphere.train.evaluation import evaluate, predict_logits
from quatsphere.train.reporting import Progress
from quatsphere.train.resources import Interrupted, StopNow
from quatsphere.train.step import BrokenNumber, OptimisationStep, StepOutput

MONITORED_IMAGES = 256
"""Validation images on which routing is measured each epoch."""


class Trainer:
    """Trains one model on one data set; every number is a function of the configuration and the data."""

    def __init__(self, config: RunConfig, dataset: Dataset, model: Model, context: RunContext) -> None:
        self.config, self.dataset, self.model, self.context = config, dataset, model.to(context.device), context
        train = config.train
        self.batches = Batches(dataset, config.data, train.seed, train.batch_size, train.label_smoothing)
        self.feed = BatchFeed(self.batches, context.device, context.team.rank, context.team.world)
        self.total_steps = train.epochs * self.batches.steps
        self.step = OptimisationStep(
            self.model, train, config.optim, self.total_steps, device=context.device, team=context.team
        )
        self.saver = CheckpointSaver(context, train)
        self.progress = Progress()
        self._position = (0, 0)
        self._last_tick = working_time()

    # The loop.

    def fit(self) -> None:
        """Train until the last epoch, or until `patience` epochs have passed without improvement."""
        while not self.finished:
            self.model.train()
            for step in range(self.progress.step_in_epoch, self.batches.steps):
                self.train_step(step)
                self.context.stop.defer()
                self.report_step()
                self.save_if_due()
                self.stop_if_requested()
            self.end_epoch()

    @property
    def finished(self) -> bool:
        """True if no epoch is left to train."""
        patience = self.config.train.patience
        return self.progress.epoch >= self.config.train.epochs or (
            patience is not None and self.progress.waited >= patience
        )

    def train_step(self, step: int) -> None:
        """Train on one batch of the current epoch and add its losses to the epoch's sums."""
        progress = self.progress
        self._position = (progress.epoch, step)
        batch = self.feed.batch(progress.epoch, step)
        size = len(self.batches.samples(progress.epoch, step))
        try:
            output = self.step(batch, size, progress.step)
        except BrokenNumber as broken:
            self.crash(broken)
        self.accumulate(output, size)

    def accumulate(self, output: StepOutput, size: int) -> None:
        """Add a step to the epoch's sums."""
        total = output.cross_entropy + sum(output.auxiliary.values())
        self.progress.add({"loss": total, "cross_entropy": output.cross_entropy, **output.auxiliary})
        self.progress.add({"accuracy": output.correct, "images": float(size)})
        self.progress.step += 1
        self.progress.step_in_epoch += 1

    def end_epoch(self) -> None:
        """Validate, write the metrics, store the field for the smoothness loss, save a checkpoint."""
        progress, auxiliary = self.progress, self.step.auxiliary
        self.update_clock()
        speed = progress.sums["images"] / max(1e-9, progress.seconds - progress.epoch_start)
        self.context.team.broadcast_buffers(self.model.buffers())
        accuracy, monitored = self.measure()
        monitored["field_motion"] = field_motion(auxiliary.fields, auxiliary.previous)
        self.context.stop.defer()
        auxiliary.store_fields()
        progress.epoch += 1
        improved = progress.improved(accuracy, self.config.train.min_delta)
        self.update_clock()
        self.write_metrics({"val_accuracy": accuracy, **monitored, "images_per_second": speed})
        progress.begin_epoch()
        self.save(best=improved)
        self.stop_if_requested()

    # Evaluation.

    def measure(self) -> tuple[float, dict[str, Any]]:
        """Validation accuracy and routing of the model; a signal stops a single process at once, also in a compilation.

        With several processes a signal does not stop the measurement, which all of them finish together.
        """
        stop = self.context.stop
        try:
            with stop.interruptible() if self.context.team.world == 1 else nullcontext():
                return self.validate(), measure_routing(self.model, self.monitored_images())
        except (StopNow, Exception) as error:  # a compiler that was interrupted may fail in any way
            if stop.has_work and stop.signal_number and not isinstance(error, Interrupted):
                self.stop_if_requested()
            raise

    def validate(self) -> float:
        """Accuracy on the validation images, split among the processes; a single process may be interrupted."""
        team, split = self.context.team, self.dataset.val
        images, labels = split.images[team.rank :: team.world], split.labels[team.rank :: team.world]

        def on_batch(done: int, total: int) -> None:
            self.context.reporter.validating(done, total)
            if team.world == 1:
                self.stop_if_requested()

        logits = predict_logits(self.model, self.dataset, images, progress=on_batch)
        correct = team.sum((logits.argmax(1) == labels).sum().double().reshape(1))
        return float(correct[0]) / len(split.labels)

    def test(self, *, repair: bool = False) -> Evaluation:
        """Evaluate the best checkpoint on the test images; a signal stops it, and nothing is saved."""
        best = load_best(self.context.run.checkpoints)
        restore_weights(self.model, best.weights, repair=repair, note=self.context.reporter.note)

        def on_batch(done: int, total: int) -> None:
            number = self.context.stop.signal_number
            if number:
                raise Interrupted("stopped while testing; continue with --resume", number)

        return evaluate(self.model, self.dataset, "test", progress=on_batch)

    def monitored_images(self) -> Tensor:
        """Validation images on which routing is measured, evenly spaced so that all classes occur."""
        images = self.dataset.val.images
        count = min(MONITORED_IMAGES, len(images))
        chosen = images[torch.arange(count) * len(images) // count]
        return normalize(chosen, self.dataset.mean, self.dataset.std).to(self.context.device)

    # Reporting.

    def write_metrics(self, measured: dict[str, Any]) -> None:
        """Write the epoch's line of metrics and report it."""
        progress, context = self.progress, self.context
        record = {
            "epoch": progress.epoch,
            "step": progress.step,
            "train": progress.means(),
            "best_val_accuracy": progress.best_accuracy,
            "learning_rates": self.step.rates,
            "seconds": progress.seconds,
            **measured,
        }
        if context.team.is_rank_zero:
            context.run.append_metrics(record)
        context.tracker.log(record)
        context.reporter.epoch(record)

    def report_step(self) -> None:
        """Report the step with its speed."""
        before = self.progress.seconds
        self.update_clock()
        speed = self.config.train.batch_size / max(1e-9, self.progress.seconds - before)
        self.context.reporter.step(self.progress, self.batches.steps, self.config.train.epochs, speed)

    def update_clock(self) -> None:
        """Add the time since the last call to the training time; compilation of kernels is not counted."""
        now = working_time()
        self.progress.seconds += now - self._last_tick
        self._last_tick = now

    # Checkpoints and stopping.

    def save_if_due(self) -> None:
        """Save if the saver is due; the last step of an epoch is saved by `end_epoch`."""
        if self.progress.step_in_epoch < self.batches.steps and self.saver.due(self.progress.step):
            self.save(best=False)

    def save(self, *, best: bool) -> None:
        """Write a checkpoint, unless a number in it is broken."""
        self.saver.save(self.checked_snapshot, best=best)

    def checked_snapshot(self) -> Checkpoint:
        """Snapshot of the trainer whose numbers have been checked."""
        snapshot = take_snapshot(self)
        try:
            require_sound(snapshot, self.model)
        except BrokenNumber as broken:
            self.crash(broken)
        return snapshot

    def stop_if_requested(self) -> None:
        """Save and stop, all processes together, if any has received a signal."""
        number = self.context.stop.signal_number
        if self.context.team.any(bool(number)):
            self.save(best=False)
            raise Interrupted(
                f"stopped at step {self.progress.step}, saved; continue with "
                f"'quatsphere train --run-dir {shlex.quote(str(self.context.run.path))} --resume'",
                number or 15,
            )

    def crash(self, broken: BrokenNumber) -> NoReturn:
        """Write `crash/crash.json`, from which the step can be reproduced, and stop."""
        epoch, step = self._position
        samples = self.batches.samples(epoch, step).tolist()
        if self.context.team.is_rank_zero:
            facts = {"tensor": broken.tensor, "epoch": epoch, "step_in_epoch": step, "step": self.progress.step}
            facts |= {"samples": samples, "seed": self.config.train.seed, "config": config_to_dict(self.config)}
            folder = self.context.run.path / "crash"
            folder.mkdir(exist_ok=True)
            write_json(folder / "crash.json", facts)
        raise NumericsError(
            f"{broken} (epoch {epoch + 1}, step {self.progress.step}, images {samples[:4]}...; "
            "details in crash/); the last checkpoint is intact: lower the learning rate or use fp32"
        ) from broken
