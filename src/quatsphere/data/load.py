"""Load a data set by name: read it, sort it by content, split it, compute its mean and standard deviation."""

from __future__ import annotations

import difflib
import io
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from quatsphere.data import DATASETS, PYTHON_DATA
from quatsphere.data.dataset import (
    Dataset,
    ProgressCallback,
    RawDataset,
    RawSplit,
    ReadOptions,
    Split,
    canonical_order,
    count_repeated,
    count_shared,
    dataset_fingerprint,
    hold_out,
    raw_split,
    stratified_subset,
)
from quatsphere.data.decode import fit_image, to_grey
from quatsphere.errors import ConfigError, DataError, printable
from quatsphere.storage.atomic import read_regular, sha256_bytes

DIGITS = Path(__file__).with_name("digits.npz")
"""Levels uint8 (1797, 8, 8) and labels of the digits; `digits.LICENSE` has their origin and licence."""
DIGITS_SHA256 = "4b03e719f26714ca93103c81b5779ffb84d7bf4ea72713849897f7baaa80bad4"


def load_dataset(
    name: str,
    *,
    root: str | Path | None = None,
    val_fraction: float = 0.1,
    test_fraction: float = 0.2,
    max_train_images: int | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    fit: str = "crop",
    skip_bad: int = 0,
    cache: str | Path | None = None,
    progress: ProgressCallback | None = None,
) -> Dataset:
    """Load a data set by name; which samples go into which split depends on their content alone.

    Within each class the smallest content hashes form the test split (where the source has none), the next smallest
    the validation split; `max_train_images` keeps the smallest of the remainder. Images that are not square are fitted
    by `crop` (centre square) or `squash` (both sides resized); `channels` makes them grey (1) or RGB (3). `notes` of
    the result describe this copy of the data.
    """
    for setting, fraction in (("val_fraction", val_fraction), ("test_fraction", test_fraction)):
        if not 0 <= fraction < 1:
            raise ConfigError(f"{setting} must lie in [0, 1): got {fraction}")
    if max_train_images is not None and max_train_images < 1:
        raise ConfigError(f"max_train_images must be >= 1: got {max_train_images}")
    raw = read_dataset(name, ReadOptions(_as_path(root), image_size, fit, skip_bad, _as_path(cache), progress))
    return prepare_dataset(name, raw, (val_fraction, test_fraction, max_train_images), image_size, channels, fit)


def prepare_dataset(
    name: str,
    raw: RawDataset,
    splitting: tuple[float, float, int | None],
    image_size: int | None = None,
    channels: int | None = None,
    fit: str = "crop",
) -> Dataset:
    """Split samples by content, resize and convert them, and compute mean and standard deviation.

    `splitting` is (val_fraction, test_fraction, max_train_images).
    """
    splits = [_with_channels(_resize(split, image_size, fit), channels) for split in _split(raw, *splitting)]
    mean, std = _channel_statistics(splits[0].images)
    train, val, test = (Split(torch.from_numpy(split.images), torch.from_numpy(split.labels)) for split in splits)
    return Dataset(name, raw.classes, train, val, test, mean, std, dataset_fingerprint(raw), raw.notes)


def verify(
    name: str,
    *,
    root: str | Path | None = None,
    image_size: int | None = None,
    fit: str = "crop",
    skip_bad: int = 0,
    cache: str | Path | None = None,
    progress: ProgressCallback | None = None,
) -> dict[str, Any]:
    """Read and check a data set, and report values that JSON can hold.

    `canonical` is True or False for CIFAR-10, and None where no official fingerprint is known.
    """
    raw = read_dataset(name, ReadOptions(_as_path(root), image_size, fit, skip_bad, _as_path(cache), progress))
    official, fingerprint, test = raw.official_fingerprint, dataset_fingerprint(raw), raw.test
    return {
        "name": name,
        "classes": list(raw.classes),
        "shape": list(raw.train.images.shape[1:]),
        "train": len(raw.train),
        "test": 0 if test is None else len(test),
        "fingerprint": fingerprint,
        "canonical": None if official is None else fingerprint == official,
        "channel_means": raw.train.images.mean(axis=(0, 2, 3), dtype=np.float64).tolist(),
        "repeated_in_train": count_repeated(raw.train),
        "repeated_in_test": 0 if test is None else count_repeated(test),
        "test_also_in_train": 0 if test is None else count_shared(test, raw.train),
        "notes": list(raw.notes),
    }


def _as_path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def read_dataset(name: str, options: ReadOptions) -> RawDataset:
    """Read a data set and check its classes; its notes mention duplicates."""
    if name == PYTHON_DATA:
        raise DataError("the data of this run was passed from Python and has no files; pass it again as data=")
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(DATASETS)}"
        raise ConfigError(f"unknown data set {name!r}; {hint}")
    reader = DATASETS[name]
    if isinstance(reader, str):
        module, _, function = reader.partition(":")
        reader = getattr(import_module(module), function)
    try:
        raw = reader(options)
    except OSError as error:
        path = printable(str(error.filename or options.root))
        raise DataError(f"cannot read {path} ({error.strerror}); check the path and its permissions") from error
    return checked_dataset(raw)


