"""Read CIFAR-10 and CIFAR-100 from official archives or folders, or from class folders of images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quatsphere.data.archives import is_zip, read_file, read_tar
from quatsphere.data.cache import search_paths
from quatsphere.data.cifar_files import CIFARS, BatchFile, Cifar, Container
from quatsphere.data.dataset import RawDataset, RawSplit, ReadOptions, dataset_fingerprint, raw_split
from quatsphere.data.image_folder import read_class_folders
from quatsphere.data.pickled_batch import read_batch
from quatsphere.errors import DataError, printable
from quatsphere.storage.atomic import sha256_bytes

SIDE = 32
PIXELS = 3 * SIDE * SIDE
MAX_UNPACKED_BYTES = 400 << 20
"""Maximum unpacked size of an archive; the official ones unpack to 176 to 179 MB."""
MEANS_TOLERANCE = 0.02
"""Grey levels within which channel means identify the JPEG copy; the true means differ by 0.04 in red."""

BatchRows = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Pixels (N, 3072) and labels (N,)."""


def read_cifar(name: str, options: ReadOptions) -> RawDataset:
    """Read the first copy found, of CIFAR-100 with its fine labels; its notes describe it."""
    cifar = CIFARS[name]
    path = _find_copy(cifar, options.root)
    container = _container_in(cifar, path)
    if container is not None:
        present = [file.name for file in container.files if (path / file.name).exists()]
        blobs = {name: read_file(path / name, MAX_UNPACKED_BYTES) for name in present}
        raw = _read_batches(cifar, container, blobs, path)
    elif path.is_file() and not is_zip(path):
        raw = _read_archive(cifar, path)
    else:
        raw = read_class_folders(path, SIDE, options, cifar.classes)
    if raw.test is None:
        raise DataError(
            f"{printable(path)} has no test folder; {cifar.title} has one: pass --data.root of the whole set"
        )
    return replace(raw, notes=raw.notes + describe_copy(cifar, raw), official_fingerprint=cifar.fingerprint)


read_cifar10, read_cifar100 = partial(read_cifar, "cifar10"), partial(read_cifar, "cifar100")


def _find_copy(cifar: Cifar, root: Path | None) -> Path:
    """Find an official folder, an official archive, `cifar10.zip` or `cifar10/`."""
    folders = [container.folder for container in cifar.containers]
    names = ["", *folders, *(archive.name for archive in cifar.archives), f"{cifar.name}.zip", cifar.name]
    searched = search_paths(root)
    for folder in searched:
        for path in [folder] if folder.is_file() else [folder / name for name in names]:
            has_class_folders = (path / "train").is_dir() and (path / "test").is_dir()
            if path.is_file() or _container_in(cifar, path) or has_class_folders:
                return path
    first, last = cifar.containers[-1].files[0].name, cifar.containers[-1].files[-1].name
    raise DataError(
        f"no {cifar.title} files in {' or '.join(map(printable, searched))} (looked for {first} … {last}); "
        f"run 'quatsphere data get {cifar.name}' or pass --data.root"
    )


def _container_in(cifar: Cifar, path: Path) -> Container | None:
    """Official container of which a folder has any file, or None."""
    return next((c for c in cifar.containers if any((path / file.name).is_file() for file in c.files)), None)


def _read_archive(cifar: Cifar, path: Path) -> RawDataset:
    wanted = {f"{c.folder}/{file.name}": (c, file.name) for c in cifar.containers for file in c.files}
    members = read_tar(path, wanted, MAX_UNPACKED_BYTES)
    container = next((c for c in cifar.containers if any(wanted[name][0] is c for name in members)), None)
    if container is None:
        folders = " or ".join(c.folder for c in cifar.containers)
        raise DataError(
            f"no {cifar.title} files in {printable(path)} (looked for {folders}); pass --data.root of another"
        )
    return _read_batches(cifar, container, {wanted[name][1]: data for name, data in members.items()}, path)


def _read_batches(cifar: Cifar, container: Container, blobs: Mapping[str, bytes], path: Path) -> RawDataset:
    """Parse and check every file; either the files have the official hashes or their content the official fingerprint.

    The second case admits copies that were packed again: their bytes differ, their images do not.
    """
    splits: dict[bool, list[BatchRows]] = {False: [], True: []}
    altered = [file for file in container.files if sha256_bytes(blobs.get(file.name, b"")) != file.sha256]
    for file in container.files:
        if file.name not in blobs:
            raise DataError(f"{file.name} is missing in {printable(path)}; the copy is incomplete: fetch it again")
        splits[file.test].append(_parse(cifar, container, file, blobs[file.name], path))
    raw = RawDataset(cifar.classes, _join(splits[False]), _join(splits[True]))
    if not altered:
        return replace(raw, notes=(f"official {cifar.title} files (sha256)",))
    if dataset_fingerprint(raw) != cifar.fingerprint:
        raise _altered(altered[0], blobs[altered[0].name], path)
    return raw


