"""How much memory a training step takes, measured on one image and scaled."""

from __future__ import annotations

import torch
from torch import Tensor

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
