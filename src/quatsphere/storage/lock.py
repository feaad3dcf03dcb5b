"""One process per folder: an flock'd file that says who holds it.

The kernel drops the lock when its holder dies, by whatever death, so a stale lock is one whose text is still there
although nobody holds it. The file itself stays: deleting it would let two processes lock two files of one name.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from quatsphere.errors import CheckpointError
from quatsphere.storage.atomic import disk_errors


@contextlib.contextmanager
def folder_lock(path: Path, name: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file `path` of the run `name`; CheckpointError naming the holder when another process has it."""
    with disk_errors(path.name, path.parent, 1000, "free some space"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"run '{name}' is locked by {_holder(descriptor)}; wait for its end or use another name"
            raise CheckpointError(message) from None
        except OSError as error:
            raise CheckpointError(f"cannot lock ({path}: {error.strerror}); use a local disk") from error
        if os.fstat(descriptor).st_size:
            say(f"took over a stale lock of run '{name}': {_holder(descriptor)} is gone")
        _sign(descriptor, path)
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _sign(descriptor: int, path: Path) -> None:
    since = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
    with disk_errors(path.name, path.parent, len(text), "free some space"):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def _holder(descriptor: int) -> str:
    """Who signed; a holder that was killed while signing, or has not done it yet, has no name."""
    try:
        signed = json.loads(os.pread(descriptor, 1000, 0))
        return f"pid {signed['pid']} on host {signed['host']} since {signed['since']}"
    except (ValueError, LookupError, TypeError):
        return "another process"
