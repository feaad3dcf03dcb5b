"""Read IDX files, the format of MNIST and its successors: `train-images-idx3-ubyte[.gz]` etc. in one folder.

A file is two zero bytes, a type (8: unsigned byte), the number of dimensions, each dimension as a big-endian integer
of four bytes, and then the values (LeCun, Cortes and Burges 1998).
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quatsphere.data.archives import ARCHIVE_ERRORS, MAX_FILE_BYTES, open_stream
from quatsphere.data.cache import search_paths
from quatsphere.data.dataset import RawDataset, RawSplit, ReadOptions, raw_split
from quatsphere.errors import DataError, printable

MAX_VALUES = 1 << 31
TRAIN, TEST = ("train",), ("t10k", "test")
FOLDERS = ("", "raw", "MNIST/raw", "FashionMNIST/raw", "mnist", "fashion-mnist")
FILE_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
OFFICIAL_MD5 = {
    "MNIST": (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "Fashion-MNIST": (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
}
"""md5 of FILE_NAMES with .gz, as torchvision checks them and as Zalando's page prints them."""


def read_idx_files(options: ReadOptions) -> RawDataset:
    """Read the training files and, where present, the test files; without these all samples are one pool."""
    searched = search_paths(options.root)
    folders = [folder / name for folder in searched for name in FOLDERS]
    folder = next((folder for folder in folders if _find(folder, TRAIN, "images", 3)), None)
    if folder is None:
        raise DataError(
            f"no IDX files in {' or '.join(map(printable, searched))} "
            "(looked for train-images-idx3-ubyte, plain or .gz); pass --data.root of the folder that holds them"
        )
    train = _read_split(folder, TRAIN)
    assert train is not None
    test = _read_split(folder, TEST)
    count = int(train.labels.max()) + 1 if len(train) else 0
    outside = np.flatnonzero(test.labels >= count) if test is not None else np.empty(0, np.intp)
    if test is not None and len(outside):
        raise DataError(
            f"label {test.labels[outside[0]]} at index {outside[0]} of the test labels is outside 0..{count - 1}, the "
            f"training labels' range ({printable(folder)}); fetch the files again"
        )
    return RawDataset(tuple(map(str, range(count))), train, test, _official_notes(folder))


def _official_notes(folder: Path) -> tuple[str, ...]:
    """Return a note if the gzipped files are the official ones, byte for byte."""
    paths = [folder / f"{name}.gz" for name in FILE_NAMES]
    if not all(path.is_file() and path.stat().st_size <= MAX_FILE_BYTES for path in paths):
        return ()
    sums = tuple(hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() for path in paths)
    return tuple(f"official {title} files (md5)" for title, official in OFFICIAL_MD5.items() if sums == official)


def _find(folder: Path, prefixes: tuple[str, ...], content: str, dimensions: int) -> Path | None:
    names = [
        f"{prefix}-{content}{dot}idx{dimensions}-ubyte{end}"
        for prefix in prefixes
        for dot in "-."
        for end in ("", ".gz")
    ]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read_split(folder: Path, prefixes: tuple[str, ...]) -> RawSplit | None:
    images, labels = _find(folder, prefixes, "images", 3), _find(folder, prefixes, "labels", 1)
    if images is None and labels is None:
        return None
    if images is None or labels is None:
        found = images or labels
        raise DataError(
            f"{printable(str(found))} has no partner (images and labels come in pairs); fetch the other file"
        )
    pixels, values = read_idx(images, 3), read_idx(labels, 1)
    if len(pixels) != len(values):
        first = min(len(pixels), len(values))
        raise DataError(
            f"{len(pixels)} rows but {len(values)} labels, first mismatch at index {first} ({printable(images)}); "
            "fetch it again"
        )
    return raw_split(pixels[:, None], values)


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read one file; unpacking stops one byte after the size in the header, which stops a gzip bomb early."""
    try:
        with open_stream(path) as stream:
            head = stream.read(4 + 4 * dimensions)
            if len(head) < 4 + 4 * dimensions:
                raise ValueError("header is incomplete")
            if struct.unpack(">HBB", head[:4]) != (0, 8, dimensions):
                raise ValueError(f"not an IDX file of bytes with {dimensions} dimensions")
            shape = struct.unpack(f">{dimensions}I", head[4:])
            expected = int(np.prod(shape, dtype=np.uint64))
            if expected > MAX_VALUES:
                raise ValueError(f"header states {expected} values, more than the limit of {MAX_VALUES}")
            data = stream.read(expected + 1)
    except ARCHIVE_ERRORS as error:
        raise DataError(f"{printable(path)} is damaged ({error}); delete it and fetch again") from error
    if len(data) > expected:
        raise DataError(
            f"{printable(path)} holds more than the {expected} values that its header states; fetch it again"
        )
    if len(data) < expected:
        raise DataError(f"{printable(path)} has {len(data)} values, expected {expected}; the copy is incomplete")
    return np.frombuffer(data, np.uint8).reshape(shape)
