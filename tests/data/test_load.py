"""`load_dataset` on the embedded digits, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from quatsphere.data import Dataset, load_dataset, verify
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


def test_test_part_is_stratified(digits: Dataset) -> None:
    share = torch.bincount(digits.test.labels) / torch.bincount(
        torch.cat([digits.train.labels, digits.val.labels, digits.test.labels])
    )
    assert share.min() > 0.19
    assert share.max() < 0.21


def test_statistics_are_of_the_training_part(digits: Dataset) -> None:
    scaled = digits.train.images.double() / 255
    torch.testing.assert_close(digits.mean.double(), scaled.mean((0, 2, 3)), rtol=1e-6, atol=0)
    torch.testing.assert_close(digits.std.double(), scaled.std((0, 2, 3), correction=0), rtol=1e-6, atol=0)


def test_fingerprint_ignores_settings_but_order_is_canonical(digits: Dataset) -> None:
    limited = load_dataset("digits", max_train_images=100, val_fraction=0.2, image_size=16)
    assert limited.fingerprint == digits.fingerprint
    assert limited.train.images.shape == (100, 1, 16, 16)
    assert torch.equal(torch.bincount(limited.train.labels), torch.full((10,), 10))
    assert torch.equal(digits.train.labels, digits.train.labels.sort().values)


def test_fingerprint_is_what_it_was(digits: Dataset) -> None:
    """Checkpoints remember it: a change of its definition would refuse every one of them."""
    assert digits.fingerprint == "f42d98a7071c09194a5fcabd6cd1e0af0fe7911d2e2054e8b08c5a2b4e32841b"


def test_limit_takes_a_subset(digits: Dataset) -> None:
    limited = load_dataset("digits", max_train_images=50)
    assert rows(limited.train.images) < rows(digits.train.images)
    assert torch.equal(limited.test.images, digits.test.images)
    assert torch.equal(limited.val.images, digits.val.images)


def test_missing_scikit_learn_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"pip install quatsphere\[demo\]"):
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
def test_wrong_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_dataset(**{"name": "digits", **settings})  # type: ignore[arg-type]


def test_constant_images_teach_nothing(tmp_path: Path) -> None:
    from PIL import Image

    for kind in "ab":
        (tmp_path / kind).mkdir()
        for i in range(3):
            Image.fromarray(np.zeros((2 + i, 2 + i, 3), np.uint8)).save(tmp_path / kind / f"{i}.png")
    with pytest.raises(DataError, match="channel 0 of the training images is constant"):
        load_dataset("folder", root=tmp_path)


def test_verify_reports_plain_values() -> None:
    report = verify("digits")
    assert report["train"] == 1797
    assert report["test"] == 0
    assert report["canonical"] is None
    assert report["shape"] == [1, 8, 8]
    assert len(report["fingerprint"]) == 64
    assert len(report["channel_means"]) == 1
