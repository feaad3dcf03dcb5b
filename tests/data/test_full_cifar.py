"""The whole of CIFAR-10 in every official container, from the images in QUATSPHERE_DATA (takes minutes)."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.data_files import write_tar

from quatsphere.data import Dataset, load_dataset, verify
from quatsphere.data.cifar_files import CIFAR10
from quatsphere.errors import DataError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cifar")


@pytest.fixture(scope="module")
def whole(data_folder: Path, folder: Path) -> Dataset:
    return load_dataset("cifar10", root=data_folder / "cifar10.zip", cache=folder)


@pytest.fixture(scope="module")
def rows(whole: Dataset) -> dict[str, np.ndarray]:
    """Batch files with the images in random order: name -> (10000, 3073)."""
    splits = [torch.cat([whole.train.images, whole.val.images]), whole.test.images]
    labels = [torch.cat([whole.train.labels, whole.val.labels]), whole.test.labels]
    generator = np.random.default_rng(1)
    tables = []
    for images, label in zip(splits, labels, strict=True):
        table = np.concatenate(
            [label.numpy()[:, None].astype(np.uint8), images.numpy().reshape(len(label), -1)], axis=1
        )
        tables += np.split(table[generator.permutation(len(table))], len(table) // 10_000)
    return {file.name: table for file, table in zip(CIFAR10.containers[1].files, tables, strict=True)}


def test_zip_is_canonical(whole: Dataset, data_folder: Path, folder: Path) -> None:
    assert whole.fingerprint == CIFAR10.fingerprint
    assert whole.notes == ("canonical CIFAR-10: every pixel equals the official files'",)
    for split, count in ((whole.train, 4500), (whole.val, 500), (whole.test, 1000)):
        assert torch.bincount(split.labels).tolist() == [count] * 10
    start = time.monotonic()
    report = verify("cifar10", root=data_folder, cache=folder)
    assert time.monotonic() - start < 10, "the second time it comes from the cache"
    assert report["canonical"] is True
    assert report["channel_means"] == pytest.approx([125.306918, 122.950394, 113.865383], abs=1e-6)
    assert (report["repeated_in_train"], report["repeated_in_test"], report["test_also_in_train"]) == (0, 0, 0)


def test_binary_and_python_archives_are_the_same_set(whole: Dataset, rows: dict[str, np.ndarray], folder: Path) -> None:
    binary = {f"cifar-10-batches-bin/{name}.bin": table.tobytes() for name, table in rows.items()}
    python = {
        f"cifar-10-batches-py/{name}": pickle.dumps({"data": table[:, 1:].copy(), "labels": table[:, 0].tolist()}, 2)
        for name, table in rows.items()
    }
    for name, members in (("cifar-10-binary.tar.gz", binary), ("cifar-10-python.tar.gz", python)):
        data = load_dataset("cifar10", root=write_tar(folder / name, members))
        assert data.fingerprint == whole.fingerprint
        assert torch.equal(data.train.images, whole.train.images)
        assert torch.equal(data.val.labels, whole.val.labels)
        assert data.notes == whole.notes
        (folder / name).unlink()


def test_one_flipped_bit_is_noticed(rows: dict[str, np.ndarray], folder: Path) -> None:
    flipped = folder / "flipped"
    flipped.mkdir()
    for index, (name, table) in enumerate(rows.items()):
        data = bytearray(table.tobytes())
        data[12_345] ^= 1 if index == 2 else 0
        (flipped / f"{name}.bin").write_bytes(data)
    with pytest.raises(DataError, match="sha256 differs from the official"):
        load_dataset("cifar10", root=flipped)


def test_part_of_cifar100(data_folder: Path, folder: Path) -> None:
    data = load_dataset("cifar100", root=data_folder / "cifar100-part.zip", cache=folder)
    assert [len(split) for split in (data.train, data.val, data.test)] == [9000, 1000, 2000]
    assert any("only a PART of CIFAR-100" in note for note in data.notes)
    as_folder = load_dataset("folder", root=data_folder / "cifar100-part.zip", cache=folder)
    assert as_folder.fingerprint == data.fingerprint
