"""Model folders: packed from a run, verified when they are loaded, and the models that come with the package."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny_runs import tiny_config, tiny_run
from PIL import Image

import quatsphere
from quatsphere import TrainedModel, load
from quatsphere.cli import main
from quatsphere.config import AttentionConfig
from quatsphere.config.presets import PRESETS
from quatsphere.config.resolve import config_to_dict
from quatsphere.data import load_dataset
from quatsphere.errors import CheckpointError, ConfigError, DataError
from quatsphere.models import create_model
from quatsphere.storage.atomic import sha256_file
from quatsphere.storage.model_folder import MODEL_FILES, SHIPPED, read_model_config, seal_config, shipped_models
from quatsphere.storage.safe_yaml import read_yaml, write_yaml
from quatsphere.train.pretrained import sizes_misfit

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(scope="module")
def run(unchecked: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pack") / "run"
    tiny_run(path, tiny_config(epochs=1))
    return path


@pytest.fixture(scope="module")
def folder(run: Path) -> Path:
    return load(run).save_pretrained(run.parent / "tiny", licence="mit")


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def reseal(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write a changed `config.json` whose hashes are right."""
    config = read_model_config(folder)
    change(config)
    files = [(folder / name).read_bytes() for name in ("model.safetensors", "preprocessing.json")]
    (folder / "config.json").write_bytes(seal_config(config, *files))


def test_a_packed_run_is_loaded_with_equal_numbers(run: Path, folder: Path) -> None:
    trained, packed = load(run), load(folder)
    assert {path.name for path in folder.iterdir()} == set(MODEL_FILES)
    images = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(trained(images), packed(images))
    assert torch.equal(trained.predict(images).probabilities, packed.predict(images).probabilities)
    assert repr(packed) == repr(trained)
    assert packed.classes == trained.classes
    assert packed.evaluate().report() == trained.result["test"] == packed.result["test"]
    assert packed.step == trained.step


def test_the_card_states_accuracy_data_recipe_commit_licence_and_hashes(run: Path, folder: Path) -> None:
    card, result = (folder / "README.md").read_text(), json.loads((run / "result.json").read_text())
    assert card.startswith("---\nlicense: mit\nlibrary_name: quatsphere\n")
    assert f"| accuracy | {result['test_accuracy']:.4f} [" in card
    assert "| n, test images | 90 |" in card
    assert result["fingerprint"] in card
    assert result["commit"] in card
    assert "  dim: 32\n  heads: 4\n" in card
    hashes = dict(re.findall(r"^\| `([\w.]+)` \| `(\w{64})` \|$", card, re.MULTILINE))
    assert hashes == {name: sha256_file(folder / name) for name in MODEL_FILES if name != "README.md"}
    assert str(run) not in card + (folder / "config.json").read_text()


def test_packing_a_model_folder_again_gives_the_same_files(folder: Path, tmp_path: Path) -> None:
    load(folder).save_pretrained(tmp_path / "tiny", licence="mit")
    for name in MODEL_FILES:
        assert (tmp_path / "tiny" / name).read_bytes() == (folder / name).read_bytes()


def test_an_existing_folder_is_not_replaced_by_mistake(run: Path, copy: Path) -> None:
    with pytest.raises(ConfigError, match="exists; pass --overwrite or choose another"):
        load(run).save_pretrained(copy)
    load(run).save_pretrained(copy, overwrite=True)
    with pytest.raises(ConfigError, match="exists; choose another"):
        load(run).save_pretrained(copy.parent, overwrite=True)


@pytest.mark.parametrize("name", ["model.safetensors", "preprocessing.json", "config.json"])
def test_a_changed_bit_is_refused(copy: Path, name: str) -> None:
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=f"model is damaged .*{name}"):
        load(copy)


def test_a_pickle_is_refused(copy: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, copy / "model.safetensors")
    reseal(copy, lambda config: None)
    with pytest.raises(CheckpointError, match=r"not a safetensors file .*zip archive"):
        load(copy)


@pytest.mark.parametrize(
    ("group", "field", "value", "message"),
    [
        ("model", "dim", 1 << 40, "embed.projection.weight does not have the size"),
        ("model", "base_vertices", 1 << 40, "layout.shells.0.positions does not have the size"),
        ("model", "shells", 1 << 40, "the limit is 64"),
        ("model", "rounds", 1 << 40, "rounds.1099511627775.* does not have the size"),
        ("model", "num_classes", 1 << 40, "classes does not fit the model"),
        ("model", "image_size", 1 << 20, "image_size does not fit the model"),
        ("model", "dim", "many", "not the settings of a model"),
        ("model", "surprise", 1, "not the settings of a model"),
    ],
)
def test_wrong_sizes_are_refused_before_memory_is_allocated(
    copy: Path, group: str, field: str, value: Any, message: str
) -> None:
    reseal(copy, lambda config: config["settings"][group].update({field: value}))
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load(copy)


@pytest.mark.parametrize(
    ("field", "value"),
    [("step", "many"), ("fingerprint", 7), ("test", []), ("parameters", None), ("versions", {"a": 1})],
)
def test_a_recorded_result_of_other_types_is_refused(copy: Path, field: str, value: Any) -> None:
    reseal(copy, lambda config: config["result"].update({field: value}))
    with pytest.raises(CheckpointError, match=rf"model is damaged .*config\.json: field result\.{field}"):
        load(copy)


