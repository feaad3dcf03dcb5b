"""Before the first step: threads, device, data, and every check that needs no file to be written."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable

import torch

from quatsphere.config import DataConfig, RunConfig, TrainConfig
from quatsphere.data import Dataset, load_dataset
from quatsphere.errors import ConfigError
from quatsphere.train.event_log import writer_class
from quatsphere.train.parallel import Team


def prepare_torch(config: TrainConfig) -> None:
    """Threads and determinism, before any tensor is made."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(config.deterministic)


def pick_device(name: str, team: Team) -> torch.device:
    """The named device, or the best there is; each process of a team takes its own GPU."""
    if name != "auto":
        try:
            device = torch.device(name)
            torch.zeros(1, device=device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(
                f"train.device {name!r} cannot be used ({str(error).splitlines()[0][:80]}); use auto or cpu"
            ) from error
        return device
    if torch.cuda.is_available():
        return torch.device("cuda", team.local_rank)
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def precision_warning(precision: str, device: torch.device) -> str | None:
    """One line if lower precision is slower than fp32 here: processors without instructions for it emulate them."""
    if precision == "fp32" or device.type != "cpu":
        return None
    ratio = _product_seconds(torch.bfloat16 if precision == "bf16" else torch.float16) / _product_seconds(torch.float32)
    if ratio < 2:
        return None
    return (
        f"train.precision {precision} is slow on this processor: a product takes {ratio:.0f} times as long as in fp32; "
        "use --train.precision fp32"
    )


def _product_seconds(dtype: torch.dtype) -> float:
    """The shortest of five times for a product of matrices."""
    matrix, seconds = torch.ones(256, 256, dtype=dtype), []
    for _ in range(5):
        start = time.perf_counter()
        torch.mm(matrix, matrix)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def load_data(
    config: DataConfig, note: Callable[[str], None], progress: Callable[[int, int], None] | None = None
) -> Dataset:
    """The data set of a configuration; whatever must be known about this copy is said."""
    dataset = load_dataset(
        config.name,
        root=config.root,
        val_fraction=config.val_fraction,
        test_fraction=config.test_fraction,
        train_limit=config.train_limit,
        image_size=config.image_size,
        fit=config.fit,
        skip_bad=config.skip_bad,
        progress=progress,
    )
    for message in dataset.notes:
        note(message)
    return dataset


def fit_to_data(config: RunConfig, dataset: Dataset) -> RunConfig:
    """Image size, channels and classes of the model are the data's."""
    _, channels, size, _ = dataset.train.images.shape
    model = dataclasses.replace(config.model, image_size=size, in_channels=channels, num_classes=len(dataset.classes))
    return dataclasses.replace(config, model=model)


def require_trainable(config: TrainConfig, dataset: Dataset) -> None:
    """What settings and data must not do to each other."""
    count = len(dataset.train.labels)
    if config.batch_size > count:
        raise ConfigError(
            f"train.batch_size must not exceed the {count} training images: "
            f"got {config.batch_size}; nearest legal value {count}"
        )
    if not len(dataset.test.labels):
        raise ConfigError("no test images are left (data.test_fraction 0); hold out a share > 0")
    if config.tensorboard:
        writer_class()
