"""Data sets as uint8 tensors in memory, selected, checked and split by content.

`DATASETS` is the one list of data sets. To add one, add its name here and write its reader, a function
`read(options: ReadOptions) -> RawDataset`; from outside the package, call `register_dataset`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from quatsphere.errors import ConfigError

if TYPE_CHECKING:
    from quatsphere.data.cache import cache_root, download_folder
    from quatsphere.data.dataset import Dataset, Progress, RawDataset, RawSplit, ReadOptions, Split, raw_split
    from quatsphere.data.download import fetch
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

__all__ = [
    "DATASETS",
    "Dataset",
    "Progress",
    "RawDataset",
    "RawSplit",
    "ReadOptions",
    "Split",
    "cache_root",
    "download_folder",
    "fetch",
    "load_dataset",
    "raw_split",
    "register_dataset",
    "verify",
]

_MODULES = {
    "cache": ("cache_root", "download_folder"),
    "dataset": ("Dataset", "Progress", "RawDataset", "RawSplit", "ReadOptions", "Split", "raw_split"),
    "download": ("fetch",),
    "load": ("load_dataset", "verify"),
}


def register_dataset(name: str, reader: Reader) -> None:
    """Make `reader` the data set `name`, for `load_dataset(name)` and `DataConfig(name=name)`."""
    if name in DATASETS:
        raise ConfigError(f"data set {name!r} exists already; choose another name")
    DATASETS[name] = reader


def __getattr__(name: str) -> Any:
    """Import torch when it is first needed: the command line lists the data sets without it."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"quatsphere.data.{module}"), name)
    raise AttributeError(f"module 'quatsphere.data' has no attribute {name!r}")
