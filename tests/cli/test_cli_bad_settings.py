"""Bad settings and run folders: one error line, the right exit code, nothing written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quatsphere.storage.run_folder import RunFolder
from quatsphere.storage.safe_yaml import SIZE_LIMIT

Fails = Callable[..., str]

UNKNOWN_KEYS = [
    ("--model.bonud none", r"unknown key 'model.bonud' \(command line\); did you mean 'model.bound'\?$"),
    ("--train.epoch 3", "did you mean 'train.epochs'"),
    ("--optim.lr 3", "did you mean 'optim.peak_lr'"),
    ("--data.epochs 3", "unknown key 'data.epochs'.*did you mean 'train.epochs'"),
    ("--model.zzzzzzzz 3", r"unknown key 'model.zzzzzzzz' \(command line\); see --help"),
]
GEOMETRY = [
    (
        "--model.dim 100",
        "model.dim must equal 4 .* heads .* channels, a multiple of 64: got 100; nearest legal value 128",
    ),
    ("--model.dim 0", "nearest legal value 64"),
    ("--model.dim -64", "nearest legal value 64"),
    ("--model.heads 0", "model.heads must be >= 1: got 0; nearest legal value 1"),
    ("--model.heads -2", "nearest legal value 1"),
    ("--model.neighbours 129", r"model.neighbours must lie in 1\.\.128, .*: got 129; nearest legal value 128"),
    ("--model.neighbours 0", "nearest legal value 1$"),
    ("--model.base_vertices 3", "model.base_vertices must be >= 4: got 3; nearest legal value 4"),
    ("--model.shells 0", "model.shells must be >= 1: got 0; nearest legal value 1"),
    ("--model.inner_radius 0", "model: radii must be positive and decrease inwards.*the paper has 1.0 and 0.4"),
    ("--model.inner_radius -0.4", "radii must be positive"),
    ("--model.inner_radius 1", "decrease inwards"),
    ("--model.outer_radius 0.4", "decrease inwards"),
    ("--model.outer_radius -1 --model.shells 1", "radii must be positive"),
    ("--model.outer_radius 1e30", "radii must be positive and decrease inwards, between 1e-6 and 1e6"),
    ("--model.inner_radius 1e-30", "radii must be positive and decrease inwards, between 1e-6 and 1e6"),
    ("--model.inner_radius .nan", "radii must be positive|finite number"),
    ("--model.outer_radius .inf", "radii must be positive|finite number"),
    ("--model.layout plane --model.routing geometric", "model.routing 'geometric' compares directions on the sphere"),
    ("--model.name attention --model.heads 0", "model.heads must be >= 1: got 0; nearest legal value 1"),
    ("--model.name attention --model.dim 100 --model.heads 6", "multiple of heads=6: got 100; nearest legal value 102"),
    ("--model.name attention --model.budget 0", "model.budget must be >= 1 or none: got 0"),
    ("--model.name attention --model.shells 0", "model.shells must be >= 1"),
    ("--model.name resnet20 --model.width 0", "model.width must be >= 1: got 0"),
]
NUMBERS = [
    *((f"--optim.{name} {value}", rf"optim.{name} must be a finite number.*: got '?{value.strip('.')}")
      for name in ("peak_lr", "quaternion_lr", "position_lr") for value in ("nan", "inf", "-1", "-inf")),
    ("--optim.peak_lr .nan", "optim.peak_lr must be a finite number >= 0: got nan"),
    ("--optim.peak_lr 1e999", "optim.peak_lr must be a finite number >= 0: got inf"),
    *((f"--optim.{name} 1e38", f"optim.{name} must be <= 1e6, float32 overflows: got 1e.38")
      for name in ("peak_lr", "quaternion_lr", "position_lr", "weight_decay", "bound_lr_factor", "repulsion_start")),
    ("--model.beta_start 1e300", r"model.beta_start must be > 0.1, .*, and <= 1e6: got 1e\+300"),
    ("--model.beta_start 0.1", "model.beta_start must be > 0.1, the floor of softplus"),
    ("--optim.warmup 1.1", r"optim.warmup must lie in \[0, 1\]: got 1.1"),
    ("--optim.warmup -0.1", r"optim.warmup must lie in \[0, 1\]: got -0.1"),
    ("--model.attention_dropout 1", r"model.attention_dropout must lie in \[0, 1\): got 1.0"),
    ("--model.output_dropout -0.1", r"model.output_dropout must lie in \[0, 1\): got -0.1"),
    ("--model.output_dropout .nan", r"model.output_dropout must"),
    ("--train.patience 0", "train.patience must be >= 1 or none: got 0"),
    ("--train.epochs 0", "train.epochs must be >= 1: got 0"),
    ("--train.batch_size 0", "train.batch_size must be >= 1: got 0"),
    ("--train.epochs 1.5", r"train.epochs must be a whole number: got '1.5' \(command line\)"),
    ("--train.epochs two", r"train.epochs must be a whole number: got 'two' \(command line\)"),
    ("--train.epochs null", "train.epochs must be a whole number: got 'null'"),
    ("--data.flip maybe", "data.flip must be true or false: got 'maybe'"),
    ("--model.routing algnment", "must be alignment or absolute.*: got 'algnment'.*did you mean 'alignment'"),
    ("--data.val_fraction 0", "data.val_fraction must be > 0"),
    ("--data.image_size 0", "data.image_size must be >= 1: got 0"),
    ("--data.max_train_images 0", "data.max_train_images must be >= 1: got 0"),
    ("--train.keep_checkpoints 1", "train.keep_checkpoints must be >= 2: got 1"),
    ("--train.label_smoothing 1", r"train.label_smoothing must lie in \[0, 1\): got 1.0"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), UNKNOWN_KEYS + GEOMETRY + NUMBERS, ids=lambda value: value[:40])
def test_unknown_keys_geometry_and_numbers(words: str, message: str, fails: Fails, tmp_path: Path) -> None:
    fails(2, message, "train", *words.split(), "--run-dir", "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--train.batch_size 2000", r"train.batch_size .*1295.*: got 2000"),
        ("--data.max_train_images 20 --train.batch_size 21", "train.batch_size .*20"),
        ("--model.layout plane --model.base_vertices 20", "flat lattice of 8 rows needs a multiple of 8 .*: got 20"),
        ("--train.device cuda:77", "train.device 'cuda:77' cannot be used .*; use auto or cpu"),
        ("--train.device banana", "train.device must be auto, cpu, cuda, mps or xpu, .*: got 'banana'"),
        (
            "--model.name attention --model.dim none --model.heads none --model.budget 5",
            "no width fits a budget of 5 parameters.*raise budget or set dim",
        ),
    ],
)
def test_settings_that_do_not_fit_data_or_machine(words: str, message: str, fails: Fails, tmp_path: Path) -> None:
    fails(2, message, "train", "--preset", "demo", *words.split(), "--run-dir", "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: !!python/object/apply:os.system ['touch marker']", "python/object.*line 1"),
        ("train: !!python/name:os.system", "line 1"),
        ("a: &a [x, x]\nb: &b [*a, *a]\ntrain: {epochs: *b}", "aliases are refused"),
        ("train: {epochs: 1, epochs: 2}", "key 'epochs' is there twice .*line 1"),
        ("train:\n  epochs: 1\ntrain:\n  epochs: 2", "key 'train' is there twice .*line 3"),
        ("train: {bonud: 1}", r"unknown key 'train.bonud' \(settings.yaml\)"),
        ("trian: {epochs: 1}", "did you mean 'train.epochs'"),
        ("train: 3", "'train' must be a group of fields .*; groups are data, model, optim, train"),
        ("epochs: 3", "'epochs' must be a group of fields"),
        ("- 1\n- 2", "settings must be 'key: value' lines"),
        ("train: {epochs: [1, 2]}", r"train.epochs must be a whole number: got \[1, 2\] \(settings.yaml\)"),
        ("train: {epochs: {a: 1}}", "train.epochs must be a whole number: got {'a': 1}"),
        ("optim: {peak_lr: .nan}", "optim.peak_lr must be a finite number"),
        ("model: {name: 5}", "unknown model '5'"),
        ("train: {epochs: ", "line"),
        ("train: {epochs: '" + "9" * 500 + "x'}", "train.epochs must be a whole number: got '9{79} "),
        ('"train.epochs=1 --run-dir": {x: 1}', "unknown key"),
        ("train: {1: 2}", "key 1 is not text"),
        ("[" * 200, "nested more than 50 deep"),
        ("\x00", "line 1"),
    ],
    ids=lambda value: value[:30],
)
def test_hostile_settings_files(text: str, message: str, fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(text)
    fails(2, message, "train", "-c", "settings.yaml", "--run-dir", "run")
    assert [path.name for path in tmp_path.iterdir()] == ["settings.yaml"]


def test_files_that_are_not_settings(fails: Fails, tmp_path: Path) -> None:
    with open(tmp_path / "huge.yaml", "wb") as file:
        file.truncate(50 << 20)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin.yaml").write_bytes(b"data: {root: caf\xe9}")
    for path, message in (
        ("huge.yaml", f"larger than {SIZE_LIMIT} bytes"),
        ("pipe", "not a regular file"),
        ("latin.yaml", "not UTF-8 text"),
        ("missing.yaml", "No such file"),
        (".", "regular file|directory"),
    ):
        fails(2, rf"\({path}.*{message}|{message}.*\({path}", "train", "-c", path, "--run-dir", "run")
    assert not (tmp_path / "run").exists()


def test_errors_name_the_environment_as_source(fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUATSPHERE_TRAIN__EPOCHS", "two")
    fails(2, r"train.epochs must be a whole number: got 'two' \(environment\)", "train", "--print-config")
    monkeypatch.setenv("QUATSPHERE_TRAIN__EPOCHS", "2")
    monkeypatch.setenv("QUATSPHERE_TRIAN__SEED", "2")
    fails(2, r"unknown key 'trian.seed' \(environment\); did you mean 'train.seed'", "train", "--print-config")


def test_a_run_is_never_overwritten(tiny: list[str], tiny_run: Path, fails: Fails) -> None:
    before = {path: path.stat().st_mtime_ns for path in tiny_run.rglob("*")}
    fails(
        2, r"run 'z+' exists \(epoch 1 of 1\); use --resume or another name", "train", *tiny, "--run-dir", str(tiny_run)
    )
    assert {path: path.stat().st_mtime_ns for path in tiny_run.rglob("*")} == before


def test_resuming_a_finished_run_prints_its_result(tiny_run: Path, command: Callable[..., Any]) -> None:
    for words in (["--resume"], ["--resume", "true"], ["--resume=true"]):
        ended = command("train", "--run-dir", str(tiny_run), *words)
        assert ended.code == 0
        assert "is finished" in ended.err
        assert ended.out.startswith("test accuracy 0.")


def test_resume_with_other_settings_lists_both(tiny_run: Path, fails: Fails) -> None:
    words = ["--run-dir", str(tiny_run), "--resume", "--model.dim", "32", "--train.seed", "7"]
    line = fails(2, "model.dim: 16 in the run, 32 now", "train", *words)
    assert "train.seed: 42 in the run, 7 now" in line


def unfinished(run: Path, folder: Path) -> Path:
    """A copy of a run that lacks its result, in a folder with a short name."""
    copy = shutil.copytree(run, folder / "run")
    (copy / "result.json").unlink()
    return copy


def test_resume_with_other_data_is_refused(tiny_run: Path, class_folder: Path, tmp_path: Path, fails: Fails) -> None:
    """Another data set is refused before it is read, another number of classes after; both values are listed."""
    run = unfinished(tiny_run, tmp_path)
    words = ["train", "--run-dir", "run", "--resume"]
    fails(2, "data.name: 'digits' in the run, 'folder' now", *words, "--data.name=folder")
    text = (run / "config.yaml").read_text().replace("name: digits", "name: folder")
    (run / "config.yaml").write_text(text.replace("batch_size: 32", "batch_size: 4"))
    line = fails(2, "model.num_classes: 10 in the run, 3 now", *words, f"--data.root={class_folder}")
    assert "model.in_channels: 1 in the run, 3 now" in line
    assert not (run / "result.json").exists()


def test_a_stale_lock_is_taken_over_with_a_note(tiny_run: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    run = unfinished(tiny_run, tmp_path)
    gone = {"pid": 2**22 + 1, "host": "vm", "since": "2026-01-01T00:00:00+00:00"}  # above the largest pid Linux gives
    (run / ".lock").write_text(json.dumps(gone))
    ended = command("train", "--run-dir", "run", "--resume")
    assert ended.code == 0, ended.err
    said = "took over a stale lock of run 'run': pid 4194305 on host vm since 2026-01-01T00:00:00+00:00 is gone"
    assert f"quatsphere: note: {said}" in ended.err.splitlines()
    assert (run / "result.json").is_file()


def test_a_second_process_is_refused(tiny_run: Path, tmp_path: Path, fails: Fails) -> None:
    run = unfinished(tiny_run, tmp_path)
    with RunFolder(run).lock():
        message = (
            rf"run 'run' is locked by pid {os.getpid()} on host \S+ since \S+; wait until it ends or use another name"
        )
        fails(4, message, "train", "--run-dir", "run", "--resume")


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("missing/parent/run", "no folder .*missing/parent"),
        ("x" * 300, "File name too long"),
        ("file/run", "no folder|Not a directory"),
        ("file", "Not a directory|File exists|holds other files"),
        ("full", r"'full' holds other files and no run \(full: notes.txt\); use another name"),
        ("/sys/quatsphere-run", "not permitted|denied|Read-only|No such file"),
        ("/" + "/".join(["y" * 200] * 22), "too long|no folder"),
        ("nul\0byte", "null"),
    ],
)
def test_impossible_run_folders(folder: str, message: str, tiny: list[str], fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    line = fails(2, message, "train", *tiny, "--run-dir", folder)
    assert len(line) < 600
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that cannot be written to; root ignores permissions, so for root it is a read-only disk."""
    folder = tmp_path / "shut"
    folder.mkdir(mode=0o555)
    if os.geteuid() != 0:
        yield folder
        return
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_read_only_parent(tiny: list[str], fails: Fails, read_only: Path) -> None:
    fails(2, "cannot use run folder .*(Permission denied|Read-only)", "train", *tiny, "--run-dir", "shut/run")


def test_long_path_with_spaces_and_unicode_works(tiny_run: Path) -> None:
    assert {path.name for path in tiny_run.iterdir()} >= {"config.yaml", "metrics.jsonl", "checkpoints", "result.json"}


def test_an_unexpected_exception_is_one_line(fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(*_: object) -> None:
        raise KeyError("odd\nthing")

    monkeypatch.setattr("quatsphere.cli.train.make_parser", boom)
    fails(1, r"KeyError: 'odd\\nthing' \(test_cli_bad_settings.py, line \d+\); this is a bug", "train")
    for error, code, text in (
        (MemoryError(), 6, "out of memory .the system gave no more.; use a smaller --train.batch_size"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 6, "out of memory"),
        (OSError(28, "No space left on device", "x"), 6, "'x': No space left on device"),
        (KeyboardInterrupt(), 130, "stopped at once"),
    ):

        def stop(*_: object, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr("quatsphere.cli.train.make_parser", stop)
        fails(code, text, "train")
