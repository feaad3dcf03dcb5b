"""The Python API of trained runs: load, predict, evaluate, diagnose."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny_runs import tiny_config, tiny_run, write_idx
from PIL import Image

import quatsphere
from quatsphere import TrainedModel, load
from quatsphere.data import Dataset
from quatsphere.errors import CheckpointError, ConfigError, DataError
from quatsphere.train.evaluation import predict_logits

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(scope="module")
def trained(unchecked: None, tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    run = tmp_path_factory.mktemp("load") / "run"
    tiny_run(run, tiny_config(epochs=2))
    return load(run)


@pytest.fixture(scope="module")
def digits(trained: TrainedModel) -> Dataset:
    return trained.dataset()


@pytest.fixture(scope="module")
def colour(unchecked: None, tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    """A model of colour images: two classes of 8 x 8 squares."""
    root = tmp_path_factory.mktemp("colour")
    generator = np.random.default_rng(0)
    for label, level in (("dark", 60), ("light", 180)):
        (root / "data" / label).mkdir(parents=True)
        for index in range(20):
            pixels = generator.integers(level - 40, level + 40, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(root / "data" / label / f"{index}.png")
    data = {"name": "folder", "root": str(root / "data"), "image_size": 8, "val_fraction": 0.2, "test_fraction": 0.2}
    tiny_run(root / "run", tiny_config(data=data | {"max_train_images": None}, epochs=1, batch_size=8))
    return load(root / "run")


def test_loaded_run(trained: TrainedModel) -> None:
    assert trained.classes == tuple("0123456789")
    assert trained.config.model.image_size == 8
    assert not trained.model.training
    assert trained.step == trained.meta["progress"]["step"]


def test_repr_states_model_data_accuracy_step_and_parameters(trained: TrainedModel) -> None:
    result = json.loads(trained.run.result.read_text())
    assert repr(trained) == (
        f"TrainedModel(qsv on digits: test accuracy {result['test_accuracy']:.4f} (n = 90), step {trained.step}, "
        f"{result['parameters']:,} parameters)"
    )
    other = next(step for step in (4, 8) if step != result["best_step"])
    assert ": validation accuracy 0." in repr(load(trained.run.path, other))


def test_evaluate_equals_the_recorded_result(trained: TrainedModel, digits: Dataset) -> None:
    result = json.loads(trained.run.result.read_text())
    for data in (None, digits):
        found = trained.evaluate("test", data)
        assert found.accuracy == result["test_accuracy"]
        assert found.report() == result["test"]
    assert repr(found).startswith(f"Evaluation(accuracy {found.accuracy:.4f}, nll ")
    assert trained.evaluate("val", digits).accuracy == result["val_accuracy"]


def test_all_kinds_of_images_agree(trained: TrainedModel, digits: Dataset, tmp_path: Path) -> None:
    pixels = digits.test.images[:5]
    arrays = [image[0].numpy() for image in pixels]
    for index, array in enumerate(arrays):
        Image.fromarray(array).save(tmp_path / f"{index}.png")
    paths = [tmp_path / f"{index}.png" for index in range(5)]
    expected = predict_logits(trained.model, digits, pixels).softmax(1)
    kinds: dict[str, Any] = {
        "paths": paths,
        "strings": tuple(map(str, paths)),
        "PIL": [Image.open(path) for path in paths],
        "grey arrays": arrays,
        "arrays with a channel": [array[:, :, None] for array in arrays],
        "colour arrays": [np.repeat(array[:, :, None], 3, 2) for array in arrays],
        "floating-point arrays": [array / 255 for array in arrays],
        "batch array": np.stack(arrays)[..., None],
        "tensors": list(pixels),
        "batch tensor": pixels.float() / 255,
        "a mixture": [paths[0], arrays[1], pixels[2], Image.fromarray(arrays[3]), str(paths[4])],
    }
    for kind, images in kinds.items():
        found = trained.predict(images)
        assert torch.allclose(found.probabilities, expected, atol=1e-6), kind
        assert found.labels == [digits.classes[index] for index in expected.argmax(1).tolist()], kind


def test_images_of_other_sizes_and_channels_are_fitted(colour: TrainedModel, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (30, 21, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "tall.png")
    found = colour.predict([tmp_path / "tall.png", Image.fromarray(pixels), pixels, torch.tensor(pixels).movedim(2, 0)])
    assert torch.allclose(found.probabilities, found.probabilities[:1].expand(4, -1), atol=1e-6)
    grey = colour.predict([pixels[:, :, 0], np.repeat(pixels[:, :, :1], 3, 2)])
    assert torch.allclose(grey.probabilities[0], grey.probabilities[1], atol=1e-6)
    opaque = np.dstack([pixels, np.full((30, 21), 255, np.uint8)])
    assert torch.allclose(colour.predict(opaque).probabilities, found.probabilities[:1], atol=1e-6)


def test_predictions(trained: TrainedModel, digits: Dataset) -> None:
    one, many = trained.predict(digits.test.images[0]), trained.predict(digits.test.images[:70])
    assert (len(one), len(many), len(trained.predict([]))) == (1, 70, 0)
    assert torch.allclose(one.probabilities[0], many.probabilities[0], atol=1e-5)
    assert torch.allclose(many.probabilities.sum(1), torch.ones(70), atol=1e-5)
    top = many.top(3)
    assert all(list(row.values()) == sorted(row.values(), reverse=True) and len(row) == 3 for row in top)
    assert [next(iter(row)) for row in top] == many.labels
    assert list(many)[2] == many[2]
    assert len(many[2]) == 10
    first = "  ".join(f"{label} {p:.3f}" for label, p in top[0].items())
    assert repr(many).splitlines()[0] == f"image 0  {first}"


WRONG: dict[str, tuple[Any, str]] = {
    "number": (3, "cannot read images from type int; give paths"),
    "number in a list": ([3], "cannot read image 0 of type int; give a path"),
    "missing file": ("missing.png", r"cannot read missing.png \(No such file"),
    "levels above 1": (np.full((8, 8), 200.0), r"levels 200 to 200 are not within \[0, 1\]"),
    "negative levels": (torch.full((1, 8, 8), -1), r"levels -1 to -1 are not within \[0, 255\]"),
    "NaN": (np.full((8, 8), np.nan), "levels nan to nan are not within"),
    "one dimension": (np.zeros(8), r"shape \(8,\) is not \(H, W\)"),
    "channels first array": (np.zeros((3, 8, 8)), r"shape \(3, 8, 8\) is not .* arrays have channels last"),
    "no pixels": (np.zeros((0, 8, 3)), r"shape \(0, 8, 3\) is not"),
    "text array": (np.full((8, 8), "a"), "is neither integer nor floating-point"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_images_are_one_line(kind: str, trained: TrainedModel) -> None:
    images, message = WRONG[kind]
    with pytest.raises(DataError, match=message) as error:
        trained.predict(images)
    assert "\n" not in str(error.value)


def test_checkpoints_by_name_and_step(trained: TrainedModel) -> None:
    run = trained.run.path
    assert load(run, "best").step == trained.step
    assert load(str(run), "last").step == load(run, 8).step == load(run, "8").step == 8
    with pytest.raises(CheckpointError, match="has no checkpoint step 5; --checkpoint takes 8, 4"):
        load(run, 5)
    with pytest.raises(ConfigError, match="must be 'best', 'last' or a step: got 'newest'"):
        load(run, "newest")
    with pytest.raises(CheckpointError, match=r"no run in .*/rnu .*did you mean .*/run\?"):
        load(run.with_name("rnu"))


def test_evaluate_refuses_other_data_and_finds_data_that_moved(unchecked: None, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    images, labels = generator.integers(0, 256, (60, 8, 8)), np.arange(60) % 3
    write_idx(tmp_path / "data", images, labels)
    data = {"name": "idx", "root": str(tmp_path / "data"), "max_train_images": None}
    result = tiny_run(tmp_path / "run", tiny_config(data=data, epochs=1))
    (tmp_path / "data").rename(tmp_path / "moved")
    trained = load(tmp_path / "run")
    assert trained.evaluate(data=tmp_path / "moved").accuracy == result["test_accuracy"]
    write_idx(tmp_path / "other", 255 - images, labels)
    with pytest.raises(CheckpointError, match="the data is not what the run was trained on"):
        trained.evaluate(data=tmp_path / "other")


def test_diagnose(trained: TrainedModel, digits: Dataset) -> None:
    found = trained.diagnose(digits, images=8, only=("routing", "drift", "training"))
    assert found["images"] == 8
    assert len(found["routing"]["entropy"]) == 3
    assert len(found["drift"]["angle"]) == 2
    assert len(found["training"]["field_motion"]) == 2


def test_notes_go_to_the_callback(trained: TrainedModel, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(trained.run.path, tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    (checkpoints / "best").unlink()
    (checkpoints / "step-000008" / "weights.safetensors").write_bytes(b"damaged")
    notes: list[str] = []
    assert load(tmp_path / "run", note=notes.append).step == 4
    assert notes == ["checkpoint step 8 is damaged (size); falling back to step 4"]


def test_train_is_callable_from_the_package(tmp_path: Path) -> None:
    """`quatsphere.train` is both the package and the function, whether or not the package was imported before."""
    few = {"max_train_images": 16, "val_fraction": 0.02, "test_fraction": 0.02}
    result = quatsphere.train(tiny_config(data=few, epochs=1), tmp_path / "run")
    assert load(tmp_path / "run").evaluate().accuracy == result["test_accuracy"]
    code = "import sys, quatsphere; assert 'torch' not in sys.modules; assert callable(quatsphere.train)"
    subprocess.run([sys.executable, "-c", f"{code}; quatsphere.train.Reporter"], check=True)
