"""Order of sources: --preset < -c FILE < environment < command line; printed settings can be read back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from quatsphere.cli.train import make_parser
from quatsphere.config import AttentionConfig, QSVConfig, ResNet20Config, RunConfig
from quatsphere.config.presets import PRESETS
from quatsphere.config.resolve import MODEL_CONFIGS


def config(*words: str) -> RunConfig:
    resolved: RunConfig = make_parser().parse_config(words).config
    return resolved


def settings_file(folder: Path, text: str) -> str:
    path = folder / "settings.yaml"
    path.write_text(text)
    return str(path)


def test_the_later_source_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--preset", "demo"]
    assert config().train.epochs == 500
    assert config(*words).train.epochs == PRESETS["demo"]["train"]["epochs"]
    words += ["-c", settings_file(tmp_path, "train: {epochs: 7, seed: 7}\noptim: {peak_lr: 7e-3}\n")]
    assert config(*words).train.epochs == 7
    monkeypatch.setenv("QUATSPHERE_TRAIN__EPOCHS", "2")
    monkeypatch.setenv("QUATSPHERE_TRAIN__SEED", "2")
    assert config(*words).train.epochs == 2
    made = config(*words, "--train.epochs", "1")
    assert (made.train.epochs, made.train.seed, made.optim.peak_lr) == (1, 2, 7e-3)
    assert made.train.batch_size == PRESETS["demo"]["train"]["batch_size"]


def test_order_of_words_does_not_matter(tmp_path: Path) -> None:
    path = settings_file(tmp_path, "train: {epochs: 7}\n")
    assert config("--train.epochs=1", "-c", path, "--preset", "demo") == config(
        "--preset=demo", f"--config={path}", "--train.epochs", "1"
    )


def test_several_files_are_read_in_turn(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("train: {epochs: 3, seed: 3}\ndata:\n")
    (tmp_path / "b.yaml").write_text("train: {epochs: 4}\n")
    made = config("-c", str(tmp_path / "a.yaml"), "-c", str(tmp_path / "b.yaml"))
    assert (made.train.epochs, made.train.seed) == (4, 3)


@pytest.mark.parametrize("preset", PRESETS)
def test_printed_settings_can_be_read_back(preset: str, tmp_path: Path, command: Callable[..., Any]) -> None:
    words = ["--preset", preset, "--data.root", "a b: ü", "--optim.peak_lr", "3e-7", "--train.patience", "none"]
    printed = command("train", *words, "--print-config")
    assert printed.code == 0
    assert printed.err == ""
    again = ["-c", settings_file(tmp_path, printed.out)]
    assert config(*again) == config(*words)
    assert command("train", *again, "--print-config").out == printed.out
    assert list(yaml.safe_load(printed.out)) == ["data", "model", "optim", "train"]


@pytest.mark.parametrize("word", ["none", "None", "null", "NONE"])
def test_none_and_null_mean_no_value(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert config("--train.patience", word).train.patience is None
    assert config(f"--train.patience={word}").train.patience is None
    assert config("-c", settings_file(tmp_path, f"train: {{patience: {word}}}")).train.patience is None
    monkeypatch.setenv("QUATSPHERE_TRAIN__PATIENCE", word)
    assert config().train.patience is None


def test_none_is_a_choice_where_it_is_one(tmp_path: Path) -> None:
    for words in (
        ["--model.bound", "none"],
        ["--model.bound=none"],
        ["-c", settings_file(tmp_path, "model: {bound: }")],
    ):
        made = config(*words).model
        assert isinstance(made, QSVConfig)
        assert made.bound == "none"


def test_the_name_decides_the_models_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(config("--model.name", "resnet20", "--model.width", "4").model, ResNet20Config)
    assert isinstance(config("--preset", "paper-flat").model, AttentionConfig)
    changed = config("--preset", "demo", "--model.name", "attention").model
    assert isinstance(changed, AttentionConfig)
    assert changed.base_vertices == PRESETS["demo"]["model"]["base_vertices"]
    assert isinstance(config("--preset", "paper-flat", "--model.name=qsv").model, QSVConfig)
    path = settings_file(tmp_path, "model: {width: 5}")
    assert config("--model.name", "resnet20", "-c", path).model == ResNet20Config(width=5)
    monkeypatch.setenv("QUATSPHERE_MODEL__NAME", "resnet20")
    assert config("-c", path).model == ResNet20Config(width=5)
    assert set(MODEL_CONFIGS) == {"qsv", "attention", "resnet20", "linear"}


def test_a_choice_that_only_the_other_model_has_is_left_out(tmp_path: Path) -> None:
    """`routing` has different choices in two models: a file written for one is read for the other without the field."""
    for name, choice, other in (("qsv", "absolute", "attention"), ("attention", "softmax", "qsv")):
        path = settings_file(tmp_path, f"model: {{name: {name}, routing: {choice}, shells: 3}}")
        changed = config("-c", path, "--model.name", other).model
        assert (changed.name, changed.shells) == (other, 3)
        assert changed.routing == MODEL_CONFIGS[other]().routing
    path = settings_file(tmp_path, "model: {name: qsv, routing: uniform}")
    assert config("-c", path, "--model.name", "attention").model.routing == "uniform"


def test_fields_of_another_model_are_refused_with_its_name(fails: Callable[..., str], tmp_path: Path) -> None:
    fails(2, r"model 'qsv' has no field 'width' \(command line\); it belongs to 'resnet20'", "train", "--model.width=4")
    path = settings_file(tmp_path, "model: {name: resnet20, routing: uniform}")
    fails(2, r"model 'resnet20' has no field 'routing' \(.*settings.yaml\).*'qsv'", "train", "-c", path)
    fails(2, "unknown model 'vit'; choose one of qsv, attention, resnet20", "train", "--model.name", "vit")


def test_the_short_flag_is_the_long_one(command: Callable[..., Any]) -> None:
    for words, expected in (
        (["--deterministic"], True),
        (["--deterministic", "true"], True),
        (["--deterministic=false"], False),
        (["--deterministic", "false"], False),
        ([], False),
    ):
        printed = command("train", *words, "--print-config").out
        assert yaml.safe_load(printed)["train"]["deterministic"] is expected, words


def test_text_fields_take_any_text_unchanged() -> None:
    for text in ("123", "1e-3", "{x}", "[a", "a: b", "true", "-x", "'q'", "a\nb", "/tmp/x y", "!!python/object:os.x"):
        assert config(f"--data.root={text}").data.root == text
        assert config("--data.root", text).data.root == text
