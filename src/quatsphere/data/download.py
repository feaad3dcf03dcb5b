"""Download an official archive: resumed after an interruption, and renamed only after its SHA-256 is verified."""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from io import BufferedWriter
from pathlib import Path

from quatsphere.data.cifar_files import CIFARS, MIRROR, OFFICIAL_SITE, Archive
from quatsphere.data.dataset import ProgressCallback
from quatsphere.errors import ConfigError, DataError, printable
from quatsphere.storage import atomic
from quatsphere.storage.atomic import sha256_file

ATTEMPTS = 4
PAUSE = 1.0
"""Seconds before the second attempt; doubled before each further one."""
READ_TIMEOUT = 30.0
READ_BYTES = 1 << 18


class _Unreachable(Exception):
    """This address does not provide the file; another one may."""


def download_dataset(
    name: str, folder: str | Path, url: str | None = None, progress: ProgressCallback | None = None
) -> Path:
    """Download a data set's archive into `folder` and return its path; an intact archive there is kept.

    `url`, or else QUATSPHERE_URL, replaces the official address and the mirror; it is the address of the archive or of
    its folder. The file must have the official SHA-256 in any case.
    """
    if name not in CIFARS:
        raise ConfigError(f"nothing to download for {name!r}; choose from {', '.join(CIFARS)}")
    folder = Path(folder)
    for archive in CIFARS[name].archives:
        if _is_intact(folder / archive.name, archive):
            return folder / archive.name
    with atomic.disk_errors(name, folder, CIFARS[name].archives[0].size, "free some space or choose another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        return _fetch_first(sources(name, url), folder, progress)


def sources(name: str, url: str | None = None) -> list[tuple[str, Archive]]:
    """Return the addresses to try in this order; binary archives first, because they contain no pickles."""
    archives = CIFARS[name].archives
    url = url or os.environ.get("QUATSPHERE_URL") or None
    if url is None:
        official = [(OFFICIAL_SITE + archive.name, archive) for archive in archives[:1]]
        return official + [(MIRROR + archive.name, archive) for archive in archives if archive.mirrored]
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ConfigError(f"download address must start with http:// or https://: got {url!r}")
    for archive in archives:
        if url.endswith("/" + archive.name):
            return [(url, archive)]
    return [(f"{url.rstrip('/')}/{archives[0].name}", archives[0])]


def _fetch_first(addresses: list[tuple[str, Archive]], folder: Path, progress: ProgressCallback | None) -> Path:
    failures = []
    for address, archive in addresses:
        part = folder / f"{archive.name}.part"
        try:
            _complete(address, part, archive, progress)
            if not _is_intact(part, archive):
                part.unlink()
                raise _Unreachable("sha256 differs from the official archive, file deleted")
            atomic.rename_durably(part, folder / archive.name)
            return folder / archive.name
        except _Unreachable as failure:
            failures.append(f"{address}: {failure}")
    raise DataError(
        f"download failed ({'; '.join(failures)}); try again to resume it, or set QUATSPHERE_URL to another address"
    )


def _complete(address: str, part: Path, archive: Archive, progress: ProgressCallback | None) -> None:
    """Request the missing bytes until the file is complete; a broken connection costs one attempt."""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE * 2 ** (attempt - 1))
        try:
            _append(address, part, archive, progress)
            if part.stat().st_size >= archive.size:
                return
            reason = f"connection broke at {part.stat().st_size} of {archive.size} bytes"
        except urllib.error.HTTPError as error:
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                part.unlink(missing_ok=True)
            elif error.code < 500:
                raise _Unreachable(f"HTTP {error.code}") from error
            reason = f"HTTP {error.code}"
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reason = printable(str(getattr(error, "reason", error)))
    raise _Unreachable(reason)


def _append(address: str, part: Path, archive: Archive, progress: ProgressCallback | None) -> None:
    offset = part.stat().st_size if part.exists() else 0
    if offset > archive.size:
        part.unlink()
        offset = 0
    if offset == archive.size:
        return
    request = urllib.request.Request(address, headers={"Range": f"bytes={offset}-"} if offset else {})
    with urllib.request.urlopen(request, timeout=READ_TIMEOUT) as response:
        starts_here = (response.headers.get("Content-Range") or "").startswith(f"bytes {offset}-")
        resumed = response.status == http.client.PARTIAL_CONTENT and starts_here
        with part.open("ab" if resumed else "wb") as file:
            _copy(response, file, offset if resumed else 0, archive.size, progress)


def _copy(
    response: http.client.HTTPResponse, file: BufferedWriter, done: int, total: int, progress: ProgressCallback | None
) -> None:
    """Copy the response; of a server that does not stop, at most one byte more than expected is read."""
    while done <= total and (data := response.read(min(READ_BYTES, total + 1 - done))):
        file.write(data)
        done += len(data)
        if progress is not None:
            progress(min(done, total), total)
    file.flush()
    os.fsync(file.fileno())


def _is_intact(path: Path, archive: Archive) -> bool:
    return path.is_file() and path.stat().st_size == archive.size and sha256_file(path) == archive.sha256
