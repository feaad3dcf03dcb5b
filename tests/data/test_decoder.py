"""The decoding pool with real processes that die, hang or raise (FAULTS 36, G15)."""

from __future__ import annotations

import io
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quatsphere.data import decode as decoder
from quatsphere.data.decode import ImageFile, decode_files
from quatsphere.errors import DataError

TIMEOUT = 1.5
"""Seconds without an answer that count as hung; a worker's start on a busy machine must fit in."""
STUB = """
import os, sys, time
sys.path.insert(0, {folder!r})
import images
real = images.decode
def decode(data, size, how):
    if data == b"kill":
        os.kill(os.getpid(), 9)
    if data == b"hang":
        open({began!r}, "w").write(str(time.monotonic()))
        time.sleep(1000)
    if data == b"exit":
        raise SystemExit("out of cheese")
    if data == b"raise":
        raise images.BadImage("raised")
    return real(data, size, how)
images.decode = decode
images.serve(int(sys.argv[1]), sys.argv[2], sys.stdin.buffer, sys.stdout.buffer)
"""


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (value, value, value)).save(buffer, "PNG")
    return buffer.getvalue()


def files_with(special: bytes, at: int, count: int = 300) -> list[ImageFile]:
    blobs = [png(i % 256) for i in range(count)]
    blobs[at] = special
    return [ImageFile(f"train/cat/{i}.png", lambda blob=blob: blob) for i, blob in enumerate(blobs)]  # type: ignore[misc]


@pytest.fixture
def began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Workers are stubs that obey files named `kill`, `hang`, ...; here they write when they began to hang."""
    script = tmp_path / "stub.py"
    script.write_text(STUB.format(folder=str(decoder.WORKER.parent), began=str(tmp_path / "began")))
    monkeypatch.setattr(decoder, "WORKER", script)
    return tmp_path / "began"


def children() -> set[str]:
    """Process ids of our children, dead ones that nobody waited for included."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def fail(special: bytes, at: int, timeout: float = 30.0) -> str:
    """The error message; no process may be left over."""
    before = children()
    with pytest.raises(DataError) as caught:
        decode_files(files_with(special, at), 4, timeout=timeout)
    assert children() <= before, "no orphans, no zombies"
    return str(caught.value)


def test_every_row_is_its_file() -> None:
    seen: list[tuple[int, int]] = []
    result = decode_files(files_with(png(7), 0), 4, progress=lambda done, total: seen.append((done, total)))
    assert result.images[:, 0, 0, 0].tolist() == [7, *(i % 256 for i in range(1, 300))]
    assert not result.bad
    assert not result.resized.any()
    assert seen[-1] == (300, 300)


def test_no_files_need_no_workers() -> None:
    assert len(decode_files([], 4).images) == 0


def test_unreadable_and_bad_files_are_listed_not_fatal() -> None:
    def refuse() -> bytes:
        raise DataError("cannot read it")

    files = files_with(b"text", 5)
    files[9] = ImageFile("train/cat/9.png", refuse)
    result = decode_files(files, 4)
    assert result.bad == {5: "not a PNG, JPEG or WebP image", 9: "cannot read it"}
    assert np.array_equal(result.images[10, 0], np.full((4, 4), 10))


@pytest.mark.usefixtures("began")
class TestTroubledWorkers:
    @pytest.mark.parametrize("at", [0, 200, 299])
    def test_killed(self, at: int) -> None:
        message = fail(b"kill", at)
        assert message.startswith(f"decoder died (signal 9) near train/cat/{at}.png; ")

    def test_hung(self, began: Path) -> None:
        message = fail(b"hang", 150, TIMEOUT)
        assert time.monotonic() - float(began.read_text()) < TIMEOUT + 1
        assert message.startswith("decoder hung (no answer in 1.5 s) near train/cat/150.png; ")

    def test_gave_up(self) -> None:
        message = fail(b"exit", 150)
        assert message.startswith("decoder died (exit code 1: out of cheese) near train/cat/150.png; ")

    def test_raised(self) -> None:
        assert decode_files(files_with(b"raise", 20), 4).bad == {20: "raised"}

    @pytest.mark.slow
    @pytest.mark.parametrize("special", [b"kill", b"hang", b"exit"])
    def test_thirty_times(self, special: bytes, began: Path) -> None:
        for at in np.random.default_rng(0).integers(0, 300, 30):
            assert f"near train/cat/{at}.png" in fail(special, int(at), TIMEOUT)
            assert special != b"hang" or time.monotonic() - float(began.read_text()) < TIMEOUT + 1


def test_worker_that_cannot_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "WORKER", tmp_path / "missing.py")
    with pytest.raises(DataError, match=r"decoder died \(exit code 2: .*missing.py"):
        decode_files(files_with(png(1), 0), 4)


def test_interrupt_leaves_no_process_behind() -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    before = children()
    with pytest.raises(KeyboardInterrupt):
        decode_files(files_with(png(1), 0, count=2000), 4, progress=interrupt)
    assert children() <= before


def test_workers_end_when_the_parent_is_killed() -> None:
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            workers = [decoder.Worker(4), decoder.Worker(4)]
            os.write(writer, " ".join(str(worker.process.pid) for worker in workers).encode())
            time.sleep(60)
        finally:
            os._exit(0)
    pids = os.read(reader, 100).decode().split()
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(_is_running(pid) for pid in pids):
        time.sleep(0.02)
    assert len(pids) == 2
    assert not any(_is_running(pid) for pid in pids)


def _is_running(pid: str) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"
