"""Evaluation of a model on a named split of the data."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from quatsphere.data import Dataset, Split
from quatsphere.data.augment import normalized_batches
from quatsphere.models.scoring import Evaluation, batch_logits

SplitName = Literal["train", "val", "test"]
MAX_PREDICTIONS = 10_000_000
"""Most predictions that a file may hold; a few bytes of zlib can stand for gigabytes."""


def predict_logits(
    model: nn.Module,
    dataset: Dataset,
    images: Tensor,
    *,
    batch_size: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> Float[Tensor, "n classes"]:
    """Logits of uint8 images, normalised as the data set's and not augmented; `progress(done, total)` per batch."""
    batches = normalized_batches(images, dataset.mean, dataset.std, batch_size, progress)
    return batch_logits(model, batches, len(dataset.classes))


def evaluate(
    model: nn.Module,
    dataset: Dataset,
    split: SplitName,
    *,
    batch_size: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Evaluate on a split by name: `val` selects checkpoints, `test` is read once, at the selected one."""
    part: Split = getattr(dataset, split)
    logits = predict_logits(model, dataset, part.images, batch_size=batch_size, progress=progress)
    return Evaluation(logits, part.labels, dataset.classes)


def pack_indices(indices: Int[Tensor, "n"]) -> str:
    """Class indices as text: little-endian uint16, zlib, base64 (about 6 kB for 10,000 images of ten classes)."""
    return base64.b64encode(zlib.compress(indices.numpy().astype("<u2").tobytes(), 9)).decode()


def unpack_indices(text: str) -> NDArray[np.uint16]:
    """Inverse of `pack_indices`; ValueError for any other text."""
    machine = zlib.decompressobj()
    try:
        data = machine.decompress(base64.b64decode(text, validate=True), 2 * MAX_PREDICTIONS)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not machine.eof or machine.unused_data:
        raise ValueError("predictions are cut off or too many")
    return np.frombuffer(data, "<u2")
