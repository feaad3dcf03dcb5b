"""Images in memory: arrays, tensors and PIL images as 8-bit pixels, and torch Datasets of (image, label) as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from quatsphere.config import DataConfig
from quatsphere.data import PYTHON_DATA
from quatsphere.data.dataset import Dataset, RawDataset, RawSplit, raw_split
from quatsphere.data.decode import fit_image, to_rgb
from quatsphere.data.load import checked_dataset, prepare_dataset
from quatsphere.errors import DataError


def check_levels(lowest: float, highest: float, name: str, *, integer: bool) -> None:
    """Raise DataError unless levels are integers up to 255, or floats in [0, 1], and not all nearly black."""
    top = 255 if integer else 1
    if not (lowest >= 0 and highest <= top):  # also false for NaN
        raise DataError(
            f"cannot read {name}: levels {lowest:g} to {highest:g} are not within [0, {top}]; "
            "integer levels go to 255, floating-point levels to 1, without normalisation"
        )
    if 0 < highest <= top / 255:
        raise DataError(
            f"cannot read {name}: no level exceeds {highest:g} of {top}, which is black; "
            "integer levels go to 255, floating-point levels to 1"
        )


def levels_of(array: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Levels 0 to 255 of an array of integers up to 255 or of floating-point numbers in [0, 1], rounded."""
    integer = np.issubdtype(array.dtype, np.integer)
    if not integer and not np.issubdtype(array.dtype, np.floating):
        raise DataError(f"cannot read {name}: type {array.dtype} is neither integer nor floating-point")
    check_levels(float(array.min()), float(array.max()), name, integer=integer)
    levels = array if integer else np.rint(array.astype(np.float64) * 255)
    return np.ascontiguousarray(levels.astype(np.uint8))


# A torch Dataset.


def dataset_from(data: Any, config: DataConfig) -> Dataset:
    """Data set of a torch Dataset of (image, label), of a pair (training, test), or the `Dataset` itself.

    An image is a tensor (C, H, W), an array (H, W) or (H, W, C) or a PIL image, with levels 0 to 255 or in [0, 1],
    before augmentation and normalisation; a label is a whole number from 0. `classes` of the Dataset, if it has them,
    are the names. Without a test set one is held out by content, as for folders.
    """
    if isinstance(data, Dataset):
        return data
    parts = data if isinstance(data, tuple) else (data,)
    if not 1 <= len(parts) <= 2:
        raise DataError(f"data must be one Dataset or a pair (training, test): got {len(parts)}")
    titles = ("training data", "test data")
    splits = [_read_split(part, config, title) for part, title in zip(parts, titles, strict=False)]
    if len({split.images.shape[1:] for split in splits}) > 1:
        shapes = " and ".join(str(tuple(split.images.shape[1:])) for split in splits)
        raise DataError(f"training and test images have shapes {shapes}; set data.image_size and data.channels")
    classes = _class_names(parts[0], splits)
    raw = checked_dataset(RawDataset(classes, splits[0], splits[1] if len(splits) == 2 else None))
    splitting = (config.val_fraction, config.test_fraction, config.max_train_images)
    return prepare_dataset(PYTHON_DATA, raw, splitting, config.image_size, config.channels, config.fit)


def _read_split(part: Any, config: DataConfig, title: str) -> RawSplit:
    if not hasattr(part, "__len__") or not hasattr(part, "__getitem__"):
        kind = type(part).__name__
        raise DataError(f"{title} of type {kind} has no length and items; give a torch Dataset of (image, label)")
    if not len(part):
        raise DataError(f"{title} is empty; give (image, label) pairs")
    images: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    for index in range(len(part)):
        name = f"image {index} of the {title}"
        image, label = _pair(part[index], name)
        pixels = pixels_of(image, name, config.image_size, config.fit)
        if images and pixels.shape != images[0].shape:
            raise DataError(
                f"{name} has shape {pixels.shape}, the first {images[0].shape}; resize all with data.image_size"
            )
        images.append(pixels)
        labels.append(label)
    return raw_split(np.stack(images), np.array(labels, np.int64))


def _pair(item: Any, name: str) -> tuple[Any, int]:
    """Image and label of an item."""
    if not isinstance(item, Sequence) or len(item) != 2:
        raise DataError(f"{name}: an item must be a pair (image, label), got {type(item).__name__}")
    image, label = item
    try:
        number = int(label)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: the label {label!r:.40} is not a whole number") from error
    if number != label or number < 0:
        raise DataError(f"{name}: the label {label!r:.40} is not a whole number from 0")
    return image, number


def image_levels(image: Any, name: str) -> NDArray[np.uint8]:
    """Levels (H, W, C) of a PIL image, grey or RGB, of an array (H, W) or (H, W, C) or of a tensor (C, H, W)."""
    if isinstance(image, Image.Image):
        image = ImageOps.exif_transpose(image)
        grey = image.mode in ("1", "L") and "transparency" not in image.info
        array = np.asarray(image.convert("L") if grey else to_rgb(image))
    elif isinstance(image, Tensor):
        array = image.detach().cpu().numpy()
        array = array.transpose(1, 2, 0) if array.ndim == 3 else array
    elif isinstance(image, np.ndarray):
        array = image
    else:
        raise DataError(f"cannot read {name} of type {type(image).__name__}; give a tensor, array or PIL image")
    array = array[:, :, None] if array.ndim == 2 else array
    if array.ndim != 3 or not array.size:
        raise DataError(
            f"cannot read {name}: shape {tuple(array.shape)} is not (H, W) or (H, W, C) with pixels; "
            "arrays have channels last, tensors channels first"
        )
    return levels_of(array, name)


def pixels_of(image: Any, name: str, size: int | None, fit: str) -> NDArray[np.uint8]:
    """Levels (C, H, W) of a square image in memory; images of 1, 3 or 4 (made RGB) channels are resized."""
    levels = image_levels(image, name)
    side = size or min(levels.shape[:2])
    if levels.shape[:2] != (side, side):
        levels = _fitted(levels, name, side, fit)
    return np.ascontiguousarray(levels.transpose(2, 0, 1))


def _fitted(levels: NDArray[np.uint8], name: str, side: int, fit: str) -> NDArray[np.uint8]:
    channels = levels.shape[2]
    if channels not in (1, 3, 4):
        raise DataError(f"cannot resize {name} of {channels} channels; give square images of one size")
    image = Image.fromarray(levels[:, :, 0] if channels == 1 else levels)
    fitted = np.asarray(fit_image(to_rgb(image) if channels == 4 else image, side, fit))
    return fitted[:, :, None] if fitted.ndim == 2 else fitted


def _class_names(part: Any, splits: list[RawSplit]) -> tuple[str, ...]:
    """Names of the classes: those of the Dataset, or the numbers of the labels."""
    count = 1 + max(int(split.labels.max()) for split in splits)
    names = getattr(part, "classes", None)
    if names is None:
        return tuple(map(str, range(count)))
    names = tuple(map(str, names))
    if len(names) < count or len(set(names)) < len(names):
        raise DataError(f"the Dataset has {len(set(names))} different class names for labels up to {count - 1}")
    return names
