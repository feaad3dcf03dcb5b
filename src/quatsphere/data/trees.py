"""A folder and a zip seen alike: relative names, bytes on request, and an identity that changes with the content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from quatsphere.errors import DataError
from quatsphere.files.archives import SafeZip, shown
from quatsphere.files.reading import read_regular

MOST_BYTES = 128 << 20
"""Size cap of one image file."""
MOST_FILES = 5_000_000
"""More files than any image set has: somebody pointed us at a whole disk."""


class ZipTree:
    """A zip file, read in place, and opened only when the cache does not know it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        status = path.stat()
        self.identity: list[object] = [status.st_size, status.st_mtime_ns]

    @cached_property
    def _zip(self) -> SafeZip:
        return SafeZip(self.path)

    @property
    def names(self) -> list[str]:
        return self._zip.names

    def read(self, name: str) -> bytes:
        return self._zip.read(name, MOST_BYTES)


class FolderTree:
    """A folder on disk; links are followed, a link that leads back to where we come from is an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        hasher = hashlib.sha256()
        self.names: list[str] = []
        for name, status in _walk(path):
            self.names.append(name)
            if len(self.names) > MOST_FILES:
                raise DataError(
                    f"{shown(path)} holds more than {MOST_FILES} files; pass --data.root of an image folder"
                )
            if status is not None:
                hasher.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
        self.identity: list[object] = [hasher.hexdigest()]

    def read(self, name: str) -> bytes:
        return read_file(self.path / name, MOST_BYTES)


Tree = FolderTree | ZipTree
"""Both have `path`, `names` (relative, with slashes; folders end with one), `identity` and `read(name)`."""


def open_tree(path: Path) -> Tree:
    """The tree under a folder, or inside a zip; any other file is refused."""
    if path.is_dir():
        return FolderTree(path)
    if path.is_file() and not is_zip(path):
        raise DataError(
            f"{shown(path)} is neither a folder nor a zip; pass --data.root of a folder with one subfolder per class, "
            "or of a zip of one"
        )
    return ZipTree(path)


def is_zip(path: Path) -> bool:
    """Whether a file begins as zip files do; a damaged one may."""
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def read_file(path: Path, limit: int) -> bytes:
    """A regular file's bytes, or DataError with the reason."""
    try:
        return read_regular(path, limit)
    except OSError as error:
        raise DataError(f"cannot read {shown(path)} ({error.strerror})") from error


def _walk(root: Path) -> Iterator[tuple[str, os.stat_result | None]]:
    """Names below the root in sorted order, with their status (None for folders and what cannot be looked at)."""
    todo: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    while todo:
        prefix, ancestors = todo.pop()
        here, entries = _look_into(root / prefix)
        if here in ancestors:
            raise DataError(f"symlink loop at {shown(root / prefix)}; remove the link")
        for entry in entries:
            name = prefix + entry.name
            if _is_folder(entry):
                todo.append((name + "/", ancestors | {here}))
                yield name + "/", None
            else:
                yield name, _status(entry)


def _look_into(folder: Path) -> tuple[tuple[int, int], list[os.DirEntry[str]]]:
    """What tells this folder from all others, and its entries."""
    try:
        status = folder.stat()
        with os.scandir(folder) as entries:
            return (status.st_dev, status.st_ino), sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"cannot read folder {shown(folder)} ({error.strerror}); check its permissions") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that points at itself
        return False


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat()
    except OSError:
        return None
