"""Data sets in memory: their types, content digests, fingerprints, and splits by content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from quatsphere.data import FIT_MODES, shape_bytes
from quatsphere.errors import ConfigError

ProgressCallback = Callable[[int, int], None]
"""Callback of slow steps, called with (done, total)."""
Indices = NDArray[np.intp]


@dataclass(frozen=True, repr=False)
class Split:
    """Images and labels of the training, validation or test split."""

    images: Tensor  # uint8 (N, C, H, W)
    labels: Tensor  # int64 (N,)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Split({len(self):,} images of {'x'.join(map(str, self.images.shape[1:]))})"


@dataclass(frozen=True, repr=False)
class Dataset:
    """A data set ready for training; a sample's id is its index in `train`."""

    name: str
    classes: tuple[str, ...]
    train: Split
    val: Split
    test: Split
    mean: Tensor  # (C,) float32 of the training split, levels scaled to [0, 1]
    std: Tensor  # (C,) float32
    fingerprint: str
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        splits = ", ".join(f"{len(getattr(self, name)):,} {name}" for name in ("train", "val", "test"))
        size = "x".join(map(str, self.train.images.shape[1:]))
        return f"Dataset({self.name}: {len(self.classes)} classes, {splits} images of {size})"


@dataclass(frozen=True)
class ReadOptions:
    """Options passed to the reader of a data set."""

    root: Path | None = None
    image_size: int | None = None
    fit: str = "crop"
    skip_bad: int = 0
    cache: Path | None = None
    progress: ProgressCallback | None = None

    def __post_init__(self) -> None:
        if self.image_size is not None and self.image_size < 1:
            raise ConfigError(f"image_size must be >= 1: got {self.image_size}")
        if self.skip_bad < 0:
            raise ConfigError(f"skip_bad must be >= 0: got {self.skip_bad}")
        if self.fit not in FIT_MODES:
            raise ConfigError(f"fit must be {' or '.join(FIT_MODES)}: got {self.fit!r:.40}")


@dataclass(frozen=True)
class RawSplit:
    """Samples as read; a digest identifies the source image, before any resizing."""

    images: NDArray[np.uint8]  # (N, C, H, W)
    labels: NDArray[np.int64]  # (N,)
    digests: NDArray[np.uint8]  # (N, 32)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Indices | slice) -> RawSplit:
        """Return the samples at these indices, in this order."""
        return RawSplit(self.images[indices], self.labels[indices], self.digests[indices])


@dataclass(frozen=True)
class RawDataset:
    """A data set as its files hold it; `test` is None where the source is one pool."""

    classes: tuple[str, ...]
    train: RawSplit
    test: RawSplit | None
    notes: tuple[str, ...] = ()
    jpeg_count: int = 0
    official_fingerprint: str | None = None


def raw_split(images: NDArray[np.uint8], labels: NDArray[np.integer]) -> RawSplit:
    """Return a split of images (N, C, H, W) that have not been resized, with their digests."""
    return RawSplit(images, labels.astype(np.int64), digest_images(images))


def digest_images(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """SHA-256 of (shape, pixels) of each image: (N, C, H, W) -> (N, 32)."""
    head = hashlib.sha256(shape_bytes(images.shape[1:]))
    rows = np.empty((len(images), 32), np.uint8)
    for row, image in zip(rows, np.ascontiguousarray(images), strict=True):
        hasher = head.copy()
        hasher.update(image)
        row[:] = np.frombuffer(hasher.digest(), np.uint8)
    return rows


def canonical_order(split: RawSplit) -> Indices:
    """Indices that sort by label, then by content, so that nothing depends on the order of files."""
    words = np.ascontiguousarray(split.digests).view(">u8")  # (N, 4)
    return np.lexsort((words[:, 3], words[:, 2], words[:, 1], words[:, 0], split.labels))


def dataset_fingerprint(raw: RawDataset) -> str:
    """SHA-256 of class names and the sorted (split, label, digest) of all samples; the order of files has no effect."""
    hasher = hashlib.sha256("\n".join(raw.classes).encode("utf-8", "surrogateescape"))
    for name, split in (("train", raw.train), ("test", raw.test)):
        if split is not None:
            order = canonical_order(split)
            hasher.update(f"\n{name} {len(split)}\n".encode())
            hasher.update(split.labels[order].astype("<i8").tobytes())
            hasher.update(split.digests[order].tobytes())
    return hasher.hexdigest()


def digest_keys(split: RawSplit) -> np.ndarray:
    """Each digest as one comparable item, for set operations: (N,)."""
    return np.ascontiguousarray(split.digests).view("V32")[:, 0]


def _rank_in_class(labels: NDArray[np.int64]) -> tuple[Indices, Indices]:
    """Rank of each sample in its class and size of that class, for labels in ascending order."""
    sizes = np.bincount(labels)
    starts = np.cumsum(sizes) - sizes
    return np.arange(len(labels)) - starts[labels], sizes[labels]


def hold_out(split: RawSplit, indices: Indices, fraction: float) -> tuple[Indices, Indices]:
    """Divide into (rest, held): the smallest digests of each class are held, at least one where there are two.

    Copies of an image are never separated: if any copy stays in the rest, all of them do.
    """
    rank, size = _rank_in_class(split.labels[indices])
    held = ((rank + 0.5) / size < fraction) | ((rank == 0) & (size > 1) & (fraction > 0))
    keys = digest_keys(split)[indices]
    held &= ~np.isin(keys, keys[~held])
    return indices[~held], indices[held]


def stratified_subset(split: RawSplit, indices: Indices, count: int | None) -> Indices:
    """At most `count` indices, the same fraction of every class, by digest; smaller subsets are contained in larger."""
    if count is None or count >= len(indices):
        return indices
    labels = split.labels[indices]
    classes = len(np.unique(labels))
    if count < classes:
        raise ConfigError(
            f"max_train_images must leave every class an image: got {count}; nearest legal value {classes}"
        )
    rank, size = _rank_in_class(labels)
    order = np.lexsort((labels, (rank + 0.5) / size, rank > 0))
    return indices[np.sort(order[:count])]


def count_shared(split: RawSplit, other: RawSplit) -> int:
    """Number of samples of `split` whose exact image also occurs in `other`."""
    return int(np.isin(digest_keys(split), digest_keys(other)).sum())


def count_repeated(split: RawSplit) -> int:
    """Number of samples that repeat the image of another."""
    return len(split) - len(np.unique(digest_keys(split)))
