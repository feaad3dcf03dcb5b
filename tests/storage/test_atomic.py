"""Whatever kills a write, the file is the old one or the new one."""

from __future__ import annotations

import json
import math
import os
import resource
from pathlib import Path

import pytest

from quatsphere.errors import ResourceError
from quatsphere.storage import atomic

INSIDE_A_WRITE = [name for name in atomic.FAILPOINTS if name != "before_metrics"]


def test_write_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "naïve name.txt"
    for text in ("first", "", "third " * 1000):
        atomic.write_text(path, text)
        assert path.read_text() == text
        assert list(tmp_path.iterdir()) == [path]


def test_json_has_null_for_what_json_cannot_write(tmp_path: Path) -> None:
    value = {"loss": math.nan, "list": [1.5, math.inf, (-math.inf, 2)], "é": None, "flag": True}
    atomic.write_json(tmp_path / "x.json", value)
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text) == {"loss": None, "list": [1.5, None, [None, 2]], "é": None, "flag": True}
    assert list(json.loads(text)) == list(value)


@pytest.mark.parametrize("point", INSIDE_A_WRITE)
def test_death_in_a_write_leaves_old_or_new(tmp_path: Path, forked, point: str) -> None:
    path = tmp_path / "file"
    atomic.write_bytes(path, b"old")
    assert forked(lambda: atomic.write_bytes(path, b"new" * 100), QUATSPHERE_FAILPOINT=point) == 137
    assert path.read_bytes() == (b"new" * 100 if point == "after_rename" else b"old")
    leftovers = [p.name for p in tmp_path.iterdir() if p != path]
    assert leftovers == [] if point in ("before_write", "after_rename") else len(leftovers) == 1
    assert atomic.remove_leftovers(tmp_path) == leftovers
    assert list(tmp_path.iterdir()) == [path]


def test_failpoint_counts_passes(tmp_path: Path, forked) -> None:
    def write_three() -> None:
        for name in "abc":
            atomic.write_text(tmp_path / name, name)

    assert forked(write_three, QUATSPHERE_FAILPOINT="before_write:3") == 137
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]
    assert forked(write_three, QUATSPHERE_FAILPOINT="before_write:4") == 0


def test_leftovers_of_the_living_stay(tmp_path: Path) -> None:
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


def test_full_disk_says_needed_and_free_and_leaves_no_partial(small_disk: Path) -> None:
    atomic.write_bytes(small_disk / "file", b"old")
    (small_disk / "filler").write_bytes(bytes(700_000))
    with pytest.raises(ResourceError, match=r"^file needs 0\.9 MB, 0\.3 MB free on .*small disk; free some space$"):
        atomic.write_bytes(small_disk / "file", bytes(900_000))
    assert sorted(p.name for p in small_disk.iterdir()) == ["file", "filler"]
    assert (small_disk / "file").read_bytes() == b"old"
    (small_disk / "filler").unlink()
    atomic.write_bytes(small_disk / "file", bytes(900_000))
    with pytest.raises(
        ResourceError, match=r"^no room for 2 checkpoints \(5.0 MB needed, 0.1 MB free on .*\); free some space$"
    ):
        atomic.require_space("2 checkpoints", small_disk, 5_000_000)
    atomic.require_space("2 checkpoints", small_disk / "not yet there", 1000)


def test_size_limit_is_a_full_disk(tmp_path: Path, forked) -> None:
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
