"""Small data sets in every container, from real CIFAR-10 images; caches are written to temporary folders."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quatsphere.data import cifar_files, decode
from quatsphere.data.cifar_files import CIFAR10, Cifar

PER_BATCH = 20
"""Rows of a small batch file: two of each class."""

Rows = tuple[np.ndarray, np.ndarray]


@pytest.fixture(autouse=True)
def _temporary_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg cache"))


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode in this process, for tests of something else: saves starting subprocesses."""

    def run_here(blobs: list[bytes], size: int, fit: str, timeout: float) -> tuple[list[decode.Decoded | str], str]:
        return [decode.decode_or_reason(data, size, fit) for data in blobs], ""

    monkeypatch.setattr(decode, "run_decoder", run_here)


@pytest.fixture(scope="session")
def real_files(data_folder: Path) -> dict[str, bytes]:
    """10 training and 2 test images of each CIFAR-10 class: `train/cat/x.webp` -> bytes."""
    with zipfile.ZipFile(data_folder / "cifar10.zip") as archive:
        names = archive.namelist()
        chosen = [
            name
            for split, count in (("train", 10), ("test", 2))
            for label in CIFAR10.classes
            for name in [n for n in names if n.startswith(f"{split}/{label}/")][:count]
        ]
        return {name: archive.read(name) for name in chosen}


@pytest.fixture(scope="session")
def batches(real_files: dict[str, bytes]) -> list[Rows]:
    """The same images as six batches of (pixels (20, 3072), labels (20,)), the last one for testing."""
    files: list[list[tuple[np.ndarray, int]]] = [[] for _ in range(6)]
    seen = dict.fromkeys(CIFAR10.classes, 0)
    for name, data in real_files.items():
        split, label, _ = name.split("/")
        pixels = np.asarray(Image.open(io.BytesIO(data))).transpose(2, 0, 1).reshape(-1)
        files[5 if split == "test" else seen[label] % 5].append((pixels, CIFAR10.classes.index(label)))
        seen[label] += 1
    return [(np.stack([row for row, _ in file]), np.array([label for _, label in file])) for file in files]


@pytest.fixture
def small_cifar10(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, bytes]], Cifar]:
    """`small_cifar10(files)` declares these files official, with their hashes and 20 rows each."""

    def install(files: dict[str, bytes]) -> Cifar:
        containers = tuple(
            replace(
                container,
                files=tuple(
                    replace(
                        file,
                        rows=PER_BATCH,
                        size=len(files.get(file.name, b"")) or PER_BATCH * 3073,
                        sha256=hashlib.sha256(files.get(file.name, b"")).hexdigest(),
                    )
                    for file in container.files
                ),
            )
            for container in CIFAR10.containers
        )
        small = replace(CIFAR10, containers=containers, fingerprint=None)
        monkeypatch.setitem(cifar_files.CIFARS, "cifar10", small)
        return small

    return install
