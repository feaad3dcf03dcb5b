"""Readers for archives that strangers made: nothing is ever extracted, members come back as bytes under a cap."""

from __future__ import annotations

import gzip
import lzma
import os
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Collection
from io import BufferedReader
from pathlib import Path

from quatsphere.errors import DataError

BROKEN = (
    *(OSError, EOFError, ValueError, RuntimeError, NotImplementedError, OverflowError),
    *(zlib.error, lzma.LZMAError, struct.error, tarfile.TarError, zipfile.BadZipFile),
)
"""What the standard library raises on archives that are cut, flipped, encrypted or nonsense."""


def shown(name: str | os.PathLike[str]) -> str:
    """A file name as one printable line: undecodable bytes, newlines and terminal escapes come out as `\\x1b`."""
    text = os.fspath(name).encode("utf-8", "backslashreplace").decode()
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def leads_outside(name: str) -> bool:
    """Would this member name leave the folder it is read into, on any operating system?"""
    return (
        name.startswith(("/", "\\"))
        or ".." in re.split(r"[/\\]", name)
        or re.match(r"[A-Za-z]:", name) is not None
        or "\0" in name
    )


def open_stream(path: Path) -> gzip.GzipFile | BufferedReader:
    """A plain or gzipped file as a stream of its content, told apart by the first two bytes and not by the name."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        return gzip.open(path, "rb") if packed else path.open("rb")
    except OSError as error:
        raise DataError(f"cannot read {shown(path)} ({error.strerror}); check the path and its permissions") from error


class _Capped:
    """A stream that refuses to give more than `limit` bytes, so that a bomb stops early."""

    def __init__(self, stream: gzip.GzipFile | BufferedReader, limit: int, path: Path) -> None:
        self.stream, self.limit, self.path = stream, limit, path

    def read(self, count: int) -> bytes:
        data = self.stream.read(count)
        self.limit -= len(data)
        if self.limit < 0:
            raise DataError(f"refused: {shown(self.path)} unpacks to more than it may; fetch the official archive")
        return data


def read_tar(path: Path, wanted: Collection[str], limit: int) -> dict[str, bytes]:
    """The wanted members of a tar or tar.gz, by exact name; at most `limit` bytes are unpacked in all.

    Any link, device or name that leads outside condemns the whole archive: no official archive has one.
    """
    found: dict[str, bytes] = {}
    with open_stream(path) as stream:
        capped = _Capped(stream, limit, path)
        try:
            with tarfile.open(fileobj=capped, mode="r|", bufsize=1 << 20) as tar:  # type: ignore[call-overload]
                for member in tar:
                    name = _checked(member, path)
                    file = tar.extractfile(member) if name in wanted and name not in found else None
                    if file is not None:
                        found[name] = file.read()
        except BROKEN as error:
            raise DataError(
                f"{shown(path)} is damaged ({_brief(error)}), incomplete or altered; delete it and fetch again"
            ) from error
    return found


def _checked(member: tarfile.TarInfo, path: Path) -> str:
    where = f"{shown(member.name)!r} in {shown(path)}"
    if leads_outside(member.name):
        raise DataError(f"refused: archive member leads outside ({where}); fetch the official archive")
    if not (member.isdir() or member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)):
        raise DataError(f"refused: archive member is a link or device ({where}); fetch the official archive")
    return member.name.removeprefix("./")


class SafeZip:
    """A zip whose every member is a plain file with a harmless name; reading is thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except BROKEN as error:
            raise DataError(f"{shown(path)} is not a readable zip ({_brief(error)}); fetch or make it again") from error
        self._members: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            self._admit(info)
        if sum(info.compress_size for info in self._members.values()) > path.stat().st_size:
            raise DataError(f"refused: members of {shown(path)} overlap, as in a zip bomb; make the zip again")

    def _admit(self, info: zipfile.ZipInfo) -> None:
        faults = {
            "leads outside": leads_outside(info.filename),
            "is a link or device": stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR),
            "occurs twice": info.filename in self._members,
        }
        for fault, present in faults.items():
            if present:
                where = f"{shown(info.filename)!r} in {shown(self.path)}"
                raise DataError(f"refused: archive member {fault} ({where}); make the zip again")
        self._members[info.filename] = info

    @property
    def names(self) -> list[str]:
        """Every member; folders end with a slash."""
        return list(self._members)

    def read(self, name: str, limit: int) -> bytes:
        """One member's bytes; the zip's own checksum is verified."""
        info = self._members[name]
        if info.file_size > limit:
            raise DataError(f"{shown(name)} has {info.file_size} bytes, the cap is {limit}")
        try:
            with self._zip.open(info) as file:
                return file.read(limit + 1)
        except BROKEN as error:
            raise DataError(f"{shown(name)} is damaged in its zip ({_brief(error)})") from error

    def close(self) -> None:
        self._zip.close()


def _brief(error: BaseException) -> str:
    """The first line of an error, or its type where it says nothing."""
    return shown(str(error).strip().splitlines()[0]) if str(error).strip() else type(error).__name__
