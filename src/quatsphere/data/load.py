"""From a name to tensors in memory: read, put into canonical order, split by content hash, normalise."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from quatsphere.data.archives import shown
from quatsphere.data.cache import require_root
from quatsphere.data.cifar import channel_means, read_cifar, recognise
from quatsphere.data.cifar_files import CIFARS
from quatsphere.data.dataset import (
    Contents,
    Dataset,
    Part,
    Progress,
    Split,
    canonical_order,
    count_repeated,
    count_shared,
    fingerprint,
    hold_out,
    limit_to,
    read_digits,
)
from quatsphere.data.idx import read_idx_folder
from quatsphere.data.image_folder import Reading, read_folder
from quatsphere.data.images import FITS
from quatsphere.data.images import fit as fit_image
from quatsphere.errors import ConfigError, DataError

FOLDER_SIZE = 32
"""Side of folder images where the user names none: CIFAR's."""


@dataclass(frozen=True)
class Request:
    """What to read from where."""

    root: Path | None
    image_size: int | None
    how: Reading


READERS: dict[str, Callable[[Request], Contents]] = {
    "digits": lambda request: read_digits(),
    "cifar10": lambda request: read_cifar(CIFARS["cifar10"], request.root, request.how),
    "cifar100": lambda request: read_cifar(CIFARS["cifar100"], request.root, request.how),
    "folder": lambda request: read_folder(
        require_root(request.root, "image folders"), request.image_size or FOLDER_SIZE, request.how
    ),
    "idx": lambda request: read_idx_folder(request.root),
}


