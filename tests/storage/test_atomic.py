"""Atomic writes, also when the process is killed or the disk is full; digests and bounded reads."""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from quatsphere.errors import ResourceError
from quatsphere.storage import atomic
from quatsphere.storage.atomic import read_regular, sha256_bytes, sha256_file

ABC_DIGEST = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
"""SHA-256 of `abc`, the example of the standard."""
INSIDE_A_WRITE = [name for name in atomic.FAILPOINTS if name != "before_metrics"]


def test_write_replaces_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "naïve name.txt"
    for text in ("first", "", "third " * 1000):
        atomic.write_text(path, text)
        assert path.read_text() == text
        assert list(tmp_path.iterdir()) == [path]


def test_json_has_null_for_numbers_that_are_not_finite(tmp_path: Path) -> None:
    value = {"loss": math.nan, "list": [1.5, math.inf, (-math.inf, 2)], "é": None, "flag": True}
    atomic.write_json(tmp_path / "x.json", value)
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text) == {"loss": None, "list": [1.5, None, [None, 2]], "é": None, "flag": True}
    assert list(json.loads(text)) == list(value)


@pytest.mark.parametrize("point", INSIDE_A_WRITE)
def test_kill_during_a_write_leaves_old_or_new_content(tmp_path: Path, forked, point: str) -> None:
    path = tmp_path / "file"
    atomic.write_bytes(path, b"old")
    assert forked(lambda: atomic.write_bytes(path, b"new" * 100), QUATSPHERE_FAILPOINT=point) == 137
    assert path.read_bytes() == (b"new" * 100 if point == "after_rename" else b"old")
    leftovers = [p.name for p in tmp_path.iterdir() if p != path]
    assert leftovers == [] if point in ("before_write", "after_rename") else len(leftovers) == 1
    assert atomic.remove_leftovers(tmp_path) == leftovers
    assert list(tmp_path.iterdir()) == [path]


def test_failpoint_counts_calls(tmp_path: Path, forked) -> None:
    def write_three() -> None:
        for name in "abc":
            atomic.write_text(tmp_path / name, name)

    assert forked(write_three, QUATSPHERE_FAILPOINT="before_write:3") == 137
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]
    assert forked(write_three, QUATSPHERE_FAILPOINT="before_write:4") == 0


def test_failpoints_are_not_in_the_program(tmp_path: Path) -> None:
    """The variable works only in processes of the tests, which replace the function."""
    code = "import sys, pathlib; from quatsphere.storage import atomic; "
    code += "atomic.write_text(pathlib.Path(sys.argv[1]), 'x')"
    environment = {**os.environ, "QUATSPHERE_FAILPOINT": "before_write:abc"}
    subprocess.run([sys.executable, "-c", code, tmp_path / "x"], env=environment, check=True)
    environment["QUATSPHERE_FAILPOINT"] = "before_write"
    subprocess.run([sys.executable, "-c", code, tmp_path / "y"], env=environment, check=True)
    assert [(tmp_path / name).read_text() for name in "xy"] == ["x", "x"]


def test_names_that_are_not_utf8_can_be_stored(tmp_path: Path) -> None:
    name = os.fsdecode(b"r_\xff\xfe")
    atomic.write_json(tmp_path / "x.json", {"command": [name, "ü"], name: 1})
    assert json.loads((tmp_path / "x.json").read_bytes()) == {"command": [name, "ü"], name: 1}
    assert "ü" in (tmp_path / "x.json").read_text()


def test_leftovers_of_live_processes_stay(tmp_path: Path) -> None:
    gone = []
    dead = 2**22 + 1  # above the largest pid Linux gives
    (tmp_path / "deep").mkdir()
    own = os.getpid()
    for name in (f".a.tmp.{own}", f"deep/.b.tmp.{dead}", f"step-000001.tmp.{dead}", ".c.tmp.0", ".d.tmp." + "9" * 30):
        path = tmp_path / name
        if name.startswith("step"):
            path.mkdir()
            (path / "weights.safetensors").write_text("half")
        else:
            path.write_text("half")
        gone.append(path.name)
    stays = [f".e.tmp.{os.getppid()}", "notes.tmp.txt", ".tmp.12x"]
    for name in stays:
        (tmp_path / name).write_text("mine")
    assert sorted(atomic.remove_leftovers(tmp_path)) == sorted(gone)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*stays, "deep"])
    assert atomic.remove_leftovers(tmp_path / "no such folder") == []


def test_full_disk_states_needed_and_free_space(small_disk: Path) -> None:
    atomic.write_bytes(small_disk / "file", b"old")
    (small_disk / "filler").write_bytes(bytes(700_000))
    with pytest.raises(ResourceError, match=r"^file needs 0\.9 MB, 0\.3 MB free on .*small disk; free some space$"):
        atomic.write_bytes(small_disk / "file", bytes(900_000))
    assert sorted(p.name for p in small_disk.iterdir()) == ["file", "filler"]
    assert (small_disk / "file").read_bytes() == b"old"
    (small_disk / "filler").unlink()
    atomic.write_bytes(small_disk / "file", bytes(900_000))
    with pytest.raises(
        ResourceError, match=r"^no space for 2 checkpoints \(5.0 MB needed, 0.1 MB free on .*\); free some space$"
    ):
        atomic.require_space("2 checkpoints", small_disk, 5_000_000)
    atomic.require_space("2 checkpoints", small_disk / "not yet there", 1000)


def test_file_size_limit_is_reported_as_a_full_disk(tmp_path: Path, forked) -> None:
    atomic.write_bytes(tmp_path / "file", b"old")

    def write_beyond_limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        with pytest.raises(ResourceError, match=r"^file needs 0\.9 MB, .* free on .*; free some space$"):
            atomic.write_bytes(tmp_path / "file", bytes(900_000))

    assert forked(write_beyond_limit) == 0
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("file", b"old")]


def test_other_disk_errors_are_one_line(tmp_path: Path, read_only_folder: Path) -> None:
    with pytest.raises(ResourceError, match=r"^cannot write x \(No such file or directory in .*nowhere\); check the"):
        atomic.write_text(tmp_path / "nowhere" / "x", "text")
    with pytest.raises(ResourceError, match=r"^cannot write x \((Read-only file system|Permission denied) in "):
        atomic.write_text(read_only_folder / "x", "text")


def test_remove_folder_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "step").mkdir()
    (tmp_path / "step" / "file").write_text("x")
    atomic.remove_folder(tmp_path / "step")
    assert list(tmp_path.iterdir()) == []


def test_digest_of_the_standard_example(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256_bytes(b"abc") == sha256_file(tmp_path / "abc") == ABC_DIGEST


def test_digest_of_a_large_file(tmp_path: Path) -> None:
    data = bytes(range(256)) * 9000
    (tmp_path / "big").write_bytes(data)
    assert sha256_file(tmp_path / "big") == sha256_bytes(data)


def test_read_regular_reads_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_regular(tmp_path / "file", 4)


def test_read_regular_refuses_pipes_folders_and_devices(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
            read_regular(path, 100)
    with pytest.raises(OSError, match="symbolic links"):
        read_regular(tmp_path / "loop", 100)
