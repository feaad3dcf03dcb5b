"""`decode_files` with real subprocesses, some of which die, hang or raise."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.data_files import save_image
from PIL import Image

from quatsphere.data import decode
from quatsphere.data.decode import DecodedFiles
from quatsphere.errors import DataError

TIMEOUT = 1.5
STUB = """
import os, sys, time
sys.path.insert(0, {folder!r})
import decode
original = decode.decode
def stub(data, size, fit):
    if data == b"kill":
        os.kill(os.getpid(), 9)
    if data == b"hang":
        open({started!r}, "w").write(f"{{os.getpid()}} {{time.monotonic()}}")
        time.sleep(1000)
    if data == b"exit":
        raise SystemExit("out of cheese")
    if data == b"raise":
        raise decode.BadImage("raised")
    if data == b"slow":
        open({started!r}, "w").write(f"{{os.getpid()}} {{time.monotonic()}}")
        time.sleep(1)
        data = {png!r}
    return original(data, size, fit)
decode.decode = stub
decode.serve()
"""


def grey_png(level: int) -> bytes:
    return save_image(Image.new("RGB", (4, 4), (level, level, level)))


def files_with(special: bytes, at: int, count: int = 300) -> dict[str, bytes]:
    """Grey images, file i with level i modulo 256, and one file with special content."""
    blobs = [grey_png(i % 256) for i in range(count)]
    blobs[at] = special
    return {f"train/cat/{i}.png": blob for i, blob in enumerate(blobs)}


def decode_files(files: dict[str, bytes], size: int, **options: Any) -> DecodedFiles:
    return decode.decode_files(list(files), files.__getitem__, size, **options)


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Workers that react to the contents `kill`, `hang` etc.; at the last one they write (pid, time) to this path."""
    script, path = tmp_path / "stub.py", tmp_path / "started"
    folder = str(Path(decode.WORKER_SCRIPT).parent)
    script.write_text(STUB.format(folder=folder, started=str(path), png=grey_png(1)))
    monkeypatch.setattr(decode, "WORKER_SCRIPT", str(script))
    return path


def children() -> set[str]:
    """Ids of child processes, zombies included."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def decoding_error(special: bytes, at: int, timeout: float = 30.0) -> str:
    """Message of the DataError; no process may be left over."""
    before = children()
    with pytest.raises(DataError) as caught:
        decode_files(files_with(special, at), 4, timeout=timeout)
    assert children() <= before, "no orphans, no zombies"
    return str(caught.value)


def seconds_since(started: Path) -> float:
    return time.monotonic() - float(started.read_text().split()[1])


def test_each_row_is_its_file() -> None:
    progress: list[tuple[int, int]] = []
    decoded = decode_files(files_with(grey_png(7), 0), 4, progress=lambda done, total: progress.append((done, total)))
    assert decoded.images[:, 0, 0, 0].tolist() == [7, *(i % 256 for i in range(1, 300))]
    assert not decoded.bad
    assert not decoded.resized.any()
    assert progress[-1] == (300, 300)


def test_no_files() -> None:
    assert len(decode_files([], 4).images) == 0


def test_unreadable_and_bad_files_are_listed_and_not_fatal() -> None:
    files = files_with(b"text", 5)

    def read(name: str) -> bytes:
        if name == "train/cat/9.png":
            raise DataError("cannot read it")
        return files[name]

    decoded = decode.decode_files(list(files), read, 4)
    assert decoded.bad == {5: "not a PNG, JPEG or WebP image", 9: "cannot read it"}
    assert np.array_equal(decoded.images[10, 0], np.full((4, 4), 10))


def test_large_files_are_sent_in_several_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peak memory does not grow with the number of files."""
    sizes: list[int] = []
    run_decoder = decode.run_decoder

    def counting(blobs: list[bytes], *options: object) -> object:
        sizes.append(sum(map(len, blobs)))
        return run_decoder(blobs, *options)

    monkeypatch.setattr(decode, "run_decoder", counting)
    monkeypatch.setattr(decode, "CHUNK_BYTES", 4000)
    decoded = decode_files(files_with(grey_png(7), 0), 4)
    assert decoded.images[:, 0, 0, 0].tolist() == [7, *(i % 256 for i in range(1, 300))]
    assert max(sizes) < 4000 + len(grey_png(0))
    assert len(sizes) >= 3


@pytest.mark.usefixtures("started")
class TestFailingWorkers:
    @pytest.mark.parametrize("at", [0, 200, 299])
    def test_decoder_that_is_killed_is_an_error(self, at: int) -> None:
        message = decoding_error(b"kill", at)
        assert message.startswith(f"decoder died (signal 9) near train/cat/{at}.png; ")

    def test_decoder_that_hangs_is_an_error(self, started: Path) -> None:
        message = decoding_error(b"hang", 150, TIMEOUT)
        assert seconds_since(started) < TIMEOUT + 1
        assert message.startswith("decoder hung (no answer in 1.5 s) near train/cat/150.png; ")

    def test_decoder_that_exits_is_an_error(self) -> None:
        message = decoding_error(b"exit", 150)
        assert message.startswith("decoder died (exit code 1: out of cheese) near train/cat/150.png; ")

    def test_exception_in_the_decoder_is_a_bad_file(self) -> None:
        assert decode_files(files_with(b"raise", 20), 4).bad == {20: "raised"}

    @pytest.mark.slow
    @pytest.mark.parametrize("special", [b"kill", b"hang", b"exit"])
    def test_failing_decoder_names_the_image_thirty_times(self, special: bytes, started: Path) -> None:
        for at in np.random.default_rng(0).integers(0, 300, 30):
            assert f"near train/cat/{at}.png" in decoding_error(special, int(at), TIMEOUT)
            assert special != b"hang" or seconds_since(started) < TIMEOUT + 1


def test_worker_that_cannot_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "WORKER_SCRIPT", str(tmp_path / "missing.py"))
    with pytest.raises(DataError, match=r"decoder died \(exit code 2: .*missing.py"):
        decode_files(files_with(grey_png(1), 0), 4)


def test_worker_does_not_import_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "stub.py"
    folder = str(Path(decode.WORKER_SCRIPT).parent)
    script.write_text(f"import sys; sys.path.insert(0, {folder!r})\nimport decode; sys.exit('torch' in sys.modules)")
    monkeypatch.setattr(decode, "WORKER_SCRIPT", str(script))
    assert decode.run_decoder([b""], 4, "crop", 1.0) == ([], "decoder died (exit code 0)")


def test_interrupt_leaves_no_process_behind() -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    before = children()
    with pytest.raises(KeyboardInterrupt):
        decode_files(files_with(grey_png(1), 0, count=2000), 4, progress=interrupt)
    assert children() <= before


def test_workers_end_when_the_parent_is_killed(started: Path) -> None:
    parent = os.fork()
    if parent == 0:
        try:
            decode_files(files_with(b"slow", 0), 4)
        finally:
            os._exit(0)
    _wait_until(started.exists)
    _wait_until(lambda: bool(started.read_text()))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    pid = started.read_text().split()[0]
    assert _is_running(pid)
    _wait_until(lambda: not _is_running(pid))


def _wait_until(condition: object, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_running(pid: str) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"
