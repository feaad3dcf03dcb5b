"""Safe access to untrusted tar and zip archives and folders; nothing is ever extracted to disk.

Members are returned as bytes below a size limit.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from functools import cached_property
from io import BufferedReader
from pathlib import Path

from quatsphere.errors import DataError, printable
from quatsphere.storage.atomic import read_regular

ARCHIVE_ERRORS = (
    *(OSError, EOFError, ValueError, RuntimeError, NotImplementedError, OverflowError),
    *(zlib.error, lzma.LZMAError, struct.error, tarfile.TarError, zipfile.BadZipFile),
)
"""Exceptions of the standard library for archives that are truncated, altered or encrypted."""
MAX_FILE_BYTES = 128 << 20
"""Maximum size of one image file."""
MAX_FILES = 5_000_000
"""Maximum number of files in a folder; a larger one is probably a whole disk."""


def leads_outside(name: str) -> bool:
    """Return whether a member's name would leave the folder it is read into, on any operating system."""
    return (
        name.startswith(("/", "\\"))
        or ".." in re.split(r"[/\\]", name)
        or re.match(r"[A-Za-z]:", name) is not None
        or "\0" in name
    )


def open_stream(path: Path) -> gzip.GzipFile | BufferedReader:
    """Open a plain or gzipped file, distinguished by its first two bytes, as a stream of its content."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        return gzip.open(path, "rb") if packed else path.open("rb")
    except OSError as error:
        raise DataError(
            f"cannot read {printable(path)} ({error.strerror}); check the path and its permissions"
        ) from error


class _LimitedStream:
    """Stream that raises DataError after `limit` bytes, which stops a decompression bomb early."""

    def __init__(self, stream: gzip.GzipFile | BufferedReader, limit: int, path: Path) -> None:
        self.stream, self.limit, self.path = stream, limit, path

    def read(self, count: int) -> bytes:
        data = self.stream.read(count)
        self.limit -= len(data)
        if self.limit < 0:
            raise DataError(
                f"refused: {printable(self.path)} unpacks to more than is allowed; fetch the official archive"
            )
        return data


def read_tar(path: Path, wanted: Collection[str], limit: int) -> dict[str, bytes]:
    """Read the wanted members of a tar or tar.gz by exact name; at most `limit` bytes are unpacked in total.

    An archive with a link, a device or a name that leads outside is refused as a whole.
    """
    found: dict[str, bytes] = {}
    with open_stream(path) as stream:
        limited = _LimitedStream(stream, limit, path)
        try:
            with tarfile.open(fileobj=limited, mode="r|", bufsize=1 << 20) as tar:  # type: ignore[call-overload]
                for member in tar:
                    name = _checked_name(member, path)
                    file = tar.extractfile(member) if name in wanted and name not in found else None
                    if file is not None:
                        found[name] = file.read()
        except ARCHIVE_ERRORS as error:
            raise DataError(
                f"{printable(path)} is damaged ({_first_line(error)}), incomplete or altered; delete it and fetch again"
            ) from error
    return found


def _checked_name(member: tarfile.TarInfo, path: Path) -> str:
    where = f"{printable(member.name)!r} in {printable(path)}"
    if leads_outside(member.name):
        raise DataError(f"refused: archive member leads outside ({where}); fetch the official archive")
    if not (member.isdir() or member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)):
        raise DataError(f"refused: archive member is a link or device ({where}); fetch the official archive")
    return member.name.removeprefix("./")


def _first_line(error: BaseException) -> str:
    return printable(str(error).strip().splitlines()[0]) if str(error).strip() else type(error).__name__


class ZipTree:
    """Files of a zip, which is opened when first needed; all members must be plain files with harmless names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        status = path.stat()
        self.identity: list[object] = [status.st_size, status.st_mtime_ns]

    @cached_property
    def _members(self) -> dict[str, zipfile.ZipInfo]:
        members: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            faults = {
                "leads outside": leads_outside(info.filename),
                "is a link or device": stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR),
                "occurs twice": info.filename in members,
            }
            fault = next((fault for fault, present in faults.items() if present), None)
            if fault is not None:
                where = f"{printable(info.filename)!r} in {printable(self.path)}"
                raise DataError(f"refused: archive member {fault} ({where}); make the zip again")
            members[info.filename] = info
        if sum(info.compress_size for info in members.values()) > self.path.stat().st_size:
            raise DataError(f"refused: members of {printable(self.path)} overlap, as in a zip bomb; make the zip again")
        return members

    @cached_property
    def _zip(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self.path)
        except ARCHIVE_ERRORS as error:
            raise DataError(
                f"{printable(self.path)} is not a readable zip ({_first_line(error)}); fetch or make it again"
            ) from error

    @property
    def names(self) -> list[str]:
        return list(self._members)

    def read(self, name: str) -> bytes:
        """Return a member's bytes, thread-safe; the zip's own checksum is verified."""
        info = self._members[name]
        if info.file_size > MAX_FILE_BYTES:
            raise DataError(f"{printable(name)} has {info.file_size} bytes, more than the limit of {MAX_FILE_BYTES}")
        try:
            with self._zip.open(info) as file:
                return file.read(MAX_FILE_BYTES + 1)
        except ARCHIVE_ERRORS as error:
            raise DataError(f"{printable(name)} is damaged in its zip ({_first_line(error)})") from error


class FolderTree:
    """Files below a folder; links are followed, and a loop of links is an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        hasher = hashlib.sha256()
        self.names: list[str] = []
        for name, status in _walk(path):
            self.names.append(name)
            if len(self.names) > MAX_FILES:
                raise DataError(
                    f"{printable(path)} holds more than {MAX_FILES} files; pass --data.root of an image folder"
                )
            if status is not None:
                hasher.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
        self.identity: list[object] = [hasher.hexdigest()]

    def read(self, name: str) -> bytes:
        return read_file(self.path / name, MAX_FILE_BYTES)


FileTree = FolderTree | ZipTree
"""`path`, `names` (relative, with slashes; folders end with one), `identity` (changes with the files), `read(name)`."""


def open_tree(path: Path) -> FileTree:
    """Return the files below a folder or inside a zip; any other file is refused."""
    if path.is_dir():
        return FolderTree(path)
    if path.exists() and not (path.is_file() and is_zip(path)):
        raise DataError(
            f"{printable(path)} is neither a folder nor a zip; pass --data.root of a folder with one subfolder per "
            "class, or of a zip of one"
        )
    return ZipTree(path)


def is_zip(path: Path) -> bool:
    """Return whether a file starts with the zip signature; it may still be damaged."""
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def read_file(path: Path, limit: int) -> bytes:
    """Return a regular file's bytes, or raise DataError with the reason."""
    try:
        return read_regular(path, limit)
    except OSError as error:
        raise DataError(f"cannot read {printable(path)} ({error.strerror})") from error


def _walk(root: Path) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield names below the root in sorted order with their status (None for folders and broken links)."""
    stack: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    while stack:
        prefix, ancestors = stack.pop()
        folder = root / prefix
        try:
            status, entries = folder.stat(), sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            raise DataError(
                f"cannot read folder {printable(folder)} ({error.strerror}); check its permissions"
            ) from error
        identity = (status.st_dev, status.st_ino)
        if identity in ancestors:
            raise DataError(f"symlink loop at {printable(folder)}; remove the link")
        for entry in entries:
            name, found = prefix + entry.name, _status(entry)
            if found is not None and stat.S_ISDIR(found.st_mode):
                stack.append((name + "/", ancestors | {identity}))
                yield name + "/", None
            else:
                yield name, found


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat()
    except OSError:  # a broken link, or one that points at itself
        return None
