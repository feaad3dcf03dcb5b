"""The last good checkpoint survives kills at any point of a save, damage, full disks and pruning."""

from __future__ import annotations

import errno
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from quatsphere.errors import CheckpointError, ConfigError, ResourceError
from quatsphere.storage import atomic
from quatsphere.storage.atomic import sha256_file
from quatsphere.storage.checkpoint import (
    Checkpoint,
    load_best,
    load_checkpoint,
    load_last_good,
    prune,
    read_pointer,
    save_checkpoint,
)
from quatsphere.storage.run_folder import RunFolder
from quatsphere.storage.sealed_json import seal, unseal

FIXTURES = Path(__file__).parent / "fixtures"
POINTS = [name for name in atomic.FAILPOINTS if name != "before_metrics"]


def make(step: int, size: int = 50) -> Checkpoint:
    """Checkpoint whose tensors follow from its step."""
    generator = torch.Generator().manual_seed(step)
    weights = {"q": torch.randn(size, 4, generator=generator), "step": torch.tensor(step)}
    return Checkpoint(step, weights, {"q.exp_avg": torch.randn(size, 3, generator=generator)}, {"epoch": step // 10})


def assert_same(first: Checkpoint | None, second: Checkpoint) -> None:
    assert first is not None
    assert (first.step, first.meta) == (second.step, second.meta)
    for one, two in ((first.weights, second.weights), (first.state, second.state)):
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)


def refuse_warning(message: str) -> None:
    raise AssertionError(message)


def steps(folder: Path) -> list[int]:
    return sorted(int(p.name[5:]) for p in folder.iterdir() if p.is_dir())


def pointers(folder: Path) -> tuple[str | None, str | None]:
    best, last = (read_pointer(folder, name) for name in ("best", "last"))
    return best and best.name, last and last.name


def damage(folder: Path, step: int, name: str = "weights.safetensors") -> None:
    path = folder / f"step-{step:06d}" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_save_and_load(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    assert load_last_good(folder, refuse_warning) is None
    path = save_checkpoint(folder, make(10), best=True)
    assert path == folder / "step-000010"
    save_checkpoint(folder, make(20), best=False)
    assert pointers(folder) == ("step-000010", "step-000020")
    assert (folder / "last").read_text() == "step-000020\n"
    assert_same(load_checkpoint(path), make(10))
    assert_same(load_best(folder), make(10))
    assert_same(load_last_good(folder, refuse_warning), make(20))


def test_saving_a_step_again_keeps_files_and_updates_meta(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make(10), best=False)
    again = make(10)
    again = Checkpoint(10, again.weights, again.state, {"epoch": 1, "val_accuracy": 0.5})
    save_checkpoint(tmp_path, again, best=True)
    assert_same(load_best(tmp_path), again)
    save_checkpoint(tmp_path, again, best=False)
    assert pointers(tmp_path) == ("step-000010", "step-000010")


@pytest.mark.parametrize("point", POINTS)
def test_kill_during_a_save_loses_nothing(tmp_path: Path, forked, point: str) -> None:
    """Kill a save of step 20 at every call of a failpoint: the newest checkpoint is a complete 10 or 20."""
    kill_at_every_call(tmp_path, forked, point)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_repeated_kills_at_each_point(tmp_path: Path, forked, point: str) -> None:
    for trial in range(14):
        (tmp_path / str(trial)).mkdir()
        kill_at_every_call(tmp_path / str(trial), forked, point)


def kill_at_every_call(tmp_path: Path, forked, point: str) -> None:
    kills = 0
    for nth in range(1, 20):
        folder = tmp_path / str(nth)
        save_checkpoint(folder, make(10), best=True)
        code = forked(lambda: save_checkpoint(folder, make(20), best=True), QUATSPHERE_FAILPOINT=f"{point}:{nth}")  # noqa: B023
        survivor = load_last_good(folder, refuse_warning)
        assert survivor is not None
        assert_same(survivor, make(survivor.step))
        assert_same(load_best(folder), survivor)
        assert pointers(folder)[1] == f"step-{survivor.step:06d}"
        if code == 0:
            break
        assert code == 137
        kills += 1
        save_checkpoint(folder, make(20), best=True)
        atomic.remove_leftovers(folder)
        assert sorted(p.name for p in folder.iterdir()) == ["best", "last", "step-000010", "step-000020"]
    assert kills == {"before_rename": 3, "after_rename": 3}.get(point, 5)


CALLS = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")
"""Audit events of Python, each raised just before its system call; `os.rename` includes `os.replace`."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt() -> None:
    raise KeyboardInterrupt


def act_before_call(nth: int, action: Callable[[], None]) -> None:
    """Call `action` just before the n-th call of this process that changes a folder or opens a file to write."""
    left = [nth]

    def count(event: str, words: tuple) -> None:
        if event in CALLS or (event == "open" and words[2] & WRITING):
            left[0] -= 1
            if left[0] == 0:
                action()

    sys.addaudithook(count)


OLD, NEW = make(20), replace(make(20), weights={"q": torch.ones(50, 4), "step": torch.tensor(20)})


@pytest.mark.parametrize(("action", "older"), [(kill, []), (kill, [make(10)]), (interrupt, [])])
def test_replaced_step_is_never_lost(tmp_path: Path, forked, action, older: list[Checkpoint]) -> None:
    """Interrupted before each call, step 20 is complete, the old or the new one, for readers and the next process."""
    seen: list[bool] = []
    for nth in range(1, 200):
        folder = tmp_path / str(nth)
        for checkpoint in [*older, OLD]:
            save_checkpoint(folder, checkpoint, best=True)

        def replace_step(folder: Path = folder, nth: int = nth) -> None:
            act_before_call(nth, action)
            save_checkpoint(folder, NEW, best=True)

        code = forked(replace_step)
        survivor = load_best(folder)
        seen.append(torch.equal(survivor.weights["q"], NEW.weights["q"]))
        assert_same(survivor, NEW if seen[-1] else OLD)
        assert_same(load_last_good(folder, refuse_warning), survivor)
        if code == 0:
            break
        assert code == (-signal.SIGKILL if action is kill else 1)
        save_checkpoint(folder, NEW, best=True)
        atomic.remove_leftovers(folder)
        assert_same(load_best(folder), NEW)
        names = [f"step-{checkpoint.step:06d}" for checkpoint in [*older, NEW]]
        assert sorted(path.name for path in folder.iterdir()) == ["best", "last", *names]
    assert code == 0
    assert seen == sorted(seen)
    assert seen.count(False) > 5
    assert seen.count(True) > 5


@pytest.mark.parametrize("replaced", [False, True])
def test_lock_finishes_an_interrupted_replacement(tmp_path: Path, replaced: bool) -> None:
    """A step that was moved aside is moved back, or deleted if the new one exists."""
    folder = tmp_path / "checkpoints"
    save_checkpoint(folder, OLD, best=True)
    os.rename(folder / "step-000020", folder / "step-000020.old")
    if replaced:
        save_checkpoint(tmp_path / "new", NEW, best=True)
        os.rename(tmp_path / "new" / "step-000020", folder / "step-000020")
    assert_same(load_best(folder), NEW if replaced else OLD)
    with RunFolder(tmp_path).lock():
        assert sorted(path.name for path in folder.iterdir()) == ["best", "last", "step-000020"]
    assert_same(load_last_good(folder, refuse_warning), NEW if replaced else OLD)


def kill_at_random_times(folder: Path, kills: int) -> None:
    """Kill a process that keeps saving at random times: the newest checkpoint is complete and steps never decrease."""
    dice, newest, longest = random.Random(0), 0, 0.06
    for _ in range(kills):
        pid = os.fork()
        if pid == 0:
            try:
                for step in range(newest + 1, newest + 10_000):
                    save_checkpoint(folder, make(step), best=step % 3 == 0)
                    prune(folder, 2)
            finally:
                os._exit(1)
        time.sleep(dice.uniform(0.0, longest))
        os.kill(pid, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        survivor = load_last_good(folder, refuse_warning)
        atomic.remove_leftovers(folder)
        if survivor is None:
            longest *= 2  # a busy machine
        else:
            assert survivor.step >= newest
            assert_same(survivor, make(survivor.step))
            assert survivor.step < 3 or load_best(folder).step == survivor.step // 3 * 3
            newest = survivor.step
    assert newest > 0


def test_random_kills(tmp_path: Path) -> None:
    kill_at_random_times(tmp_path, 15)


@pytest.mark.slow
def test_many_random_kills(tmp_path: Path) -> None:
    kill_at_random_times(tmp_path, 200)


def test_damaged_checkpoint_falls_back_with_a_note(tmp_path: Path) -> None:
    for step in (1180, 1190, 1200):
        save_checkpoint(tmp_path, make(step), best=step != 1190)
    damage(tmp_path, 1200)
    notes: list[str] = []
    assert_same(load_last_good(tmp_path, notes.append), make(1190))
    assert notes == ["checkpoint step 1200 is damaged (hash); falling back to step 1190"]
    assert pointers(tmp_path) == ("step-001180", "step-001190")
    os.truncate(tmp_path / "step-001190" / "state.safetensors", 100)
    notes.clear()
    assert_same(load_last_good(tmp_path, notes.append), make(1180))
    assert notes[1] == "checkpoint step 1190 is damaged (size); falling back to step 1180"


def test_no_good_checkpoint_is_an_error(tmp_path: Path) -> None:
    for step in (10, 20):
        save_checkpoint(tmp_path, make(step), best=True)
        damage(tmp_path, step, "manifest.json")
    notes: list[str] = []
    with pytest.raises(
        CheckpointError,
        match=r"^no good checkpoint left \(.*: 2 damaged, step 10: hash\); start again under another name$",
    ):
        load_last_good(tmp_path, notes.append)
    assert len(notes) == 1
    with pytest.raises(CheckpointError, match="step 20 is damaged"):
        load_best(tmp_path)


def test_abandoned_steps_are_replaced_and_pruned(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save_checkpoint(tmp_path, make(step), best=False)
    damage(tmp_path, 20)
    damage(tmp_path, 30)
    assert_same(load_last_good(tmp_path, lambda message: None), make(10))
    save_checkpoint(tmp_path, make(20), best=False)
    assert_same(load_checkpoint(tmp_path / "step-000020"), make(20))
    prune(tmp_path, 2)
    assert steps(tmp_path) == [10, 20]


def test_prune_keeps_newest_and_best(tmp_path: Path) -> None:
    for step in range(10, 90, 10):
        save_checkpoint(tmp_path, make(step), best=step in (20, 30, 80))
    prune(tmp_path, 3)
    assert steps(tmp_path) == [30, 60, 70, 80]
    save_checkpoint(tmp_path, make(90), best=False)
    save_checkpoint(tmp_path, make(100), best=False)
    prune(tmp_path, 2)
    assert steps(tmp_path) == [80, 90, 100]
    with pytest.raises(ConfigError, match="keep must be >= 2"):
        prune(tmp_path, 1)


def test_prune_deletes_nothing_unless_last_is_good(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        save_checkpoint(tmp_path, make(step), best=False)
    damage(tmp_path, 40)
    prune(tmp_path, 2)
    (tmp_path / "last").unlink()
    prune(tmp_path, 2)
    assert steps(tmp_path) == [10, 20, 30, 40]


@pytest.mark.parametrize("text", ["", "step-000099", "../../etc", "x" * 1000, "\0", "step-000010\nstep-000020"])
def test_invalid_pointers_do_no_harm(tmp_path: Path, text: str) -> None:
    save_checkpoint(tmp_path, make(10), best=True)
    for name in ("best", "last"):
        (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError) as info:
        load_best(tmp_path)
    assert "\n" not in str(info.value)
    assert_same(load_last_good(tmp_path, refuse_warning), make(10))
    assert pointers(tmp_path) == ("step-000010", "step-000010")


def test_newer_format_is_not_damage(tmp_path: Path) -> None:
    """Falling back to an older checkpoint would discard the newer version's work."""
    save_checkpoint(tmp_path, make(10), best=True)
    manifest = save_checkpoint(tmp_path, make(20), best=True) / "manifest.json"
    manifest.write_bytes(seal({**unseal(manifest.read_bytes()), "format": 2, "quatsphere": "9.9"}))
    with pytest.raises(CheckpointError, match=r"written by quatsphere 9\.9 \(format 2\)"):
        load_last_good(tmp_path, refuse_warning)


class Gadget:
    """Creates a marker file when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return os.system, (f"touch '{self.marker}'",)


@pytest.mark.parametrize("name", ["weights.safetensors", "state.safetensors"])
def test_pickle_with_a_valid_digest_is_refused_and_not_run(tmp_path: Path, name: str) -> None:
    """An attacker can compute digests, so they cannot be the protection against code."""
    path = save_checkpoint(tmp_path / "checkpoints", make(10), best=True)
    torch.save(Gadget(tmp_path / "marker"), path / name)
    with pytest.raises(CheckpointError, match=r"step 10 is damaged \((larger than|size|hash)"):
        load_checkpoint(path)
    fields = unseal((path / "manifest.json").read_bytes())
    fields["files"][name] = {"size": (path / name).stat().st_size, "sha256": sha256_file(path / name)}
    (path / "manifest.json").write_bytes(seal(fields))
    with pytest.raises(CheckpointError, match=rf"refused: not a safetensors file \(.*{name}: it is a zip archive"):
        load_checkpoint(path)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("kilobytes", [0, 3, 6, 100, 150])
def test_full_disk_keeps_the_previous_checkpoint(small_disk: Path, kilobytes: int) -> None:
    """With `kilobytes` free, a checkpoint of 0.2 MB fails and the older one loads; later saves succeed."""
    folder = small_disk / "checkpoints"
    save_checkpoint(folder, make(1190, size=7000), best=True)
    (small_disk / "filler").write_bytes(bytes(atomic.free_bytes(small_disk) // 4096 * 4096 - kilobytes * 1000))
    message = r"^checkpoint needs 0\.2 MB, .* free on .*checkpoints; step 1190 kept; free some space$"
    with pytest.raises(ResourceError, match=message):
        save_checkpoint(folder, make(1200, size=7000), best=True)
    assert sorted(p.name for p in folder.iterdir()) == ["best", "last", "step-001190"]
    assert_same(load_last_good(folder, refuse_warning), make(1190, size=7000))
    (small_disk / "filler").unlink()
    save_checkpoint(folder, make(1200, size=7000), best=True)
    assert_same(load_best(folder), make(1200, size=7000))


@pytest.mark.parametrize("name", ["best", "last"])
def test_disk_that_is_full_after_the_tensors_is_reported_for_the_checkpoint(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder fits exactly and a pointer does not: the message still has the needed and the free space."""
    save_checkpoint(tmp_path, make(1190), best=True)
    write = atomic.write_durable

    def full(path: Path, data: bytes) -> None:
        if path.name.startswith(f".{name}."):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(atomic, "write_durable", full)
        with pytest.raises(ResourceError, match=r"^checkpoint needs .* free on .*; step 1190 kept; free some space$"):
            save_checkpoint(tmp_path, make(1200), best=True)
    assert not list(tmp_path.glob("*.tmp.*"))
    save_checkpoint(tmp_path, make(1200), best=True)
    assert_same(load_best(tmp_path), make(1200))
    assert_same(load_last_good(tmp_path, refuse_warning), make(1200))


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("format-*/step-*")), ids=lambda path: path.parent.name)
def test_every_released_format_loads(path: Path) -> None:
    """Fixtures of released formats, made with `save_checkpoint(FIXTURES / "format-N", ..., best=True)`, stay."""
    loaded = load_checkpoint(path)
    assert loaded.step == 3
    assert loaded.meta == {"epoch": 1, "accuracy": 0.1, "name": "été", "none": None}
    assert torch.equal(loaded.weights["q"], torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    assert torch.equal(loaded.state["step"], torch.tensor(3))
