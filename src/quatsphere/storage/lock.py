"""Lock of a folder for one process: a locked file that names its holder.

The system releases the lock when the holder dies, so a stale lock is a file with text that is not locked. The file
itself stays: if it were deleted, two processes could lock two files of the same name.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import lock_descriptor

from quatsphere.errors import CheckpointError
from quatsphere.storage.atomic import disk_errors


@contextlib.contextmanager
def folder_lock(path: Path, name: str, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file `path` of the run `name`; CheckpointError naming the holder if another process has it."""
    with disk_errors(path.name, path.parent, 1000, "free some space"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            locked = lock_descriptor(descriptor, blocking=False)
        except OSError as error:
            raise CheckpointError(f"cannot lock ({path}: {error.strerror}); use a local disk") from error
        if not locked:
            message = f"run '{name}' is locked by {_read_holder(descriptor)}; wait for its end or use another name"
            raise CheckpointError(message)
        if os.fstat(descriptor).st_size:
            note(f"took over a stale lock of run '{name}': {_read_holder(descriptor)} is gone")
        _write_holder(descriptor, path)
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _write_holder(descriptor: int, path: Path) -> None:
    since = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
    with disk_errors(path.name, path.parent, len(text), "free some space"):
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, text.encode())


def _read_holder(descriptor: int) -> str:
    """Description of the holder; a holder that has not written its name yet is 'another process'.

    The first byte, always a brace, is not read: on Windows the lock makes it unreadable for others.
    """
    os.lseek(descriptor, 1, os.SEEK_SET)
    try:
        holder = json.loads(b"{" + os.read(descriptor, 1000))
        return f"pid {holder['pid']} on host {holder['host']} since {holder['since']}"
    except (ValueError, LookupError, TypeError):
        return "another process"