def _parse(cifar: Cifar, container: Container, file: BatchFile, data: bytes, path: Path) -> BatchRows:
    """BatchRows of one file; a binary file has one valid size, a pickle that was packed again may have another."""
    try:
        if not container.pickled and len(data) != file.size:
            raise ValueError("wrong size")
        pixels, labels = (_parse_pickled if container.pickled else _parse_binary)(cifar, data)
    except ValueError as error:
        if len(data) == file.size:
            raise DataError(
                f"{file.name} is damaged ({error}) in {printable(path)}; delete it and fetch again"
            ) from error
        raise _altered(file, data, path) from error
    _check_rows(cifar, file, pixels, labels, path)
    return pixels, labels


def _parse_binary(cifar: Cifar, data: bytes) -> BatchRows:
    """The last label byte is the fine label."""
    rows = np.frombuffer(data, np.uint8).reshape(-1, cifar.label_bytes + PIXELS)
    return rows[:, cifar.label_bytes :], rows[:, cifar.label_bytes - 1].astype(np.int64)


def _parse_pickled(cifar: Cifar, data: bytes) -> BatchRows:
    batch = read_batch(data)
    pixels, labels = batch.get("data"), batch.get(cifar.label_key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        raise ValueError("no rows of 3072 pixels")
    if not isinstance(labels, (list, np.ndarray)) or not all(isinstance(label, (int, np.integer)) for label in labels):
        raise ValueError(f"no {cifar.label_key}")
    return pixels, np.array([min(max(int(label), -1), 1 << 30) for label in labels], np.int64)


def _check_rows(cifar: Cifar, file: BatchFile, pixels: NDArray, labels: NDArray, path: Path) -> None:
    """Check counts and labels; an error states the first wrong index."""
    where = f"{file.name} in {printable(path)}"
    if len(pixels) != len(labels):
        first = min(len(pixels), len(labels))
        raise DataError(
            f"{len(pixels)} rows but {len(labels)} labels, first mismatch at index {first} ({where}); fetch it again"
        )
    if len(pixels) != file.rows:
        first = min(len(pixels), file.rows)
        raise DataError(
            f"{len(pixels)} images, expected {file.rows}, first wrong index {first} ({where}); fetch it again"
        )
    outside = np.flatnonzero((labels < 0) | (labels >= len(cifar.classes)))
    if len(outside):
        index = outside[0]
        raise DataError(
            f"label {labels[index]} at index {index} is outside 0..{len(cifar.classes) - 1} ({where}); fetch it again"
        )


def _altered(file: BatchFile, data: bytes, path: Path) -> DataError:
    """Error for a file that is not the official one: a short copy by its size, others by their hash."""
    if file.size is not None and len(data) < file.size:
        text = f"{file.name} has {len(data)} bytes, expected {file.size}; the copy is incomplete"
    else:
        text = f"sha256 differs from the official {file.name}: the file is damaged or altered"
    return DataError(f"{text} ({printable(path)}); delete it and fetch again")


def _join(rows: list[BatchRows]) -> RawSplit:
    pixels = np.concatenate([pixels for pixels, _ in rows])
    return raw_split(pixels.reshape(-1, 3, SIDE, SIDE), np.concatenate([labels for _, labels in rows]))


def describe_copy(cifar: Cifar, raw: RawDataset) -> tuple[str, ...]:
    """Notes on a copy: canonical, the lossy JPEG copy, a part, or altered."""
    if dataset_fingerprint(raw) == cifar.fingerprint:
        return (f"canonical {cifar.title}: every pixel equals the official files'",)
    counts = (len(raw.train), len(raw.test or ()))
    notes: tuple[str, ...] = ()
    if counts != cifar.counts:
        found, complete = (f"{train} training and {test} test images" for train, test in (counts, cifar.counts))
        notes += (f"only a PART of {cifar.title}: {found} of {complete}",)
    means, jpeg = raw.train.images.mean(axis=(0, 2, 3), dtype=np.float64), cifar.jpeg_means
    if raw.jpeg_count or (jpeg is not None and np.allclose(means, jpeg, rtol=0, atol=MEANS_TOLERANCE)):
        lossy = f"LOSSY JPEG COPY of {cifar.title} recognised: expect 2 to 3 points less than on the official files"
        return (*notes, lossy)
    if counts == cifar.counts and cifar.fingerprint is not None:
        notes += (f"NOT canonical {cifar.title}: counts are right but pixels differ from the official files'",)
    return notes
