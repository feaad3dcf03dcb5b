"""Run folders: claims, locks, and metrics in whole lines."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest

from quatsphere.errors import CheckpointError, ConfigError, ResourceError
from quatsphere.storage import atomic
from quatsphere.storage.run_folder import RunFolder
from quatsphere.storage.safe_yaml import write_yaml


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def run(tmp_path: Path, notes: list[str]) -> RunFolder:
    run = RunFolder(tmp_path / "x", notes.append)
    run.claim(resume=False)
    return run


def test_claim_creates_and_may_be_repeated(run: RunFolder) -> None:
    with run.lock():
        run.claim(resume=False)
        run.claim(resume=True)
    assert os.listdir(run.path) == [".lock"]


def test_existing_run_is_not_overwritten(run: RunFolder) -> None:
    run.checkpoints.mkdir()
    with pytest.raises(ConfigError, match=r"^run 'x' exists; use --resume or another name$"):
        run.claim(resume=False)
    for epoch in (11, 12):
        run.append_metrics({"epoch": epoch})
    run.append_metrics({"step": 99})
    with pytest.raises(ConfigError, match=r"^run 'x' exists \(epoch 12\); use --resume or another name$"):
        run.claim(resume=False)
    write_yaml(run.config, {"train": {"epochs": 500}})
    with pytest.raises(ConfigError, match=r"^run 'x' exists \(epoch 12 of 500\); use --resume or another name$"):
        run.claim(resume=False)
    run.claim(resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_folder_with_other_files_is_refused(run: RunFolder, resume: bool) -> None:
    (run.path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"^'x' holds other files and no run \(.*: thesis\.tex\); use another name$"):
        run.claim(resume=resume)


def test_folder_with_leftovers_only_counts_as_empty(run: RunFolder, forked) -> None:
    assert forked(lambda: write_yaml(run.config, {"a": 1}), QUATSPHERE_FAILPOINT="before_rename") == 137
    assert len(os.listdir(run.path)) == 1
    run.claim(resume=False)
    with run.lock():
        assert os.listdir(run.path) == [".lock"]


@pytest.mark.parametrize("name", ["with space", "ünïcödé-模型", "a" * 200, "-x", "quo'te", "new\nline"])
def test_unusual_names(tmp_path: Path, name: str) -> None:
    run = RunFolder(tmp_path / name)
    run.claim(resume=False)
    with run.lock():
        run.append_metrics({"epoch": 1})
    assert run.read_metrics() == [{"epoch": 1}]


def test_path_of_300_characters(tmp_path: Path) -> None:
    parent = tmp_path / ("d" * 150) / ("e" * 150)
    parent.mkdir(parents=True)
    RunFolder(parent / "x").claim(resume=False)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/x", r"no folder .*missing \(for run 'x'\); create it or use another --run-dir"),
        ("n" * 300, r"File name too long\); use another --run-dir"),
        ("n" * 300 + "/x", r"File name too long|no folder"),
        ("nul\0byte", r"cannot use run folder \(.*null.*\); use another --run-dir"),
        ("file", r"cannot use run folder \(.*: (File exists|Not a directory)\); use another --run-dir"),
        ("file/x", r"no folder .*file \(for run 'x'\)"),
    ],
    ids=["missing parent", "long name", "long parent", "NUL", "a file", "below a file"],
)
def test_impossible_paths_are_one_line(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=reason) as info:
        RunFolder(str(tmp_path / name)).claim(resume=False)
    assert "\n" not in str(info.value)
    assert os.listdir(tmp_path) == ["file"]


def test_path_too_long_for_checkpoints_is_refused(tmp_path: Path) -> None:
    parent = tmp_path
    while len(str(parent)) < 3950:
        parent /= "d" * 100
    os.makedirs(parent)
    with pytest.raises(ConfigError, match="File name too long"):
        RunFolder(parent / ("x" * 120)).claim(resume=False)


def test_read_only_folders_are_refused(read_only_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot use run folder \(.*: (Read-only file system|Permission denied)\)"):
        RunFolder(read_only_folder / "x").claim(resume=False)
    with pytest.raises(ConfigError, match="cannot write to run"):
        RunFolder(read_only_folder).claim(resume=True)


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl", "config.yaml", "environment.json", "result.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "loop", "other"])
def test_files_that_can_never_be_written_are_refused_at_the_start(run: RunFolder, name: str, kind: str) -> None:
    path = run.path / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "other":
        path.write_text("x") if name == "checkpoints" else path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path.name)
    what = "folder" if name == "checkpoints" else "file"
    with pytest.raises(
        ResourceError, match=rf"{name} is not a {what}\); move it away or use another --run-dir$"
    ) as refused:
        run.claim(resume=True)
    assert refused.value.exit_code == 6


def test_second_process_is_refused(run: RunFolder, forked) -> None:
    def lock_again() -> None:
        with (
            pytest.raises(CheckpointError, match=f"run 'x' is locked by pid {os.getppid()} on host .* since "),
            run.lock(),
        ):
            pass

    with run.lock():
        assert forked(lock_again) == 0


def test_stale_lock_and_leftovers_are_cleared(run: RunFolder, notes: list[str], forked) -> None:
    def exit_with_lock() -> None:
        with run.lock():
            run.checkpoints.mkdir()
            (run.checkpoints / f"step-000007.tmp.{os.getpid()}").mkdir()
            atomic.write_json(run.result, {})

    assert forked(exit_with_lock, QUATSPHERE_FAILPOINT="half_written") == 137
    assert not run.finished
    with run.lock():
        assert sorted(os.listdir(run.path)) == [".lock", "checkpoints"]
        assert os.listdir(run.checkpoints) == []
    assert len(notes) == 1
    assert "took over a stale lock of run 'x': pid" in notes[0]


def test_metrics_are_json_lines_with_null_for_nan(run: RunFolder) -> None:
    assert run.read_metrics() == []
    run.append_metrics({"epoch": 1, "loss": math.nan, "beta": [0.5, math.inf]})
    run.append_metrics({"epoch": 2, "name": "é"})
    assert run.read_metrics() == [{"epoch": 1, "loss": None, "beta": [0.5, None]}, {"epoch": 2, "name": "é"}]


def test_metrics_are_truncated_to_an_offset(run: RunFolder) -> None:
    assert run.metrics_offset() == 0
    run.truncate_metrics(0)
    run.append_metrics({"epoch": 1})
    offset = run.metrics_offset()
    run.append_metrics({"epoch": 2})
    with open(run.metrics, "ab") as file:
        file.write(b'{"epoch": 3, "lo')
    assert run.read_metrics() == [{"epoch": 1}, {"epoch": 2}]
    run.truncate_metrics(offset)
    run.append_metrics({"epoch": 2})
    assert run.read_metrics() == [{"epoch": 1}, {"epoch": 2}]


def test_metrics_shorter_than_the_offset(run: RunFolder, notes: list[str]) -> None:
    run.truncate_metrics(50)
    run.append_metrics({"epoch": 1})
    with open(run.metrics, "ab") as file:
        file.write(b'{"ep')
    run.truncate_metrics(1000)
    run.append_metrics({"epoch": 2})
    assert run.read_metrics() == [{"epoch": 1}, {"epoch": 2}]
    assert len(notes) == 2
    assert "metrics are shorter than when the checkpoint was written" in notes[1]


def test_kill_before_a_line_leaves_whole_lines(run: RunFolder, forked) -> None:
    def append() -> None:
        for epoch in range(5):
            run.append_metrics({"epoch": epoch})

    assert forked(append, QUATSPHERE_FAILPOINT="before_metrics:3") == 137
    assert run.read_metrics() == [{"epoch": 0}, {"epoch": 1}]


def test_damaged_lines_are_noted_and_left_out(run: RunFolder, notes: list[str]) -> None:
    run.metrics.write_bytes(b'{"epoch": 1}\n\xff\xfe\n[1]\n{"a":' + b"[" * 5000 + b'\n{"epoch": 2}\n')
    assert run.read_metrics() == [{"epoch": 1}, {"epoch": 2}]
    assert [message.split(" is damaged")[0] for message in notes] == ["line 2", "line 3", "line 4"]


def test_full_disk_loses_lines_and_continues(small_disk: Path, notes: list[str]) -> None:
    run = RunFolder(small_disk / "x", notes.append)
    run.claim(resume=False)
    run.append_metrics({"epoch": 1})
    filler = small_disk / "filler"
    filler.write_bytes(bytes(atomic.free_bytes(small_disk)))
    run.append_metrics({"epoch": 2, "text": "x" * 10_000})
    run.append_metrics({"epoch": 3, "text": "x" * 10_000})
    filler.unlink()
    run.append_metrics({"epoch": 4})
    run.append_metrics({"epoch": 5})
    assert run.read_metrics() == [{"epoch": 1}, {"epoch": 4, "lines_lost_before": 2}, {"epoch": 5}]
    assert len(notes) == 1
    assert notes[0].startswith("no space for metrics (")


def test_other_metrics_errors_are_one_line(run: RunFolder) -> None:
    run.metrics.mkdir()
    with pytest.raises(ResourceError, match=r"^cannot write metrics \(.*: Is a directory\); check the disk$"):
        run.append_metrics({"epoch": 1})
    with pytest.raises(ResourceError, match=r"^cannot read metrics \(.*\); check the file$"):
        run.read_metrics()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_metrics_that_are_not_a_file_are_refused(run: RunFolder, kind: str) -> None:
    run.path.mkdir(exist_ok=True)
    if kind == "pipe":
        os.mkfifo(run.metrics)
    elif kind == "device":
        run.metrics.symlink_to("/dev/zero")
    else:
        run.metrics.mkdir()
    for resume in (True, False):
        with pytest.raises(ResourceError, match=r"metrics\.jsonl is not a file\); move it away"):
            run.claim(resume=resume)


def test_finished_means_a_result_that_can_be_read(run: RunFolder) -> None:
    assert not run.finished
    for text in ("", "{", "[]", "null", '{"test_accuracy": 0.9}', '{"format": 2}'):
        run.result.write_text(text)
        assert not run.finished
    test = {"images": 2, "accuracy": 0.5, "nll": math.inf, "ece": 0.1, "per_class": {"a": 0.5}, "confusion": [[2]]}
    result = {
        **dict.fromkeys(("test_accuracy", "val_accuracy", "seconds"), 0.5),
        **dict.fromkeys(("best_step", "best_epoch", "epochs", "steps", "seed", "parameters"), 1),
        **dict.fromkeys(("model", "data", "fingerprint"), "é"),
        "test": test,
    }
    run.write_result(result)
    assert run.finished
    assert run.read_result() == {**result, "test": {**test, "nll": None}}
    data = run.result.read_bytes()
    for place in range(0, 8 * len(data), 5):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        run.result.write_bytes(changed)
        with pytest.raises(CheckpointError, match=r"^damaged result \("):
            run.read_result()


def test_notes_are_discarded_if_stderr_is_full(tmp_path: Path, forked) -> None:
    def note() -> None:
        sys.stderr = open("/dev/full", "w")  # noqa: SIM115 - as long as the process
        RunFolder(tmp_path).note("x")
        RunFolder(tmp_path).note("y")
        sys.stderr.close()

    assert forked(note) == 0


def test_notes_go_to_stderr_by_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text("half\n")
    assert RunFolder(tmp_path).read_metrics() == []
    assert capsys.readouterr().err.startswith("quatsphere: note: line 1 is damaged (")
