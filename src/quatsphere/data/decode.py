"""Decode many image files at once, in worker processes that may die or hang without taking us along.

Processes rather than threads: at 32 x 32 the decoder holds the interpreter lock most of the time, and two threads were
slower than one (2.6 s against 1.8 s for 12,000 files). Plain subprocesses rather than multiprocessing, which would
import the user's main script again and need its `if __name__ == "__main__"`. A worker that loses us sees a closed pipe.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quatsphere.data.archives import shown
from quatsphere.data.dataset import Progress
from quatsphere.data.images import REPLY
from quatsphere.errors import DataError

WORKER = Path(__file__).with_name("images.py")
MOST_WORKERS = 16
BATCH_FILES, BATCH_BYTES = 128, 32 << 20
LOOK_EVERY = 0.05
"""Seconds between looks at the workers, and between calls of `progress`."""


@dataclass(frozen=True)
class ImageFile:
    """A name for messages, and how to get the bytes (DataError where it cannot be read)."""

    name: str
    read: Callable[[], bytes]


@dataclass
class DecodedFiles:
    """Row i belongs to file i; rows of bad files are undefined and `bad` says why."""

    images: NDArray[np.uint8]  # (N, 3, size, size)
    digests: NDArray[np.uint8]  # (N, 32)
    resized: NDArray[np.bool_]
    square: NDArray[np.bool_]  # before it was resized
    formats: NDArray[np.uint8]  # index into images.FORMATS
    bad: dict[int, str] = field(default_factory=dict)

    @classmethod
    def empty(cls, count: int, size: int) -> DecodedFiles:
        images = np.empty((count, 3, size, size), np.uint8)
        digests = np.empty((count, 32), np.uint8)
        resized, square = np.zeros((2, count), np.bool_)
        return cls(images, digests, resized, square, np.zeros(count, np.uint8))


class Worker:
    """One subprocess, and what we know of it: which file it has, since when, how many are done."""

    def __init__(self, size: int, fit: str = "crop") -> None:
        self.done = self.current = 0
        self.waiting_since: float | None = None
        self.silent_for = 0.0
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        pipe, command = subprocess.PIPE, [sys.executable, "-W", "ignore", str(WORKER), str(size), fit]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self.complaints, env=environment, bufsize=1 << 20
        )

    def decode(self, indices: Sequence[int], blobs: Sequence[bytes], into: DecodedFiles) -> None:
        """Send the files, then fill their rows one by one; EOFError or OSError when the process is gone."""
        assert self.process.stdin is not None
        self.current, self.waiting_since = indices[0], time.monotonic()
        self.process.stdin.write(struct.pack(f"<{len(blobs) + 1}I", len(blobs), *map(len, blobs)) + b"".join(blobs))
        self.process.stdin.flush()
        for self.current in indices:
            self._receive(self.current, into)
            self.done += 1
            self.waiting_since = time.monotonic()
        self.waiting_since = None

    def _receive(self, index: int, into: DecodedFiles) -> None:
        ok, kind, resized, square, length, digest = REPLY.unpack(self._read(REPLY.size))
        if not ok:
            into.bad[index] = shown(self._read(length).decode("utf-8", "replace"))
            return
        image = into.images[index]
        image[:] = np.frombuffer(self._read(image.size), np.uint8).reshape(image.shape)
        into.digests[index] = np.frombuffer(digest, np.uint8)
        into.resized[index], into.square[index], into.formats[index] = resized, square, kind

    def _read(self, count: int) -> bytes:
        assert self.process.stdout is not None
        data = self.process.stdout.read(count)
        if len(data) < count:
            raise EOFError
        return data

    def end_if_hung(self, timeout: float) -> None:
        since = self.waiting_since
        if since is not None and time.monotonic() - since > timeout:
            self.silent_for = timeout
            self.process.kill()

    def obituary(self) -> str:
        """How the process ended, in words."""
        code = self.process.wait()
        if self.silent_for:
            return f"decoder hung (no answer in {self.silent_for:g} s)"
        if code < 0:
            return f"decoder died (signal {-code})"
        self.complaints.seek(0)
        last = self.complaints.read().decode("utf-8", "replace").strip().splitlines()[-1:]
        return f"decoder died (exit code {code}{''.join(': ' + shown(line) for line in last)})"

    def close(self) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # bytes not yet sent to a process that is gone
                pipe.close()  # type: ignore[union-attr]
        self.process.wait()
        self.complaints.close()


def decode_files(
    files: Sequence[ImageFile],
    size: int,
    fit: str = "crop",
    *,
    timeout: float = 60.0,
    progress: Progress | None = None,
) -> DecodedFiles:
    """Decode every file to (3, size, size), fitted by `crop` or `squash`.

    A worker that dies, or owes an image for `timeout` seconds, is an error.
    """
    result = DecodedFiles.empty(len(files), size)
    batches = iter([range(i, min(i + BATCH_FILES, len(files))) for i in range(0, len(files), BATCH_FILES)])
    count = min(_cores(), MOST_WORKERS, -(-len(files) // BATCH_FILES))
    with ExitStack() as stack:
        workers = [stack.enter_context(closing(Worker(size, fit))) for _ in range(count)]
        threads = stack.enter_context(ThreadPoolExecutor(max(count, 1)))
        for worker in workers:
            stack.callback(worker.process.kill)  # frees a thread that awaits an answer
        jobs = [threads.submit(_drain, worker, files, batches, result) for worker in workers]
        for _ in _watch(jobs, workers, timeout):
            if progress is not None:
                progress(sum(worker.done for worker in workers), len(files))
    return result


def _watch(jobs: Sequence[Future[None]], workers: Sequence[Worker], timeout: float) -> Iterator[None]:
    """Yield every now and then until all jobs are done; the first job that failed raises here."""
    pending = set(jobs)
    while pending:
        finished, pending = wait(pending, LOOK_EVERY, FIRST_EXCEPTION)
        for job in finished:
            job.result()
        for worker in workers:
            worker.end_if_hung(timeout)
        yield


def _drain(worker: Worker, files: Sequence[ImageFile], batches: Iterator[range], into: DecodedFiles) -> None:
    """Take batches until none is left; which worker gets which does not matter."""
    try:
        for batch in batches:
            for indices, blobs in _read_files(worker, files, batch, into):
                worker.decode(indices, blobs, into)
    except (EOFError, OSError) as error:
        name = shown(files[worker.current].name)
        raise DataError(f"{worker.obituary()} near {name}; repair or remove that file and start again") from error


def _read_files(
    worker: Worker, files: Sequence[ImageFile], batch: range, into: DecodedFiles
) -> Iterator[tuple[list[int], list[bytes]]]:
    """The batch's bytes in portions that fit in memory; what cannot be read is bad already."""
    indices: list[int] = []
    blobs: list[bytes] = []
    for index in batch:
        try:
            blobs.append(files[index].read())
            indices.append(index)
        except DataError as error:
            into.bad[index] = str(error)
            worker.done += 1
        if sum(map(len, blobs)) > BATCH_BYTES:
            yield indices, blobs
            indices, blobs = [], []
    if indices:
        yield indices, blobs


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