@pytest.mark.parametrize(("field", "value"), [("dim", 1 << 40), ("base_vertices", 1 << 40), ("shells", 1 << 40)])
def test_settings_cannot_require_more_memory_than_the_weights(
    run: Path, tmp_path: Path, field: str, value: int
) -> None:
    shutil.copytree(run, tmp_path / "run")
    settings = read_yaml(run / "config.yaml")
    settings["model"][field] = value
    write_yaml(tmp_path / "run" / "config.yaml", settings)
    with pytest.raises(CheckpointError, match=r"is damaged \((.* does not have the size|.* shells, the limit is 64)"):
        load(tmp_path / "run")


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_weights_of_every_preset_have_the_sizes_of_its_settings(name: str) -> None:
    config = quatsphere.load_preset(name)
    weights = create_model(**config_to_dict(config)["model"]).state_dict()
    assert sizes_misfit(config, weights) is None


@pytest.mark.parametrize("width", [{}, {"budget": 9000}, {"budget": 9000, "value": "identity"}, {"dim": 24}])
def test_runs_of_attention_are_loaded(tmp_path: Path, width: dict[str, Any]) -> None:
    model = AttentionConfig(
        **{"base_vertices": 16, "shells": 2, "neighbours": 4, "layout": "plane", "plane_rows": 4} | width
    )
    tiny_run(tmp_path / "run", dataclasses.replace(tiny_config(epochs=1), model=model))
    trained = load(tmp_path / "run")
    assert trained.evaluate().report() == trained.result["test"]
    settings = read_yaml(tmp_path / "run" / "config.yaml")
    settings["model"] |= {"dim": None, "budget": 1 << 60}
    write_yaml(tmp_path / "run" / "config.yaml", settings)
    with pytest.raises(CheckpointError, match=r"is damaged \(its budget of .* is not that of these weights"):
        load(tmp_path / "run")


def test_files_larger_than_stated_are_not_read(copy: Path) -> None:
    with (copy / "model.safetensors").open("ab") as file:
        file.truncate(1 << 40)  # a hole: no space is used
    with pytest.raises(CheckpointError, match="larger than"):
        load(copy)


def test_a_newer_format_names_the_remedy(copy: Path) -> None:
    reseal(copy, lambda config: config.update(format=99))
    with pytest.raises(CheckpointError, match=r"format 99.*upgrade quatsphere"):
        load(copy)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(2, 1, 8, 8) * 255, r"levels .* are not within \[0, 1\]"),
        (torch.randn(2, 1, 8, 8), "without normalisation"),
        (torch.rand(2, 1, 8, 8) / 255, "which is black"),
        (torch.randint(2, (2, 1, 8, 8)), "which is black"),
        (torch.full((2, 1, 8, 8), torch.nan), "are not within"),
        (torch.rand(1, 8, 8), r"shape \(1, 8, 8\): the model takes \(B, 1, 8, 8\)"),
        (torch.rand(2, 3, 8, 8), "the model takes"),
        (torch.rand(2, 1, 9, 9), "predict\\(\\) fits images of any size"),
    ],
)
def test_wrongly_scaled_images_are_errors(folder: Path, images: torch.Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(folder)(images)


def test_levels_up_to_255_and_up_to_1_are_classified_alike() -> None:
    digits, model = load_dataset("digits").test, load("digits-qsv")
    for images in (digits.images, digits.images / 255):
        accuracy = (model(images).argmax(1) == digits.labels).double().mean()
        assert accuracy == model.result["test_accuracy"] > 0.97
    pixels = (digits.images[:1] / 255).requires_grad_()
    model(pixels).sum().backward()
    assert pixels.grad is not None
    assert pixels.grad.abs().sum() > 0


def test_every_bundled_model_loads_and_has_a_card() -> None:
    names = shipped_models()
    assert "digits-qsv" in names
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*")) <= 5_000_000
    for name in names:
        model = load(name)
        assert isinstance(model, TrainedModel)
        assert re.search(r"test accuracy 0\.\d{4} \(n = [\d,]+\)", repr(model))
        card = (names[name] / "README.md").read_text()
        assert f"quatsphere predict photo.jpg --model {name}" in card
        assert "license: apache-2.0" in card
        for file in ("model.safetensors", "preprocessing.json", "config.json"):
            assert sha256_file(names[name] / file) in card


def test_a_folder_comes_before_a_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load("digits-qsv").config.model.dim == 64
    shutil.copytree(folder, tmp_path / "digits-qsv")
    assert load("digits-qsv").config.model.dim == 32
    with pytest.raises(CheckpointError, match=r"or a model: .*digits-qsv"):
        load("digits-qvs")


def test_the_command_packs_lists_and_predicts(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", str(run), "-o", str(tmp_path / "packed")]) == 0
    assert "TrainedModel(qsv on digits: test accuracy 0." in capsys.readouterr().out
    digits = load_dataset("digits").test
    Image.fromarray(digits.images[0, 0].numpy()).save(tmp_path / "digit.png")
    for words in (["--model", "digits-qsv"], ["--model", str(tmp_path / "packed")], ["--model", str(run)]):
        assert main(["predict", str(tmp_path / "digit.png"), *words, "--json"]) == 0
        assert set(json.loads(capsys.readouterr().out)) == {"file", "classes"}
    assert main(["predict", str(tmp_path / "digit.png")]) == 2
    assert "predict needs a model and image files; add --model NAME" in capsys.readouterr().err
    assert main(["models"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "digits-qsv" in line)
    assert line.split()[-2:] == [f"{load('digits-qsv').result['test_accuracy']:.4f}", "359"]
    assert main(["models", "--json"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert {"name", "test_accuracy", "n", "parameters", "images_seen", "commit"} <= set(first)


def test_listing_models_does_not_import_torch(capsys: pytest.CaptureFixture[str]) -> None:
    import subprocess
    import sys

    code = "import sys; from quatsphere.cli import main; main(['models']); raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
    assert quatsphere.__version__
