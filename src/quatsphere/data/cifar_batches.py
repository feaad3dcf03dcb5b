"""The official batch files: rows of one or two label bytes and 3,072 pixels, or pickled dictionaries of the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quatsphere.data.cifar_files import BatchFile, Cifar, Container
from quatsphere.data.contents import Contents, Part, fingerprint, part_of
from quatsphere.errors import DataError
from quatsphere.files.archives import shown
from quatsphere.files.hashing import sha256_bytes
from quatsphere.files.pickles import read_batch

PIXELS = 3 * 32 * 32
Rows = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Pixels (N, 3072) and labels (N,)."""


def read_batches(cifar: Cifar, container: Container, blobs: Mapping[str, bytes], where: Path) -> Contents:
    """Parse and check every file; the official hashes, or failing these the fingerprint of the whole, must be right.

    The second way lets copies in that were packed anew: their bytes differ, their images do not.
    """
    parts: dict[bool, list[Rows]] = {False: [], True: []}
    altered = [file for file in container.files if sha256_bytes(blobs.get(file.name, b"")) != file.sha256]
    for file in container.files:
        if file.name not in blobs:
            raise DataError(f"{file.name} is missing in {shown(where)}; the copy is incomplete: fetch it again")
        parts[file.test].append(_parse(cifar, container, file, blobs[file.name], where))
    contents = Contents(cifar.classes, _join(parts[False]), _join(parts[True]))
    if not altered:
        return Contents(cifar.classes, contents.train, contents.test, (f"official {cifar.title} files (sha256)",))
    if fingerprint(contents) != cifar.fingerprint:
        raise _altered(altered[0], blobs[altered[0].name], where)
    return contents


def _parse(cifar: Cifar, container: Container, file: BatchFile, data: bytes, where: Path) -> Rows:
    """One file's rows; a binary file has one right size, a pickle packed anew may have another."""
    try:
        if not container.pickled and len(data) != file.size:
            raise ValueError("wrong size")
        pixels, labels = (_parse_pickled if container.pickled else _parse_binary)(cifar, data)
    except ValueError as error:
        if len(data) == file.size:
            raise DataError(f"{file.name} is damaged ({error}) in {shown(where)}; delete it and fetch again") from error
        raise _altered(file, data, where) from error
    _check_rows(cifar, file, pixels, labels, where)
    return pixels, labels


def _parse_binary(cifar: Cifar, data: bytes) -> Rows:
    """The last label byte is the fine label."""
    rows = np.frombuffer(data, np.uint8).reshape(-1, cifar.label_bytes + PIXELS)
    return rows[:, cifar.label_bytes :], rows[:, cifar.label_bytes - 1].astype(np.int64)


def _parse_pickled(cifar: Cifar, data: bytes) -> Rows:
    batch = read_batch(data)
    pixels, labels = batch.get("data"), batch.get(cifar.label_key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        raise ValueError("no rows of 3072 pixels")
    if not isinstance(labels, (list, np.ndarray)) or not all(isinstance(label, (int, np.integer)) for label in labels):
        raise ValueError(f"no {cifar.label_key}")
    return pixels, np.array([min(max(int(label), -1), 1 << 30) for label in labels], np.int64)


def _check_rows(cifar: Cifar, file: BatchFile, pixels: NDArray, labels: NDArray, where: Path) -> None:
    """Counts and labels, each with the first index that is wrong (FAULTS 5)."""
    place = f"{file.name} in {shown(where)}"
    if len(pixels) != len(labels):
        first = min(len(pixels), len(labels))
        raise DataError(
            f"{len(pixels)} rows but {len(labels)} labels, first mismatch at index {first} ({place}); fetch it again"
        )
    if len(pixels) != file.rows:
        first = min(len(pixels), file.rows)
        raise DataError(
            f"{len(pixels)} images, expected {file.rows}, first wrong index {first} ({place}); fetch it again"
        )
    outside = np.flatnonzero((labels < 0) | (labels >= len(cifar.classes)))
    if len(outside):
        index = outside[0]
        raise DataError(
            f"label {labels[index]} at index {index} is outside 0..{len(cifar.classes) - 1} ({place}); fetch it again"
        )


def _altered(file: BatchFile, data: bytes, where: Path) -> DataError:
    """What to say of a file that is not the official one: short copies by their size, others by their hash."""
    if file.size is not None and len(data) < file.size:
        text = f"{file.name} has {len(data)} bytes, expected {file.size}; the copy is incomplete"
    else:
        text = f"sha256 differs from the official {file.name}: the file is damaged or altered"
    return DataError(f"{text} ({shown(where)}); delete it and fetch again")


def _join(rows: list[Rows]) -> Part:
    pixels = np.concatenate([pixels for pixels, _ in rows])
    return part_of(pixels.reshape(-1, 3, 32, 32), np.concatenate([labels for _, labels in rows]))