def load_dataset(
    name: str,
    *,
    root: str | Path | None = None,
    val_fraction: float = 0.1,
    test_fraction: float = 0.2,
    max_train_images: int | None = None,
    image_size: int | None = None,
    fit: str = "crop",
    skip_bad: int = 0,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Load a data set by name; every choice of samples is a function of their content alone.

    Within each class the smallest content hashes go to the test part (where the source has none), the next smallest
    to validation; `max_train_images` keeps the smallest of the rest. `fit` is `crop` (the centre square) or `squash`
    (both sides resized) where images of a folder are not square. Notes say what a user must know about this copy.
    """
    _check_settings(val_fraction, test_fraction, max_train_images, image_size, skip_bad)
    contents = read_contents(name, root, image_size, fit=fit, skip_bad=skip_bad, cache=cache, progress=progress)
    parts = [_resize(part, image_size, fit) for part in _split(contents, val_fraction, test_fraction, max_train_images)]
    mean, std = _statistics(parts[0].images)
    train, val, test = (Split(torch.from_numpy(part.images), torch.from_numpy(part.labels)) for part in parts)
    return Dataset(name, contents.classes, train, val, test, mean, std, fingerprint(contents), contents.notes)


def _split(contents: Contents, val_fraction: float, test_fraction: float, limit: int | None) -> tuple[Part, Part, Part]:
    """Training, validation and test part, each in canonical order."""
    source, test = contents.train, contents.test
    chosen = canonical_order(source)
    if test is None:
        chosen, held = hold_out(source, chosen, test_fraction)
        test = source.take(held)
    else:
        test = test.take(canonical_order(test))
    chosen, held = hold_out(source, chosen, val_fraction)
    if val_fraction > 0 and not len(held):
        raise DataError(f"no validation images: {len(source)} training images are too few, or all alike; add some")
    return source.take(limit_to(source, chosen, limit)), source.take(held), test


def read_contents(
    name: str,
    root: str | Path | None = None,
    image_size: int | None = None,
    *,
    fit: str = "crop",
    skip_bad: int = 0,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> Contents:
    """The data set as its source holds it, checked, with all notes but not yet split."""
    if name not in READERS:
        near = difflib.get_close_matches(name, READERS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(READERS)}"
        raise ConfigError(f"unknown data set {name!r}; {hint}")
    if fit not in FITS:
        raise ConfigError(f"fit must be {' or '.join(FITS)}: got {fit!r:.40}")
    how = Reading(skip_bad, fit, None if cache is None else Path(cache), progress)
    try:
        contents = READERS[name](Request(None if root is None else Path(root), image_size, how))
    except OSError as error:
        where = shown(str(error.filename or root))
        raise DataError(f"cannot read {where} ({error.strerror}); check the path and its permissions") from error
    _check_classes(contents)
    notes = contents.notes + (recognise(CIFARS[name], contents) if name in CIFARS else ()) + _duplicates(contents)
    if name == "digits" and root is not None:
        notes += ("--data.root is not used: digits are embedded; choose other images with --data.name",)
    return Contents(contents.classes, contents.train, contents.test, notes, contents.lossy)


def _check_settings(
    val_fraction: float, test_fraction: float, max_train_images: int | None, image_size: int | None, skip_bad: int
) -> None:
    for value, name in ((val_fraction, "val_fraction"), (test_fraction, "test_fraction")):
        if not 0 <= value < 1:
            raise ConfigError(f"{name} must lie in [0, 1): got {value}")
    for count, name, least in (
        (max_train_images, "max_train_images", 1),
        (image_size, "image_size", 1),
        (skip_bad, "skip_bad", 0),
    ):
        if count is not None and count < least:
            raise ConfigError(f"{name} must be >= {least}: got {count}")


def _check_classes(contents: Contents) -> None:
    """Every class needs training images; readers that know file names have said so with more detail already."""
    if len(contents.classes) < 2:
        raise DataError(f"only {len(contents.classes)} class; a classifier needs two or more")
    counts = np.bincount(contents.train.labels, minlength=len(contents.classes))
    if not counts.all():
        empty = contents.classes[int(np.argmin(counts))]
        raise DataError(f"class {empty!r} has no usable training images; add some or remove the class")


def _duplicates(contents: Contents) -> tuple[str, ...]:
    notes: tuple[str, ...] = ()
    if contents.test is not None and (shared := count_shared(contents.test, contents.train)):
        notes += (f"{shared} of {len(contents.test)} test images also in train, pixel for pixel",)
    if repeated := count_repeated(contents.train):
        notes += (f"{repeated} of {len(contents.train)} training images repeat another",)
    return notes


def _resize(part: Part, size: int | None, how: str) -> Part:
    """Sets with a size of their own are resized here by the rule of `images.fit`; folders have it already."""
    count, channels, *shape = part.images.shape
    if size is None or shape == [size, size]:
        return part
    resized = np.empty((count, channels, size, size), np.uint8)
    for row, image in zip(resized, part.images, strict=True):
        pixels = image[0] if channels == 1 else image.transpose(1, 2, 0)
        fitted = np.asarray(fit_image(Image.fromarray(pixels), size, how))
        row[:] = fitted if channels == 1 else fitted.transpose(2, 0, 1)
    return Part(resized, part.labels, part.digests)


def _statistics(images: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel in units of [0, 1]; all sums are integers, so no order matters."""
    first = second = np.zeros(images.shape[1])
    for start in range(0, len(images), 256):  # a block that fits in the cache
        block = images[start : start + 256].astype(np.float64)
        first = first + np.einsum("nchw->c", block)
        second = second + np.einsum("nchw,nchw->c", block, block)
    count = images.size / images.shape[1]
    mean, variance = first / count, second / count - (first / count) ** 2
    if not (variance > 1e-6).all():
        channel = int(np.argmin(variance))
        raise DataError(f"channel {channel} of the training images is constant ({mean[channel]:g}); nothing to learn")
    return torch.tensor(mean / 255, dtype=torch.float32), torch.tensor(variance**0.5 / 255, dtype=torch.float32)


def verify(
    name: str,
    *,
    root: str | Path | None = None,
    image_size: int | None = None,
    fit: str = "crop",
    skip_bad: int = 0,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Read everything, check everything, and report plain values that json can write.

    `canonical` is True or False for CIFAR-10, and None where no canonical fingerprint is known.
    """
    contents = read_contents(name, root, image_size, fit=fit, skip_bad=skip_bad, cache=cache, progress=progress)
    known = CIFARS[name].fingerprint if name in CIFARS else None
    identity, test = fingerprint(contents), contents.test
    return {
        "name": name,
        "classes": list(contents.classes),
        "shape": list(contents.train.images.shape[1:]),
        "train": len(contents.train),
        "test": 0 if test is None else len(test),
        "fingerprint": identity,
        "canonical": None if known is None else identity == known,
        "channel_means": channel_means(contents),
        "repeated_in_train": count_repeated(contents.train),
        "repeated_in_test": 0 if test is None else count_repeated(test),
        "test_also_in_train": 0 if test is None else count_shared(test, contents.train),
        "notes": list(contents.notes),
    }
