"""`load_dataset` with the embedded digits, its errors, and registered data sets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from quatsphere.data import (
    DATASETS,
    Dataset,
    RawDataset,
    ReadOptions,
    load_dataset,
    raw_split,
    register_dataset,
    verify,
)
from quatsphere.data.load import DIGITS
from quatsphere.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


def rows(images: Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


def test_digits_are_the_real_ones(digits: Dataset) -> None:
    sizes = [len(split) for split in (digits.train, digits.val, digits.test)]
    assert sum(sizes) == 1797
    assert abs(sizes[2] - 0.2 * 1797) < 10
    assert abs(sizes[1] - 0.08 * 1797) < 10
    assert digits.train.images.shape[1:] == (1, 8, 8)
    assert digits.train.images.dtype == torch.uint8
    assert digits.train.labels.dtype == torch.int64
    assert digits.classes == tuple("0123456789")
    assert set(digits.train.images.unique().tolist()) == {round(255 * level / 16) for level in range(17)}
    assert not rows(digits.train.images) & rows(digits.val.images)


def test_test_split_is_stratified(digits: Dataset) -> None:
    share = torch.bincount(digits.test.labels) / torch.bincount(
        torch.cat([digits.train.labels, digits.val.labels, digits.test.labels])
    )
    assert share.min() > 0.19
    assert share.max() < 0.21


def test_statistics_are_of_the_training_split(digits: Dataset) -> None:
    scaled = digits.train.images.double() / 255
    torch.testing.assert_close(digits.mean.double(), scaled.mean((0, 2, 3)), rtol=1e-6, atol=0)
    torch.testing.assert_close(digits.std.double(), scaled.std((0, 2, 3), correction=0), rtol=1e-6, atol=0)


def test_fingerprint_ignores_settings_but_order_is_canonical(digits: Dataset) -> None:
    limited = load_dataset("digits", max_train_images=100, val_fraction=0.2, image_size=16)
    assert limited.fingerprint == digits.fingerprint
    assert limited.train.images.shape == (100, 1, 16, 16)
    assert torch.equal(torch.bincount(limited.train.labels), torch.full((10,), 10))
    assert torch.equal(digits.train.labels, digits.train.labels.sort().values)


def test_fingerprint_is_stable(digits: Dataset) -> None:
    """Checkpoints store it: a changed definition would invalidate all of them."""
    assert digits.fingerprint == "f42d98a7071c09194a5fcabd6cd1e0af0fe7911d2e2054e8b08c5a2b4e32841b"


def test_limited_training_images_are_a_subset(digits: Dataset) -> None:
    limited = load_dataset("digits", max_train_images=50)
    assert rows(limited.train.images) < rows(digits.train.images)
    assert torch.equal(limited.test.images, digits.test.images)
    assert torch.equal(limited.val.images, digits.val.images)


def test_digits_equal_those_of_scikit_learn() -> None:
    source = pytest.importorskip("sklearn.datasets").load_digits()
    with np.load(DIGITS, allow_pickle=False) as shipped:
        assert np.array_equal(shipped["levels"], source.images)
        assert np.array_equal(shipped["labels"], source.target)


def test_digits_need_no_scikit_learn(monkeypatch: pytest.MonkeyPatch, digits: Dataset) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert load_dataset("digits").fingerprint == digits.fingerprint


@pytest.mark.parametrize("content", [None, b"", b"PK"])
def test_damaged_digits(content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "digits.npz"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr("quatsphere.data.load.DIGITS", path)
    with pytest.raises(DataError, match=r"digits .*; install quatsphere again$"):
        load_dataset("digits")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "cifar"}, "did you mean 'cifar10'"),
        ({"name": "xyz"}, "choose from digits"),
        ({"val_fraction": 1.0}, r"val_fraction must lie in \[0, 1\)"),
        ({"test_fraction": float("nan")}, "test_fraction must lie"),
        ({"max_train_images": 3}, "nearest legal value 10"),
        ({"max_train_images": 0}, "max_train_images must be >= 1"),
        ({"image_size": 0}, "image_size must be >= 1"),
        ({"skip_bad": -1}, "skip_bad must be >= 0"),
    ],
)
def test_invalid_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_dataset(**{"name": "digits", **settings})


def test_constant_images_are_refused(tmp_path: Path) -> None:
    for kind in "ab":
        (tmp_path / kind).mkdir()
        for i in range(3):
            Image.fromarray(np.zeros((2 + i, 2 + i, 3), np.uint8)).save(tmp_path / kind / f"{i}.png")
    with pytest.raises(DataError, match="channel 0 of the training images is constant"):
        load_dataset("folder", root=tmp_path)


def test_verify() -> None:
    report = verify("digits")
    assert report["train"] == 1797
    assert report["test"] == 0
    assert report["canonical"] is None
    assert report["shape"] == [1, 8, 8]
    assert len(report["fingerprint"]) == 64
    assert len(report["channel_means"]) == 1


def read_stripes(options: ReadOptions) -> RawDataset:
    """Horizontal and vertical stripes, a data set defined outside the package."""
    horizontal = np.random.default_rng(0).integers(0, 256, (40, 1, 6, 1), np.uint8).repeat(6, axis=3)
    images = np.concatenate([horizontal, horizontal.transpose(0, 1, 3, 2)])
    return RawDataset(("horizontal", "vertical"), raw_split(images, np.repeat([0, 1], 40)), None)


@pytest.fixture
def stripes() -> Iterator[str]:
    register_dataset("stripes")(read_stripes)
    yield "stripes"
    del DATASETS["stripes"]


def test_registered_data_set(stripes: str) -> None:
    data = load_dataset(stripes, image_size=8)
    assert data.train.images.shape[1:] == (1, 8, 8)
    assert sum(len(split) for split in (data.train, data.val, data.test)) == 80
    assert verify(stripes)["classes"] == ["horizontal", "vertical"]


def test_built_in_data_sets_cannot_be_replaced() -> None:
    with pytest.raises(ConfigError, match="data set 'digits' is built in"):
        register_dataset("digits")


def test_registered_data_set_in_a_configuration(stripes: str) -> None:
    from quatsphere.config import DataConfig
    from quatsphere.train.run import load_data

    data = load_data(DataConfig(name=stripes), lambda note: None)
    assert data.classes == ("horizontal", "vertical")


def test_listing_data_sets_does_not_import_torch() -> None:
    code = "import sys, quatsphere.data, quatsphere.cli.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