def checked_dataset(raw: RawDataset) -> RawDataset:
    """Require training images of two or more classes, and of every class; notes of the result mention duplicates."""
    if len(raw.classes) < 2:
        raise DataError(f"only {len(raw.classes)} class; a classifier needs two or more")
    counts = np.bincount(raw.train.labels, minlength=len(raw.classes))
    if not counts.all():
        empty = raw.classes[int(np.argmin(counts))]
        raise DataError(f"class {empty!r} has no usable training images; add some or remove the class")
    notes = raw.notes
    if raw.test is not None and (shared := count_shared(raw.test, raw.train)):
        notes += (f"{shared} of {len(raw.test)} test images also in train, pixel for pixel",)
    if repeated := count_repeated(raw.train):
        notes += (f"{repeated} of {len(raw.train)} training images repeat another",)
    return replace(raw, notes=notes)


def _split(
    raw: RawDataset, val_fraction: float, test_fraction: float, limit: int | None
) -> tuple[RawSplit, RawSplit, RawSplit]:
    """Training, validation and test split, each in canonical order."""
    source, test = raw.train, raw.test
    indices = canonical_order(source)
    if test is None:
        indices, held = hold_out(source, indices, test_fraction)
        test = source.take(held)
    else:
        test = test.take(canonical_order(test))
    indices, held = hold_out(source, indices, val_fraction)
    if val_fraction > 0 and not len(held):
        raise DataError(f"no validation images: {len(source)} training images are too few, or all alike; add some")
    return source.take(stratified_subset(source, indices, limit)), source.take(held), test


def _resize(split: RawSplit, size: int | None, fit: str) -> RawSplit:
    """Resize images of data sets with a fixed size; images of folders have been resized when decoded."""
    count, channels, *shape = split.images.shape
    if size is None or shape == [size, size]:
        return split
    resized = np.empty((count, channels, size, size), np.uint8)
    for row, image in zip(resized, split.images, strict=True):
        pixels = image[0] if channels == 1 else image.transpose(1, 2, 0)
        fitted = np.asarray(fit_image(Image.fromarray(pixels), size, fit))
        row[:] = fitted if channels == 1 else fitted.transpose(2, 0, 1)
    return replace(split, images=resized)


def _with_channels(split: RawSplit, channels: int | None) -> RawSplit:
    """Grey or RGB images, as `predict` makes them."""
    found = split.images.shape[1]
    if channels is None or channels == found:
        return split
    if channels == 3 and found == 1:
        return replace(split, images=np.repeat(split.images, 3, axis=1))
    if channels == 1 and found == 3:
        return replace(split, images=to_grey(split.images))
    raise ConfigError(f"channels must be {found} for images of {found} channels: got {channels}")


def _channel_statistics(images: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per channel of levels scaled to [0, 1]; sums of integers, so order has no effect."""
    first = second = np.zeros(images.shape[1])
    for start in range(0, len(images), 256):  # a block that fits in the processor's cache
        block = images[start : start + 256].astype(np.float64)
        first = first + np.einsum("nchw->c", block)
        second = second + np.einsum("nchw,nchw->c", block, block)
    count = images.size / images.shape[1]
    mean, variance = first / count, second / count - (first / count) ** 2
    if not (variance > 1e-6).all():
        channel = int(np.argmin(variance))
        raise DataError(f"channel {channel} of the training images is constant ({mean[channel]:g}); nothing to learn")
    return torch.tensor(mean / 255, dtype=torch.float32), torch.tensor(variance**0.5 / 255, dtype=torch.float32)


def read_digits(options: ReadOptions) -> RawDataset:
    """Read scikit-learn's 1,797 handwritten digits (UCI, Alpaydin and Kaynak 1998), which come with the package.

    One pool of 8 x 8 greys; levels 0..16 are scaled to 0..255 and rounded.
    """
    try:
        data = read_regular(DIGITS, 1 << 20)
    except OSError as error:
        raise DataError(f"cannot read the digits ({DIGITS}: {error.strerror}); install quatsphere again") from error
    if sha256_bytes(data) != DIGITS_SHA256:
        raise DataError(f"the digits are damaged ({DIGITS}); install quatsphere again")
    with np.load(io.BytesIO(data), allow_pickle=False) as source:
        images, labels = np.rint(source["levels"] * (255 / 16)).astype(np.uint8)[:, None], source["labels"]
    unused = "--data.root is not used: digits are embedded; choose other images with --data.name"
    notes = () if options.root is None else (unused,)
    return RawDataset(tuple(map(str, range(10))), raw_split(images, labels.astype(np.int64)), None, notes)
