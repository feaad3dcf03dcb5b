"""Atomic writes: write a temporary file, fsync, rename, fsync the folder.

A reader never sees half a file, and the old content stays until the new one is on the disk, whenever the writer is
killed. Temporary names end in `.tmp.PID`, which distinguishes leftovers from writes in progress.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quatsphere.errors import ResourceError


def sha256_bytes(data: bytes) -> str:
    """Hex digest of bytes in memory."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex digest of a file, read in pieces."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def read_regular(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes; OSError with the reason for anything else.

    The file is opened without blocking and checked afterwards, so that it cannot be replaced by a pipe in between.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        data = b"" if status.st_size > limit else file.read(limit + 1)
        if status.st_size > limit or len(data) > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    return data


FAILPOINTS = (
    *("before_write", "half_written", "before_fsync", "after_fsync", "before_rename", "after_rename"),
    "before_metrics",
)
_LEFTOVER = re.compile(r".+\.tmp\.(\d+)")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def failpoint(name: str) -> None:
    """Mark a named moment of a write; tests of recovery replace this function by one that ends the process there."""


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the content of `path` atomically; ResourceError, which names the file, if that fails."""
    with disk_errors(path.name, path.parent, len(data), "free some space"):
        replace_bytes(path, data)


def replace_bytes(path: Path, data: bytes) -> None:
    """Replace the content of `path` atomically; OSError if that fails, for parts of something larger."""
    temporary = path.with_name(f".{path.name}.tmp.{os.getpid()}")
    try:
        write_durable(temporary, data)
        rename_durably(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Replace the content of `path` by UTF-8 text atomically.

    Bytes of file names that are not UTF-8, which Python holds as lone surrogates, become `\\udcff`: as in JSON.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: Path, value: Any) -> None:
    """Replace the content of `path` by JSON atomically; numbers that are not finite become null."""
    write_text(path, json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by None in a JSON value."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def write_durable(path: Path, data: bytes) -> None:
    """Write a new file and return when it is on the disk; its name is durable once its folder is synced."""
    half = len(data) // 2
    failpoint("before_write")
    with open(path, "wb") as file:
        file.write(memoryview(data)[:half])
        file.flush()
        failpoint("half_written")
        file.write(memoryview(data)[half:])
        file.flush()
        failpoint("before_fsync")
        os.fsync(file.fileno())
    failpoint("after_fsync")


def rename_durably(temporary: Path, path: Path) -> None:
    """Rename a finished file or folder and return when the new name is on the disk."""
    failpoint("before_rename")
    os.replace(temporary, path)
    failpoint("after_rename")
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Return when the names in `folder` are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def new_folder(temporary: Path, files: dict[str, bytes]) -> Iterator[None]:
    """Write a folder of files that are on the disk; the block renames it, and after any failure it is removed."""
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        for name, data in files.items():
            write_durable(temporary / name, data)
        sync_folder(temporary)
        yield
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def remove_folder(folder: Path) -> None:
    """Delete a folder; if the process is killed meanwhile, a leftover remains and no incomplete folder."""
    renamed = folder.with_name(f".{folder.name}.tmp.{os.getpid()}")
    shutil.rmtree(renamed, ignore_errors=True)
    os.replace(folder, renamed)
    shutil.rmtree(renamed, ignore_errors=True)


def remove_leftovers(folder: Path) -> list[str]:
    """Remove `*.tmp.PID` files and folders, at any depth, of processes that are gone; return their names.

    Call it while this process is not writing here: names with its own pid count as leftovers, because in a container
    every start of a program may have the same pid.
    """
    removed = []
    for path in sorted(folder.rglob("*.tmp.*")):
        if is_leftover(path.name) and not _is_writing(path.name):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            removed.append(path.name)
    return removed


def is_leftover(name: str) -> bool:
    """True for the name of an unfinished write."""
    return _LEFTOVER.fullmatch(name) is not None


def _is_writing(name: str) -> bool:
    """True if a temporary name belongs to another process that is alive."""
    pid = int(name.rpartition(".")[2])
    if pid in (0, os.getpid()):
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # alive, and another user's
        pass
    return True


def is_disk_full(error: OSError) -> bool:
    """True if an error means that the disk, a quota or a size limit is exhausted."""
    return error.errno in _FULL


@contextlib.contextmanager
def disk_errors(what: str, folder: Path, needed: int, advice: str) -> Iterator[None]:
    """Turn the system's errors into one line with the needed and the free space.

    Remove half-written files inside the block: the free space is measured after it.
    """
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            message = f"{what} needs {size_text(needed)}, {size_text(free_bytes(folder))} free on {folder}; {advice}"
        else:
            message = f"cannot write {what} ({error.strerror} in {folder}); check the disk and its permissions"
        raise ResourceError(message) from error


def require_space(what: str, folder: Path, needed: int) -> None:
    """Raise ResourceError unless `needed` bytes are free, so that a long run does not start on a full disk."""
    free = free_bytes(folder)
    if free < needed:
        numbers = f"{size_text(needed)} needed, {size_text(free)} free on {folder}"
        raise ResourceError(f"no space for {what} ({numbers}); free some space")


def free_bytes(folder: Path) -> int:
    """Bytes that this user can still write on the folder's file system."""
    system = os.statvfs(next(path for path in (folder, *folder.absolute().parents) if path.exists()))
    return system.f_bavail * system.f_frsize


def size_text(count: int) -> str:
    """Number of bytes as text: `7.9 MB`, `12.3 kB`."""
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.1f} kB"
