"""Shared fixtures; one thread per test process and per process that a test starts."""

from __future__ import annotations

import gc
import io
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for started processes: threads wait in loops, which cost
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # processor time; before torch and NumPy, which read them once

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.failpoints import enable_failpoints
from helpers.shape_checks import without_shape_checks
from hypothesis import settings
from PIL import Image
from torch import Tensor

from quatsphere.config import checks

settings.register_profile("quatsphere", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("quatsphere")
enable_failpoints()
torch.set_num_threads(1)  # two test processes are faster than two threads in one

LONGEST = (
    "models/test_compile.py",
    "kernels/test_gpu.py",
    "train/test_accelerator.py",
    "kernels/test_gpu_compiled.py",
    "report/test_live_browser.py",
    "report/test_view_browser.py",
    "report/test_report_browser.py",
    "test_core_install.py",
    "test_examples.py",
    "test_documentation.py",
)
"""Modules that take longest and use few compiled kernels. They run first: the first process works on them while the
second one compiles the kernels, and the many short tests fill the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest modules first; the rest keeps its order."""
    folder = Path(__file__).parent
    rank = {folder / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


def pytest_collection_finish() -> None:
    """Exempt what is imported by now from garbage collection, which would visit every object of torch each time."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _forget_added_choices() -> Iterator[None]:
    """Unregister the rules of a test after it."""
    before = {kind: list(choices) for kind, choices in checks._ADDED.items()}
    yield
    checks._ADDED.clear()
    checks._ADDED.update(before)


@pytest.fixture(scope="module")
def unchecked() -> Iterator[None]:
    """Disable the check of shapes for the tests of a module."""
    with without_shape_checks():
        yield


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Folder of the data sets, from QUATSPHERE_DATA."""
    folder = os.environ.get("QUATSPHERE_DATA")
    if not folder or not (Path(folder) / "cifar10.zip").is_file():
        pytest.skip("QUATSPHERE_DATA does not point to a folder with cifar10.zip")
    return Path(folder)


@pytest.fixture(scope="session")
def cifar_images(data_folder: Path) -> tuple[Tensor, Tensor]:
    """64 CIFAR-10 images (64, 3, 32, 32) in [0, 1] and their labels, classes in turn."""
    images, labels = [], []
    with zipfile.ZipFile(data_folder / "cifar10.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.startswith("train/") and name.endswith(".webp"))
        classes = sorted({name.split("/")[1] for name in names})
        by_class = [[name for name in names if name.split("/")[1] == label][:7] for label in classes]
        for member, label in [(by_class[i % 10][i // 10], i % 10) for i in range(64)]:
            pixels = np.asarray(Image.open(io.BytesIO(archive.read(member))).convert("RGB"))
            images.append(torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255)
            labels.append(label)
    return torch.stack(images), torch.tensor(labels)
