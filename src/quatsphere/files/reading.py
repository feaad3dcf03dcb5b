"""Reading files that may be anything: never a device or pipe that hangs, never more than expected."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes; anything else is an OSError that says why.

    Opened without blocking and looked at afterwards, so that no swap between check and use can make it a pipe.
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
