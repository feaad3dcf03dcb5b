"""Images of any kind as a trained model expects them, and the predicted classes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from quatsphere.config import ModelConfig, RunConfig
from quatsphere.data.decode import TooLarge, decode, fit_image, to_grey, to_rgb
from quatsphere.data.in_memory import check_levels, image_levels
from quatsphere.errors import DataError, printable
from quatsphere.storage.atomic import read_regular

LARGEST_FILE = 1 << 30
MAX_PRINTED = 20
"""Number of images that the text of predictions lists."""

ImageLike: TypeAlias = "str | os.PathLike[str] | Image.Image | NDArray[Any] | Tensor"
"""Path of an image file, PIL image, array (H, W) or (H, W, C), or tensor (H, W) or (C, H, W); C is 1, 3 or 4.

Arrays and tensors have integer levels 0 to 255 or floating-point levels in [0, 1].
"""


def split_images(images: ImageLike | Sequence[ImageLike]) -> tuple[list[str], list[ImageLike]]:
    """Names and images of a single image, of a list of images, or of an array or tensor with a batch axis."""
    if isinstance(images, np.ndarray | Tensor) and images.ndim == 4:
        images = list(images)
    if isinstance(images, str | os.PathLike | Image.Image | np.ndarray | Tensor):
        images = [images]
    if not isinstance(images, list | tuple):
        raise DataError(
            f"cannot read images from type {type(images).__name__}; give paths, PIL images, arrays or tensors"
        )
    is_path = [isinstance(image, str | os.PathLike) for image in images]
    names = [os.fspath(x) if path else f"image {i}" for i, (x, path) in enumerate(zip(images, is_path, strict=True))]
    return [str(name) for name in names], list(images)


def image_pixels(image: ImageLike, config: RunConfig, name: str = "image") -> UInt8[Tensor, "c size size"]:
    """Pixels of an image with the size and channels of a run's model, fitted as its training images were.

    Floating-point levels are rounded to 8 bits, like all images in training.
    """
    size, fit = config.model.image_size, config.data.fit
    if isinstance(image, str | os.PathLike):
        pixels = read_image_file(Path(image), size, fit)
    elif isinstance(image, Image.Image | np.ndarray | Tensor):
        pixels = _fit_levels(image_levels(image, name), name, size, fit)
    else:
        kind = type(image).__name__
        raise DataError(f"cannot read {name} of type {kind}; give a path, PIL image, array or tensor")
    if config.model.in_channels == 1:
        return torch.from_numpy(to_grey(pixels.numpy()))
    return pixels


def normalize_levels(
    images: Tensor, model: ModelConfig, mean: Sequence[float], std: Sequence[float]
) -> Float[Tensor, "b c size size"]:
    """(level - mean) / std of a batch of integer levels 0 to 255 or floating-point levels in [0, 1].

    DataError for another shape, and for levels that are normalised already, reach 255 as floating-point numbers, or
    are so low that they were divided by 255 once too often.
    """
    shape = (model.in_channels, model.image_size, model.image_size)
    if images.ndim != 4 or tuple(images.shape[1:]) != shape:
        raise DataError(
            f"cannot read images of shape {tuple(images.shape)}: the model takes (B, {', '.join(map(str, shape))}); "
            "predict() fits images of any size"
        )
    if len(images):
        lowest, highest = (float(level) for level in images.detach().aminmax())
        check_levels(lowest, highest, "images", integer=not images.is_floating_point())
    levels = images if images.is_floating_point() else images.float() / 255
    centre, spread = (torch.tensor(v, dtype=levels.dtype, device=levels.device)[:, None, None] for v in (mean, std))
    return (levels - centre) / spread


def read_image_file(path: Path, size: int, fit: str) -> UInt8[Tensor, "3 size size"]:
    """RGB pixels of a PNG, JPEG or WebP file, fitted to the size by `crop` or `squash`."""
    try:
        return torch.as_tensor(decode(read_regular(path, LARGEST_FILE), size, fit).pixels)
    except (OSError, ValueError) as error:  # BadImage is a ValueError, and so is a name with a NUL
        reason = error.strerror if isinstance(error, OSError) else str(error)
        cure = "resize it" if isinstance(error, TooLarge) else "give a PNG, JPEG or WebP file"
        raise DataError(f"cannot read {printable(str(path))} ({reason}); {cure}") from error


def _fit_levels(levels: NDArray[np.uint8], name: str, size: int, fit: str) -> UInt8[Tensor, "3 size size"]:
    """RGB pixels of levels (H, W, C), fitted to the size; DataError for another number of channels."""
    if levels.shape[2] not in (1, 3, 4):
        raise DataError(
            f"cannot read {name}: shape {levels.shape} is not (H, W) or (H, W, C) with C = 1, 3 or 4; "
            "arrays have channels last, tensors channels first"
        )
    image = Image.fromarray(levels[:, :, 0] if levels.shape[2] == 1 else levels)
    pixels = np.asarray(fit_image(to_rgb(image), size, fit)).transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(pixels))


@dataclass(frozen=True, repr=False)
class Predictions:
    """Class probabilities of images; iterating gives one dict class -> probability per image, likeliest first."""

    names: tuple[str, ...]
    """File names, or `image 0`, `image 1`, ..."""
    classes: tuple[str, ...]
    probabilities: Float[Tensor, "n classes"]

    @property
    def labels(self) -> list[str]:
        """Likeliest class of each image."""
        return [self.classes[index] for index in self.probabilities.argmax(1).tolist()]

    def top(self, k: int = 3) -> list[dict[str, float]]:
        """The `k` likeliest classes of each image with their probabilities, likeliest first."""
        best = self.probabilities.topk(min(k, len(self.classes)))
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [{self.classes[i]: p for i, p in zip(indices, values, strict=True)} for indices, values in rows]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> dict[str, float]:
        return self.top(len(self.classes))[index]

    def __iter__(self) -> Iterator[dict[str, float]]:
        return iter(self.top(len(self.classes)))

    def __repr__(self) -> str:
        rows = islice(zip(self.names, self.top(), strict=True), MAX_PRINTED)
        lines = [
            f"{printable(name)}  {'  '.join(f'{label} {p:.3f}' for label, p in top.items())}" for name, top in rows
        ]
        more = len(self) - len(lines)
        return "\n".join(lines + [f"... and {more:,} more"] * bool(more))
