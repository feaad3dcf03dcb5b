"""Former names of settings are read in files, run folders, results, the environment and on the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from quatsphere.config.resolve import MODEL_CONFIGS, RENAMED, config_from_dict, field_types, flat_settings
from quatsphere.models import create_model
from quatsphere.study.results import Results
from quatsphere.study.runner import differing_settings

VALUES = {
    "data.train_limit": 64,
    "model.field": "static",
    "model.wrap": True,
    "optim.div": 5.0,
    "train.keep": 3,
    "train.tensorboard": True,
}
NOW = {"train.tensorboard": "tensorboard"}
"""Values that have changed with their name."""
OLD = {new: old for old, new in RENAMED.items()}
RESULTS = Path(__file__).parents[2] / "results"


def with_old_names(groups: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        group: {OLD.get(f"{group}.{name}", f"{group}.{name}").partition(".")[2]: v for name, v in fields.items()}
        for group, fields in groups.items()
    }


def test_the_table_maps_former_names_to_fields() -> None:
    known = {key for model in MODEL_CONFIGS for key in field_types(model)}
    assert set(RENAMED.values()) <= known
    assert not set(RENAMED) & known
    assert set(VALUES) == set(RENAMED)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_every_source_reads_former_names(
    old: str, new: str, tmp_path: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (group, field), value = old.split("."), VALUES[old]
    typed = command("train", f"--{old}", str(value), "--print-config")
    assert (
        typed.err == f"quatsphere: note: --{old} is now --{new}; the old spelling will be removed in the next release\n"
    )
    (tmp_path / "old.yaml").write_text(yaml.safe_dump({group: {field: value}}))
    from_file = command("train", "-c", "old.yaml", "--print-config")
    monkeypatch.setenv(f"QUATSPHERE_{group.upper()}__{field.upper()}", str(value))
    from_environment = command("train", "--print-config")
    for printed in (typed, from_file, from_environment):
        assert printed.code == 0, printed.err
        settings = yaml.safe_load(printed.out)
        assert settings[group][new.partition(".")[2]] == NOW.get(old, value)
        assert field not in settings[group]
        assert config_from_dict(with_old_names(settings)) == config_from_dict(settings)


def test_a_run_folder_with_former_names_is_evaluated_and_resumed(
    tiny_run: Path, tmp_path: Path, command: Callable[..., Any], fails: Callable[..., str]
) -> None:
    run = shutil.copytree(tiny_run, tmp_path / "run")
    settings = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(with_old_names(settings), sort_keys=False))
    assert "train_limit: 64" in (run / "config.yaml").read_text()
    assert json.loads(command("evaluate", "run", "--json").out)["accuracy"] >= 0
    (run / "result.json").unlink()
    fails(2, "model.field_mode: 'learned' in the run, 'static' now", "train", "--run-dir=run", "--resume",
          "--model.field_mode=static")  # fmt: skip
    resumed = command("train", "--run-dir", "run", "--resume")
    assert resumed.code == 0, resumed.err
    assert (run / "result.json").is_file()


def test_python_overrides_with_former_names() -> None:
    assert create_model("qsv", field="static", wrap=True, shells=1).config == create_model(
        "qsv", field_mode="static", wrap_longitude=True, shells=1
    ).config  # fmt: skip


@pytest.mark.parametrize("study", ["lite", "curve", "tuning"])
def test_stored_results_with_former_names_are_the_same_cells(study: str) -> None:
    for record in Results(RESULTS / study).finished():
        settings = record["config"]
        assert not set(settings) & set(RENAMED)
        assert set(settings) <= set(field_types(settings["model.name"]))
        groups: dict[str, dict[str, Any]] = {"data": {}, "model": {}, "optim": {}, "train": {}}
        for key, value in settings.items():
            groups[key.partition(".")[0]][key.partition(".")[2]] = value
        config = config_from_dict(groups)
        assert differing_settings(settings, config) == []
        assert {key: value for key, value in flat_settings(config).items() if key in settings} == settings
