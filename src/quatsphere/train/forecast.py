"""Memory and time of a run, estimated before it starts."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from quatsphere.runtime import working_time
from quatsphere.train.resources import estimate_bytes
from quatsphere.train.step import OptimisationStep

if TYPE_CHECKING:
    from quatsphere.train.trainer import Trainer

TIMED_STEPS = 2
"""Steps that are timed; one before them compiles kernels and is not counted."""
VALIDATION = 1 / 3
"""Cost of a validation image relative to a training image: a forward pass without its gradient."""
PIXEL_SAMPLES = 25
"""Points that a vertex samples of the image."""


def estimate_run(trainer: Trainer) -> dict[str, Any]:
    """`bytes` of a step, `seconds` of the run (all epochs with validation), `samples` and `pixels` of an image.

    A copy of the model takes three steps on the first batch; the trainer and torch's generators are left as they are.
    """
    config, dataset = trainer.config, trainer.dataset
    model: Any = config.model
    images = trainer.dataset.train.images
    share = len(dataset.val) / max(1, len(dataset.train))
    return {
        "bytes": estimate_bytes(trainer.model, config.train.batch_size),
        "seconds": _step_seconds(trainer) * trainer.total_steps * (1 + VALIDATION * share),
        "epochs": config.train.epochs,
        "side": images.shape[-1],
        "samples": PIXEL_SAMPLES * getattr(model, "base_vertices", 0),
        "vertices": getattr(model, "base_vertices", 0),
        "shells": getattr(model, "shells", 0),
        "pixels": images.shape[-1] * images.shape[-2],
    }


def _step_seconds(trainer: Trainer) -> float:
    """Mean time of a step, augmentation included."""
    config, device = trainer.config, trainer.context.device
    with torch.random.fork_rng(devices=[]):
        step = OptimisationStep(
            copy.deepcopy(trainer.model).train(), config.train, config.optim, trainer.total_steps, device=device
        )
        times = []
        for number in range(1 + TIMED_STEPS):
            start = working_time()
            step(trainer.batches.batch(0, 0, device), config.train.batch_size, number)
            times.append(working_time() - start)
    return sum(times[1:]) / TIMED_STEPS
