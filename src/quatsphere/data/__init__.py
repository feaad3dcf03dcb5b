"""Data sets as uint8 tensors in memory, selected, checked and split by content.

`DATASETS` is the one list of data sets: to add one, enter its name here and write its reader. From outside the package,
register a reader:

    @register_dataset("stripes")
    def read_stripes(options: ReadOptions) -> RawDataset:
        images, labels = ...                          # uint8 (N, C, H, W), int (N,)
        return RawDataset(("horizontal", "vertical"), train=raw_split(images, labels), test=None)

Then `load_dataset("stripes")` and `DataConfig(name="stripes")` are valid.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from quatsphere.errors import ConfigError

if TYPE_CHECKING:
    from quatsphere.data.cache import download_folder
    from quatsphere.data.dataset import Dataset, RawDataset, ReadOptions, Split, raw_split
    from quatsphere.data.download import download_dataset
    from quatsphere.data.load import load_dataset, verify

Reader = Callable[[Any], Any]
"""`read(options: ReadOptions) -> RawDataset`."""

DATASETS: dict[str, str | Reader] = {
    "digits": "quatsphere.data.load:read_digits",
    "cifar10": "quatsphere.data.cifar:read_cifar10",
    "cifar100": "quatsphere.data.cifar:read_cifar100",
    "folder": "quatsphere.data.image_folder:read_image_folder",
    "idx": "quatsphere.data.idx:read_idx_files",
}
"""name -> reader, or `module:function` of a reader that is imported when needed."""
FIT_MODES = ("crop", "squash")
"""Treatments of images that are not square."""
PYTHON_DATA = "python"
"""Name of data that was passed to `train`; it cannot be loaded by name."""

__all__ = [
    "DATASETS",
    "Dataset",
    "RawDataset",
    "ReadOptions",
    "Split",
    "download_dataset",
    "download_folder",
    "load_dataset",
    "raw_split",
    "register_dataset",
    "verify",
]

_MODULES = {
    "cache": ("download_folder",),
    "dataset": ("Dataset", "RawDataset", "ReadOptions", "Split", "raw_split"),
    "download": ("download_dataset",),
    "load": ("load_dataset", "verify"),
}
"""Modules that are imported when one of these names is first used, because they import torch."""


def register_dataset(name: str) -> Callable[[Reader], Reader]:
    """Register a function (ReadOptions) -> RawDataset as a data set."""
    if isinstance(DATASETS.get(name), str):
        raise ConfigError(f"data set {name!r} is built in; register yours under another name")

    def register(reader: Reader) -> Reader:
        DATASETS[name] = reader  # a second registration, as when a notebook cell runs again, replaces the first
        return reader

    return register


def shape_bytes(shape: tuple[int, ...]) -> bytes:
    """Encode (C, H, W) for the digest of an image."""
    return (",".join(map(str, shape)) + ";").encode()


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"quatsphere.data.{module}"), name)
    raise AttributeError(f"module 'quatsphere.data' has no attribute {name!r}")
