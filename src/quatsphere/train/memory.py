"""How much memory a training step takes, measured on one image and scaled, and what is said if it is too much."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from quatsphere.errors import ResourceError
from quatsphere.models import Model


def estimate_bytes(model: Model, batch: int) -> int:
    """Parameters with gradients and moments, plus what the backward pass of `batch` images keeps.

    Saved tensors are counted on one real forward pass with torch's own hooks; temporaries come on top.
    """
    config = model.config
    device = next(model.parameters()).device
    shape = (1, config.in_channels, config.image_size, config.image_size)
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.zeros(shape, device=device))
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    activations = sum(size for pointer, size in saved.items() if pointer not in own)
    return 4 * weights + batch * activations


@contextmanager
def memory_errors(model: Model, batch: int) -> Iterator[None]:
    """Turn "out of memory", in whichever words it comes, into one line with the batch size and the estimate."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        words = str(error).lower()
        if not isinstance(error, MemoryError) and not any(w in words for w in ("memory", "bad_alloc")):
            raise
        raise ResourceError(
            f"out of memory at batch size {batch}{_estimate_text(model, batch)}; the last checkpoint is intact: "
            "use a smaller --train.batch_size in another run, or more memory"
        ) from error


def _estimate_text(model: Model, batch: int) -> str:
    try:
        return f" (a step takes about {estimate_bytes(model, batch) / 2**30:.2f} GiB)"
    except (MemoryError, RuntimeError):
        return ""
