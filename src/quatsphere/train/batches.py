"""Batches as a pure function of (seed, epoch, step): images, augmentation, targets, dropout keys."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from quatsphere.config import DataConfig
from quatsphere.data import Dataset
from quatsphere.data.augment import augment, mix, normalize
from quatsphere.randomness import fold, name_seed
from quatsphere.train.losses import smooth_targets


def epoch_order(seed: int, epoch: int, count: int) -> Tensor:
    """Order of the training images in an epoch: sorted by a hash of (seed, epoch, image)."""
    return fold(name_seed(seed, "order"), epoch, torch.arange(count)).argsort(stable=True)


@dataclass(frozen=True)
class Batch:
    """One process's part of a batch: images, soft targets, labels, dropout keys, and indices of the images."""

    images: Tensor
    targets: Tensor
    labels: Tensor
    keys: Tensor
    samples: Tensor

    def to(self, device: torch.device) -> Batch:
        """Copy everything but `samples` to a device, from pinned memory without a wait."""
        return self._map(lambda x: x.to(device, non_blocking=device.type == "cuda"))

    def pinned(self) -> Batch:
        """Copy everything but `samples` to memory that a CUDA device reads by itself."""
        return self._map(Tensor.pin_memory)

    def _map(self, move: Callable[[Tensor], Tensor]) -> Batch:
        return Batch(move(self.images), move(self.targets), move(self.labels), move(self.keys), self.samples)

    def select(self, rows: slice) -> Batch:
        """Return the images at `rows`; if there are none, one image that has no effect."""
        tensors = (self.images, self.targets, self.labels, self.keys, self.samples)
        if not len(self.samples[rows]):
            return self.select(slice(0, 1)).without_effect()
        return Batch(*(tensor[rows] for tensor in tensors))

    def without_effect(self) -> Batch:
        """Return the images with zero targets and no labels: losses, gradients and counts of 0."""
        targets, labels = torch.zeros_like(self.targets), torch.full_like(self.labels, -1)
        return Batch(self.images, targets, labels, self.keys, self.samples)


class Batches:
    """Training images of a run; `batch` makes the batch of any step of any epoch."""

    def __init__(self, dataset: Dataset, config: DataConfig, seed: int, batch_size: int, smoothing: float) -> None:
        self.dataset, self.config, self.seed = dataset, config, seed
        self.batch_size, self.smoothing = batch_size, smoothing
        self.count = len(dataset.train.labels)
        self.steps = -(-self.count // batch_size)
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def samples(self, epoch: int, step: int) -> Tensor:
        """Indices of the images of a step, over all processes; the last batch of an epoch may be smaller."""
        known = self._order  # read once: another thread may prepare the next epoch
        if known[0] != epoch:
            known = self._order = (epoch, epoch_order(self.seed, epoch, self.count))
        return known[1][step * self.batch_size : (step + 1) * self.batch_size]

    def batch(self, epoch: int, step: int, device: torch.device, rank: int = 0, world: int = 1) -> Batch:
        """Part of process `rank` of `world`; where mixing pairs images, the whole batch is made and then divided.

        If a batch has fewer images than there are processes, some get one image that has no effect.
        """
        samples, rows = self.samples(epoch, step), slice(rank, None, world)
        if self.config.mixup or self.config.cutmix or rank >= len(samples):
            return self._make(epoch, samples).select(rows).to(device)
        return self._make(epoch, samples[rows]).to(device)

    def _make(self, epoch: int, samples: Tensor) -> Batch:
        config, split = self.config, self.dataset.train
        pixels = augment(
            split.images[samples],
            samples,
            seed=self.seed,
            epoch=epoch,
            crop_pad=config.crop_pad,
            flip=config.flip,
            trivial_augment=config.trivial_augment,
        )
        images = normalize(pixels, self.dataset.mean, self.dataset.std)
        labels = split.labels[samples]
        targets = smooth_targets(labels, len(self.dataset.classes), self.smoothing)
        images, targets = mix(
            images, targets, samples, seed=self.seed, epoch=epoch, mixup=config.mixup, cutmix=config.cutmix
        )
        keys = fold(name_seed(self.seed, "dropout"), epoch, samples)
        return Batch(images, targets, labels, keys, samples)


class BatchFeed:
    """Batches of one process in the order of training.

    For an accelerator a thread prepares the next batch, in pinned memory for CUDA, while the step runs. A batch is a
    function of seed, epoch and step, so this does not change it in any bit.
    """

    def __init__(self, batches: Batches, device: torch.device, rank: int = 0, world: int = 1) -> None:
        self.batches, self.device, self.part = batches, device, (rank, world)
        self._thread = None if device.type == "cpu" else ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._next: tuple[tuple[int, int], Future[Batch]] | None = None

    def batch(self, epoch: int, step: int) -> Batch:
        """Return the batch of a step on the device, and begin to prepare the one after it."""
        if self._thread is None:
            return self.batches.batch(epoch, step, self.device, *self.part)
        if self._next is not None and self._next[0] == (epoch, step):
            made = self._next[1].result()
        else:
            made = self._prepare(epoch, step)
        later = (epoch, step + 1) if step + 1 < self.batches.steps else (epoch + 1, 0)
        self._next = (later, self._thread.submit(self._prepare, *later))
        return made.to(self.device)

    def _prepare(self, epoch: int, step: int) -> Batch:
        made = self.batches.batch(epoch, step, torch.device("cpu"), *self.part)
        return made.pinned() if self.device.type == "cuda" else made
