"""IDX files: header, size and labels are checked; a gzip bomb is stopped early."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.data_files import encode_idx, write_files

from quatsphere.data import load_dataset
from quatsphere.data.idx import FILE_NAMES, OFFICIAL_MD5, read_idx
from quatsphere.errors import DataError

GENERATOR = np.random.default_rng(0)
IMAGES = GENERATOR.integers(0, 256, (60, 28, 28), np.uint8)
LABELS = (np.arange(60) % 10).astype(np.uint8)


def files(suffix: str = "") -> dict[str, bytes]:
    pack = gzip.compress if suffix else bytes
    return {
        f"train-images-idx3-ubyte{suffix}": pack(encode_idx(IMAGES[:40])),
        f"train-labels-idx1-ubyte{suffix}": pack(encode_idx(LABELS[:40])),
        f"t10k-images-idx3-ubyte{suffix}": pack(encode_idx(IMAGES[40:])),
        f"t10k-labels-idx1-ubyte{suffix}": pack(encode_idx(LABELS[40:])),
    }


def test_plain_and_gzipped_files_are_the_same_data_set(tmp_path: Path) -> None:
    plain = load_dataset("idx", root=write_files(tmp_path / "plain", files()))
    packed = load_dataset("idx", root=write_files(tmp_path / "packed" / "raw", files(".gz")).parent)
    dotted = {name.replace("-idx", ".idx"): data for name, data in files().items()}
    assert plain.fingerprint == packed.fingerprint
    assert plain.fingerprint == load_dataset("idx", root=write_files(tmp_path / "dotted", dotted)).fingerprint
    assert torch.equal(plain.train.images, packed.train.images)
    assert plain.train.images.shape[1:] == (1, 28, 28)
    assert [len(split) for split in (plain.train, plain.val, plain.test)] == [30, 10, 20]
    assert plain.classes == tuple("0123456789")


def test_official_files_are_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = files(".gz")
    assert load_dataset("idx", root=write_files(tmp_path, content)).notes == ()
    sums = tuple(hashlib.md5(content[f"{name}.gz"]).hexdigest() for name in FILE_NAMES)
    monkeypatch.setitem(OFFICIAL_MD5, "MNIST", sums)
    assert load_dataset("idx", root=tmp_path).notes == ("official MNIST files (md5)",)


def test_one_pool_without_test_files(tmp_path: Path) -> None:
    content = {name: data for name, data in files().items() if name.startswith("train")}
    data = load_dataset("idx", root=write_files(tmp_path, content), test_fraction=0.25, image_size=32)
    assert len(data.test) == 10
    assert data.test.images.shape[1:] == (1, 32, 32)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (
            "train-images-idx3-ubyte",
            encode_idx(IMAGES[:40])[:-1],
            "has 31359 values, expected 31360; the copy is incomplete",
        ),
        (
            "train-images-idx3-ubyte",
            encode_idx(IMAGES[:40]) + b"x",
            "holds more than the 31360 values that its header states",
        ),
        ("train-images-idx3-ubyte", encode_idx(IMAGES[:40])[:10], "header is incomplete"),
        ("train-images-idx3-ubyte", b"", "header is incomplete"),
        ("train-images-idx3-ubyte", encode_idx(LABELS), "not an IDX file of bytes with 3 dimensions"),
        ("train-images-idx3-ubyte", b"\0\0\x0d\x03" + bytes(12), "not an IDX file of bytes"),
        ("train-images-idx3-ubyte", b"\0\0\x08\x03" + b"\xff" * 12, "header states .* more than the limit of"),
        ("train-images-idx3-ubyte", gzip.compress(encode_idx(IMAGES))[:-100], "is damaged"),
        ("train-labels-idx1-ubyte", encode_idx(LABELS[:39]), "40 rows but 39 labels, first mismatch at index 39"),
        (
            "t10k-labels-idx1-ubyte",
            encode_idx(np.where(np.arange(20) == 7, 12, 0).astype(np.uint8)),
            r"label 12 at index 7 .*0\.\.9",
        ),
        (
            "train-labels-idx1-ubyte",
            encode_idx(np.where(LABELS[:40] == 3, 4, LABELS[:40])),
            "class '3' has no usable training",
        ),
        ("train-labels-idx1-ubyte", encode_idx(np.zeros(40, np.uint8)), "label .* is outside 0..0"),
    ],
)
def test_damaged_files_are_one_line(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load_dataset("idx", root=write_files(tmp_path, files() | {name: data}))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no IDX files in .*looked for train-images-idx3-ubyte, plain or \.gz"):
        load_dataset("idx", root=tmp_path)
    content = files()
    del content["t10k-labels-idx1-ubyte"]
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte has no partner"):
        load_dataset("idx", root=write_files(tmp_path, content))


def test_gzip_bomb_stops_one_byte_after_the_size_in_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = write_files(tmp_path, {"bomb.gz": gzip.compress(encode_idx(IMAGES[:2]) + bytes(50_000_000), 9)}) / "bomb.gz"
    assert bomb.stat().st_size < 60_000
    unpacked = []
    read = gzip.GzipFile.read

    def counting(self: gzip.GzipFile, size: int | None = -1) -> bytes:
        data = read(self, size)
        unpacked.append(len(data))
        return data

    monkeypatch.setattr(gzip.GzipFile, "read", counting)
    with pytest.raises(DataError, match="holds more than the 1568 values that its header states"):
        read_idx(bomb, 3)
    assert sum(unpacked) == 16 + 1568 + 1
