"""What a model gets right on a split of the data, called by its name."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from quatsphere.data import Dataset, Split
from quatsphere.data.augment import normalize
from quatsphere.models.scoring import Evaluation

SplitName = Literal["train", "val", "test"]


@torch.no_grad()
def predict_logits(
    model: nn.Module,
    dataset: Dataset,
    images: Tensor,
    *,
    batch_size: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> Float[Tensor, "n classes"]:
    """Logits of uint8 images, without augmentation, in evaluation mode (the mode is put back afterwards)."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    logits = [torch.empty(0, len(dataset.classes))]
    for start in range(0, len(images), batch_size):
        part = normalize(images[start : start + batch_size], dataset.mean, dataset.std)
        logits.append(model(part.to(device)).float().cpu())
        if progress is not None:
            progress(min(start + batch_size, len(images)), len(images))
    model.train(was_training)
    return torch.cat(logits)


def evaluate(
    model: nn.Module,
    dataset: Dataset,
    split: SplitName,
    *,
    batch_size: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Evaluate on a split called by its name: `val` selects, `test` is read once at the chosen checkpoint."""
    part: Split = getattr(dataset, split)
    logits = predict_logits(model, dataset, part.images, batch_size=batch_size, progress=progress)
    return Evaluation(logits, part.labels, dataset.classes)


def pack_indices(indices: Int[Tensor, "n"]) -> str:
    """Class indices as text: little-endian uint16, zlib, base64 (about 6 kB for 10,000 images of ten classes)."""
    return base64.b64encode(zlib.compress(indices.numpy().astype("<u2").tobytes(), 9)).decode()


def unpack_indices(text: str) -> NDArray[np.uint16]:
    """The inverse of `pack_indices`; ValueError for text that it did not make."""
    try:
        return np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), "<u2")
    except zlib.error as error:
        raise ValueError(str(error)) from error
