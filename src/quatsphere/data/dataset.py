"""scikit-learn's 1,797 handwritten digits (UCI, Alpaydin and Kaynak 1998): real data that needs no download."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from quatsphere.errors import ConfigError, DataError

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


Indices = NDArray[np.intp]


def ranks(labels: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Each sample's rank in its class and the class's size, for labels in ascending order."""
    sizes = np.bincount(labels)
    starts = np.cumsum(sizes) - sizes
    return np.arange(len(labels)) - starts[labels], sizes[labels]


def hold_out(part: Part, chosen: Indices, fraction: float) -> tuple[Indices, Indices]:
    """Split into (rest, held): in each class the smallest hashes are held, one at least where there are two.

    Copies of one image never straddle: an image of which any copy stays in the rest stays there with all of them.
    """
    rank, size = ranks(part.labels[chosen])
    held = ((rank + 0.5) / size < fraction) | ((rank == 0) & (size > 1) & (fraction > 0))
    keys = content_keys(part)[chosen]
    held &= ~np.isin(keys, keys[~held])
    return chosen[~held], chosen[held]


def limit_to(part: Part, chosen: Indices, count: int | None) -> Indices:
    """At most `count`, the same share of every class, by hash; the choice of a smaller limit lies in a larger one's."""
    if count is None or count >= len(chosen):
        return chosen
    labels = part.labels[chosen]
    classes = len(np.unique(labels))
    if count < classes:
        raise ConfigError(
            f"max_train_images must leave every class an image: got {count}; nearest legal value {classes}"
        )
    rank, size = ranks(labels)
    by_share = np.lexsort((labels, (rank + 0.5) / size, rank > 0))
    return chosen[np.sort(by_share[:count])]


def count_shared(part: Part, other: Part) -> int:
    """Samples of `part` whose exact image also occurs in `other`."""
    return int(np.isin(content_keys(part), content_keys(other)).sum())


def count_repeated(part: Part) -> int:
    """Samples that repeat an image already counted."""
    return len(part) - len(np.unique(content_keys(part)))


def read_digits() -> Contents:
    """One pool of 8 x 8 greys; the source counts 0..16, we scale to 0..255 and round."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError("data set 'digits' needs scikit-learn; pip install quatsphere[demo]") from error
    source = load_digits()
    images = np.rint(source.images * (255 / 16)).astype(np.uint8)[:, None]
    return Contents(tuple(map(str, range(10))), part_of(images, source.target), None)
