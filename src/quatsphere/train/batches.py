"""Batches as a pure function of (seed, epoch, step): which images, how augmented, with which dropout keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quatsphere.config import DataConfig
from quatsphere.data import Dataset
from quatsphere.data.augment import augment, mix, normalize
from quatsphere.randomness import fold, name_seed
from quatsphere.train.losses import smooth_targets


def epoch_order(seed: int, epoch: int, count: int) -> Tensor:
    """The order of the training images in an epoch: sorted by a key of (seed, epoch, image)."""
    return fold(name_seed(seed, "order"), epoch, torch.arange(count)).argsort(stable=True)


@dataclass(frozen=True)
class Batch:
    """One process's share of a step: images, soft targets, labels, dropout keys, and which images they are."""

    images: Tensor
    targets: Tensor
    labels: Tensor
    keys: Tensor
    samples: Tensor

    def to(self, device: torch.device) -> Batch:
        """On a device, all but `samples`."""
        return Batch(
            self.images.to(device), self.targets.to(device), self.labels.to(device), self.keys.to(device), self.samples
        )

    def part(self, which: slice) -> Batch:
        """Some of the images; where those are none, one that counts for nothing."""
        tensors = (self.images, self.targets, self.labels, self.keys, self.samples)
        if not len(self.samples[which]):
            return self.part(slice(0, 1)).silent()
        return Batch(*(tensor[which] for tensor in tensors))

    def silent(self) -> Batch:
        """The same images with zero targets and no label: they add nothing to losses, gradients and counts."""
        nothing = torch.zeros_like(self.targets), torch.full_like(self.labels, -1)
        return Batch(self.images, *nothing, self.keys, self.samples)


class Batches:
    """The training images of a run, ready to be asked for any step of any epoch."""

    def __init__(self, dataset: Dataset, config: DataConfig, seed: int, batch_size: int, smoothing: float) -> None:
        self.dataset, self.config, self.seed = dataset, config, seed
        self.batch_size, self.smoothing = batch_size, smoothing
        self.count = len(dataset.train.labels)
        self.steps = -(-self.count // batch_size)
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def samples(self, epoch: int, step: int) -> Tensor:
        """Indices of the images of one step, over all processes; the last step of an epoch may be smaller."""
        if self._order[0] != epoch:
            self._order = (epoch, epoch_order(self.seed, epoch, self.count))
        return self._order[1][step * self.batch_size : (step + 1) * self.batch_size]

    def batch(self, epoch: int, step: int, device: torch.device, rank: int = 0, world: int = 1) -> Batch:
        """The share of process `rank` of `world`; where mixing pairs images, the whole step is made and then shared.

        A step with fewer images than processes leaves some without: those get one image that counts for nothing.
        """
        samples, share = self.samples(epoch, step), slice(rank, None, world)
        if self.config.mixup or self.config.cutmix or rank >= len(samples):
            return self._make(epoch, samples).part(share).to(device)
        return self._make(epoch, samples[share]).to(device)

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
