"""What every reader of a data set hands over, and the identity of its content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Progress = Callable[[int, int], None]
"""Called with (done, total) while a slow step goes on; the caller draws the bar."""


@dataclass(frozen=True)
class Split:
    """Images and labels that are used together."""

    images: Tensor  # uint8 (N, C, H, W)
    labels: Tensor  # int64 (N,)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """Everything training needs, in memory; a sample's id is its index in `train`."""

    name: str
    classes: tuple[str, ...]
    train: Split
    val: Split
    test: Split
    mean: Tensor  # (C,) float32, in units of [0, 1], from the training part
    std: Tensor  # (C,) float32
    fingerprint: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """Samples as read: the digest identifies the image as it was in the source, before any resizing."""

    images: NDArray[np.uint8]  # (N, C, H, W)
    labels: NDArray[np.int64]  # (N,)
    digests: NDArray[np.uint8]  # (N, 32)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, which: NDArray[np.intp] | slice) -> Part:
        """The chosen samples, in the order chosen."""
        return Part(self.images[which], self.labels[which], self.digests[which])


@dataclass(frozen=True)
class Contents:
    """A data set as its files hold it; `test` is None where the source has one pool only."""

    classes: tuple[str, ...]
    train: Part
    test: Part | None
    notes: tuple[str, ...] = ()
    lossy: int = 0  # how many images come from JPEG files


def digest_images(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """SHA-256 of (shape, pixels) of each image: (N, C, H, W) -> (N, 32)."""
    head = hashlib.sha256(shape_bytes(images.shape[1:]))
    rows = np.empty((len(images), 32), np.uint8)
    for row, image in zip(rows, np.ascontiguousarray(images), strict=True):
        hasher = head.copy()
        hasher.update(image)
        row[:] = np.frombuffer(hasher.digest(), np.uint8)
    return rows


def shape_bytes(shape: tuple[int, ...]) -> bytes:
    """How a digest writes (C, H, W); `images.py` writes the same."""
    return (",".join(map(str, shape)) + ";").encode()


def part_of(images: NDArray[np.uint8], labels: NDArray[np.integer]) -> Part:
    """A part whose images are in their source form."""
    return Part(images, labels.astype(np.int64), digest_images(images))


def canonical_order(part: Part) -> NDArray[np.intp]:
    """Indices that sort by label, then content: nothing may depend on the order of files."""
    words = np.ascontiguousarray(part.digests).view(">u8")  # (N, 4)
    return np.lexsort((words[:, 3], words[:, 2], words[:, 1], words[:, 0], part.labels))


def fingerprint(contents: Contents) -> str:
    """SHA-256 over class names and the sorted (part, label, digest) of all samples: order and container vanish."""
    hasher = hashlib.sha256("\n".join(contents.classes).encode("utf-8", "surrogateescape"))
    for tag, part in (("train", contents.train), ("test", contents.test)):
        if part is not None:
            ordered = canonical_order(part)
            hasher.update(f"\n{tag} {len(part)}\n".encode())
            hasher.update(part.labels[ordered].astype("<i8").tobytes())
            hasher.update(part.digests[ordered].tobytes())
    return hasher.hexdigest()


def content_keys(part: Part) -> np.ndarray:
    """Each digest as one comparable item, for set operations: (N,)."""
    return np.ascontiguousarray(part.digests).view("V32")[:, 0]
