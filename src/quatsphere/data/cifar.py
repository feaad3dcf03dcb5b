"""CIFAR-10 and CIFAR-100 from whatever users have: official archives or folders, or class folders of images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quatsphere.data.archives import read_tar, shown
from quatsphere.data.cache import places
from quatsphere.data.cifar_files import BatchFile, Cifar, Container
from quatsphere.data.dataset import Contents, Part, fingerprint, part_of
from quatsphere.data.image_folder import Reading, is_zip, read_file, read_folder
from quatsphere.data.pickles import read_batch
from quatsphere.errors import DataError
from quatsphere.storage.atomic import sha256_bytes

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


SIDE = 32
MOST_UNPACKED = 400 << 20
"""Cap on what an archive unpacks to; the official ones give 176 to 179 MB."""
MEANS_TOLERANCE = 0.02
"""Grey levels within which channel means identify the JPEG copy; the true means are 0.04 away in red."""


def read_cifar(cifar: Cifar, root: Path | None, how: Reading) -> Contents:
    """The data set from the first place that has it, with its notes on what was recognised."""
    path = find(cifar, root)
    container = _container_of(cifar, path)
    if container is not None:
        return read_batches(cifar, container, _folder_bytes(container, path), path)
    if path.is_file() and not is_zip(path):
        return _read_archive(cifar, path)
    contents = read_folder(path, SIDE, how, cifar.classes)
    if contents.test is None:
        raise DataError(f"{shown(path)} has no test folder; {cifar.title} has one: pass --data.root of the whole set")
    return contents


def find(cifar: Cifar, root: Path | None) -> Path:
    """The file or folder to read; looks for official folders, official archives, and `cifar10.zip` or `cifar10/`."""
    folders = [container.folder for container in cifar.containers]
    names = ["", *folders, *(archive.name for archive in cifar.archives), f"{cifar.name}.zip", cifar.name]
    looked = places(root)
    for place in looked:
        for path in [place] if place.is_file() else [place / name for name in names]:
            if path.is_file() or _container_of(cifar, path) or _has_class_folders(path):
                return path
    first, last = cifar.containers[-1].files[0].name, cifar.containers[-1].files[-1].name
    raise DataError(
        f"no {cifar.title} files in {' or '.join(map(shown, looked))} (looked for {first} … {last}); "
        f"run 'quatsphere data get {cifar.name}' or pass --data.root"
    )


def _container_of(cifar: Cifar, path: Path) -> Container | None:
    """Which official form a folder holds, if any of its files is there."""
    return next((c for c in cifar.containers if any((path / file.name).is_file() for file in c.files)), None)


def _has_class_folders(path: Path) -> bool:
    return (path / "train").is_dir() and (path / "test").is_dir()


def _folder_bytes(container: Container, path: Path) -> dict[str, bytes]:
    present = [file.name for file in container.files if (path / file.name).exists()]
    return {name: read_file(path / name, MOST_UNPACKED) for name in present}


def _read_archive(cifar: Cifar, path: Path) -> Contents:
    wanted = {f"{c.folder}/{file.name}": (c, file.name) for c in cifar.containers for file in c.files}
    members = read_tar(path, wanted, MOST_UNPACKED)
    container = next((c for c in cifar.containers if any(wanted[name][0] is c for name in members)), None)
    if container is None:
        folders = " or ".join(c.folder for c in cifar.containers)
        raise DataError(f"no {cifar.title} files in {shown(path)} (looked for {folders}); pass --data.root of another")
    blobs: Mapping[str, bytes] = {wanted[name][1]: data for name, data in members.items()}
    return read_batches(cifar, container, blobs, path)


def recognise(cifar: Cifar, contents: Contents) -> tuple[str, ...]:
    """Say what this copy is: canonical, the lossy JPEG copy, a part, or none of these."""
    if fingerprint(contents) == cifar.fingerprint:
        return (f"canonical {cifar.title}: every pixel equals the official files'",)
    counts = (len(contents.train), len(contents.test or ()))
    notes: tuple[str, ...] = ()
    if counts != cifar.counts:
        had, whole = (f"{train} training and {test} test images" for train, test in (counts, cifar.counts))
        notes += (f"only a PART of {cifar.title}: {had}, whole: {whole}",)
    if contents.lossy or _has_jpeg_means(cifar, contents):
        return (
            *notes,
            f"LOSSY JPEG COPY of {cifar.title} recognised: expect 2 to 3 points less than on the official files",
        )
    if counts == cifar.counts and cifar.fingerprint is not None:
        notes += (f"NOT canonical {cifar.title}: counts are right but pixels differ from the official files'",)
    return notes


def channel_means(contents: Contents) -> list[float]:
    """Mean grey level 0..255 of each channel over the training part as the source has it."""
    images = contents.train.images
    return [float(value) for value in images.mean(axis=(0, 2, 3), dtype=np.float64)]


def _has_jpeg_means(cifar: Cifar, contents: Contents) -> bool:
    return cifar.jpeg_means is not None and bool(
        np.allclose(channel_means(contents), cifar.jpeg_means, rtol=0, atol=MEANS_TOLERANCE)
    )
