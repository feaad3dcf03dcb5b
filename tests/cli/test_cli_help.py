"""Help and mistakes: verbs, every field with its paper value, a suggestion for a misspelt word."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import quatsphere
from quatsphere.cli.main import VERBS
from quatsphere.config.presets import PRESETS
from quatsphere.config.resolve import MODEL_CONFIGS, group_types

NOT_SCIENCE = [
    "data.root",
    "data.skip_bad",
    "model.backend",
    "train.device",
    "train.deterministic",
    "train.threads",
    "train.checkpoint_steps",
    "train.checkpoint_seconds",
    "train.keep_checkpoints",
    "train.track",
]
"""Fields that are not part of the paper's method."""


def field_texts(helped: str) -> dict[str, str]:
    """`group.field` -> its text on one line."""
    texts: dict[str, str] = {}
    key = ""
    for line in helped.splitlines():
        if line.startswith("  --"):
            key = line.split()[0].removeprefix("--")
            texts[key] = ""
        elif key and line.startswith("      "):
            texts[key] += " " + line.strip()
        else:
            key = ""
    return texts


@pytest.mark.parametrize("model", MODEL_CONFIGS)
def test_every_field_is_explained_with_its_paper_value(model: str, command: Callable[..., Any]) -> None:
    helped = command("train", "--model.name", model, "--help")
    assert helped.code == 0
    assert helped.err == ""
    texts = field_texts(helped.out)
    for group, kind in group_types(model).items():
        for field in dataclasses.fields(kind):
            key = f"{group}.{field.name}"
            assert len(texts[key]) > 20, key
            assert "[" in texts[key], f"{key} does not show its default"
            assert "paper" in texts[key] or key in NOT_SCIENCE, f"{key} does not say what the paper has"


def test_help_reads_well(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (80, 100, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        text = command("train", "--help").out
        lines = text.splitlines()
        assert lines[0].startswith("usage: quatsphere train [--run-dir DIR] [--preset NAME]")
        assert max(map(len, lines)) <= max(88, min(100, width))
        assert not any(noise in text for noise in ("Literal", "type:", "CONFIG", "null", "==SUPPRESS=="))
        for group in ("data", "model", "optim", "train"):
            assert sum(line.startswith(f"{group}: ") for line in lines) == 1
            assert not any(line.startswith(f"  --{group} ") for line in lines)
        assert all(preset in text.replace("-\n        ", "-") for preset in PRESETS)


def test_help_lists_every_verb(command: Callable[..., Any]) -> None:
    for words in ([], ["--help"], ["-h"], ["help"]):
        helped = command(*words)
        assert helped.code == 0
        assert all(f"  {verb} " in helped.out for verb in VERBS)
    assert command("--version").out == f"quatsphere {quatsphere.__version__}\n"
    for verb in VERBS:
        helped = command(verb, "--help")
        assert helped.code == 0
        assert helped.out.startswith(f"usage: quatsphere {verb}")
    assert "--data.skip_bad" in command("data", "verify", "--help").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "unknown verb 'trian'; did you mean 'train'?"),
        (["fly"], f"unknown verb 'fly'; choose one of {', '.join(VERBS)}"),
        (["train", "--epochs", "3"], "unknown option '--epochs'; did you mean '--train.epochs'?"),
        (["train", "--lr=3"], "unknown option '--lr'; did you mean '--optim.peak_lr'?"),
        (["train", "--run_dir", "x"], "unknown option '--run_dir'; did you mean '--run-dir'?"),
        (["train", "--modle.bound", "none"], "unknown option '--modle.bound'; did you mean '--model.bound'?"),
        (["train", "--print_conf"], "unknown option '--print_conf'; did you mean '--print-config'?"),
        (["train", "x"], "unexpected word 'x'; options start with --, see --help"),
        (["train", "--preset"], "--preset needs a value; see --help"),
        (["train", "-c"], "-c/--config needs a value; see --help"),
        (["train", "--train.epochs"], "--train.epochs needs a value; see --help"),
        (
            ["train", "--train", "x"],
            "--train is a group; set its fields one by one, e.g. --train.FIELD, or use -c FILE",
        ),
        (["train", "--preset", "lit"], "unknown preset 'lit'; did you mean 'lite'?"),
        (["train", "--preset", "?"], f"unknown preset '?'; choose one of {', '.join(PRESETS)}"),
        (["train", "--resume", "maybe"], "--resume must be true or false: got 'maybe'; see --help"),
        (["train"], "train needs a folder for the run; add --run-dir DIR"),
        (["evaluate"], "the following arguments are required: RUN; see --help"),
        (["evaluate", "x", "--split", "all"], "argument --split: invalid choice: 'all'"),
        (["predict", "x", "y", "--top", "0"], "--top must be a whole number >= 1: got '0'; see --help"),
        (["info", "--batch", "-1"], "--batch "),
        (["info", "--modle.dim", "4"], "unknown option '--modle.dim'; did you mean '--model.dim'?"),
        (["data"], "the following arguments are required: get|verify|preview|cache; see --help"),
        (["data", "verify", "mnist"], "argument name: invalid choice: 'mnist'"),
        (["demo", "--train.epochs", "0"], "train.epochs must be >= 1: got 0"),
    ],
)
def test_a_wrong_word_is_one_line(words: list[str], message: str, fails: Callable[..., str], tmp_path: Any) -> None:
    line = fails(2, "", *words)
    assert line.startswith(f"quatsphere: error: {message}")
    assert not list(tmp_path.iterdir())


def run_process(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", "from quatsphere.cli import main; raise SystemExit(main())", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )


def test_a_real_process_ends_with_code_and_line(tmp_path: Any) -> None:
    """Mistakes are reported before torch is loaded."""
    ended = run_process("train", "--model.bonud", "none", "--run-dir", "x")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == "quatsphere: error: unknown key 'model.bonud' (command line); did you mean 'model.bound'?\n"
    assert not list(tmp_path.iterdir())


def test_debug_shows_the_traceback() -> None:
    ended = run_process("train", "--train.epochs", "0", "--debug")
    assert ended.returncode != 0
    assert "Traceback" in ended.stderr
    assert "ConfigError: train.epochs must be >= 1: got 0" in ended.stderr


def test_help_and_mistakes_do_not_load_torch() -> None:
    code = (
        "import sys; from quatsphere.cli import main; main(['train', '--help']); main(['train', '--epochs']); "
        "raise SystemExit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
