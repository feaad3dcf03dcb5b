"""CIFAR-10 and CIFAR-100 from whatever users have: official archives or folders, or class folders of images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from quatsphere.data.cifar_batches import read_batches
from quatsphere.data.cifar_files import Cifar, Container
from quatsphere.data.contents import Contents, fingerprint
from quatsphere.data.folder import Reading, read_folder
from quatsphere.data.places import places
from quatsphere.data.trees import is_zip, read_file
from quatsphere.errors import DataError
from quatsphere.files.archives import read_tar, shown

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
