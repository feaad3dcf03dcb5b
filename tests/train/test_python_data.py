"""Data from Python: a torch Dataset trains as the same images from files do; estimates do not change a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny_runs import change, tiny_config
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

import quatsphere
from quatsphere.config import DataConfig
from quatsphere.data.in_memory import dataset_from
from quatsphere.data.load import DIGITS
from quatsphere.errors import ConfigError, DataError
from quatsphere.models import build_model
from quatsphere.train import Reporter, train
from quatsphere.train.load import start_from

pytestmark = pytest.mark.usefixtures("unchecked")


class Digits(TorchDataset[tuple[Any, Any]]):
    """The embedded digits as a torch Dataset; `view` makes the image of each item."""

    def __init__(self, view: Callable[[Tensor], Any] = lambda image: image, count: int | None = None) -> None:
        with np.load(DIGITS) as digits:
            levels, labels = digits["levels"][:count], digits["labels"][:count]
        self.images = torch.from_numpy(np.rint(levels * (255 / 16)).astype(np.uint8))[:, None]
        self.labels, self.view = labels, view

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.view(self.images[index]), self.labels[index]


VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "levels": lambda image: image,
    "floats": lambda image: image / 255,
    "array": lambda image: image[0].numpy(),
    "array with a channel": lambda image: image.permute(1, 2, 0).numpy(),
    "PIL": lambda image: Image.fromarray(image[0].numpy()),
}


class Estimating(Reporter):
    def __init__(self, run: Path) -> None:
        self.run, self.found, self.existed = run, {}, True

    def plan(self, estimate: Callable[[], dict[str, Any]]) -> None:
        self.existed, self.found = self.run.exists(), estimate()


def test_a_dataset_trains_as_the_same_images_by_name(tmp_path: Path) -> None:
    config = tiny_config(epochs=1)
    by_name = train(config, tmp_path / "name")
    reporter = Estimating(tmp_path / "data")
    from_python = train(config, tmp_path / "data", reporter=reporter, data=Digits())
    for key in ("fingerprint", "test", "val_accuracy", "predictions"):
        assert from_python[key] == by_name[key]
    assert not reporter.existed
    assert reporter.found["seconds"] > 0
    assert reporter.found["bytes"] > 4 * 4 * from_python["parameters"]
    trained = quatsphere.load(tmp_path / "data")
    assert trained.evaluate("test", Digits()).accuracy == from_python["test_accuracy"]
    with pytest.raises(DataError, match=r"passed from Python and has no files; pass it again as data="):
        trained.evaluate()


def test_run_folder_has_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quatsphere.train(tiny_config(epochs=1), data=Digits(count=200))
    assert Path("runs/python/result.json").is_file()


@pytest.mark.parametrize("view", VIEWS)
def test_images_of_any_kind_are_the_same_data(view: str) -> None:
    config = DataConfig(name="python")
    expected, found = dataset_from(Digits(count=200), config), dataset_from(Digits(VIEWS[view], 200), config)
    assert found.fingerprint == expected.fingerprint
    assert torch.equal(found.train.images, expected.train.images)
    assert found.classes == tuple("0123456789")


def test_a_pair_has_its_own_test_set_and_channels_are_converted() -> None:
    config = DataConfig(name="python", image_size=12, channels=3)
    dataset = dataset_from((Digits(count=200), Digits(count=30)), config)
    assert len(dataset.test) == 30
    assert dataset.train.images.shape[1:] == (3, 12, 12)
    assert torch.equal(dataset.train.images[:, 0], dataset.train.images[:, 2])


def test_any_number_of_channels() -> None:
    dataset = dataset_from(Digits(lambda image: image.repeat(5, 1, 1), 200), DataConfig(name="python"))
    assert dataset.train.images.shape[1:] == (5, 8, 8)
    assert len(dataset.mean) == 5


WRONG: dict[str, tuple[Any, str]] = {
    "no Dataset": (3, "has no length and items"),
    "empty": ([], "is empty"),
    "no pairs": ([torch.zeros(1, 8, 8)], "must be a pair"),
    "label": ([(torch.ones(1, 8, 8), 0.5)], "not a whole number from 0"),
    "word": ([(torch.ones(1, 8, 8), "cat")], "is not a whole number"),
    "normalised": ([(torch.randn(1, 8, 8) * 3, 0)], "without normalisation"),
    "shapes": ([(torch.ones(1, 8, 8), 0), (torch.ones(1, 9, 9), 1)], r"image 1 .* resize all with data.image_size"),
    "kind": ([("cat.png", 0)], "give a tensor, array or PIL image"),
    "three": ((1, 2, 3), "one Dataset or a pair"),
    "one class": ([(torch.rand(1, 8, 8), 0)] * 4, "only 1 class"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_data_is_one_line(case: str, tmp_path: Path) -> None:
    data, message = WRONG[case]
    with pytest.raises(DataError, match=message) as caught:
        train(tiny_config(epochs=1), tmp_path / "run", data=data)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


# Fine-tuning.


def test_weights_that_fit_are_carried_over_bit_for_bit() -> None:
    source = quatsphere.load("digits-qsv")
    notes: list[str] = []
    fresh = build_model(source.model.config, seed=7)
    start_from(fresh, "digits-qsv", source.classes, notes.append)
    given = source.model.state_dict()
    assert all(torch.equal(value, given[name]) for name, value in fresh.state_dict().items())
    assert notes[0] == "copied from digits-qsv: 38,543 of 38,543 parameters"
    assert notes[1].startswith("initialised: nothing; ")


def test_a_classifier_of_other_classes_starts_anew() -> None:
    source, notes = quatsphere.load("digits-qsv"), []
    fresh = build_model(source.model.config, seed=7)
    before = fresh.classifier.weight.detach().clone()
    start_from(fresh, "digits-qsv", tuple("abcdefghij"), notes.append)
    assert torch.equal(fresh.classifier.weight, before)
    assert torch.equal(fresh.embed.projection.weight, source.model.embed.projection.weight)
    assert "classifier (10 classes, 10 before)" in notes[1]


def test_a_resumed_run_does_not_need_the_initial_model(tmp_path: Path) -> None:
    source = quatsphere.load("digits-qsv").save_pretrained(tmp_path / "start")
    model = {"dim": 64, "heads": 4, "base_vertices": 32, "shells": 3, "neighbours": None, "rounds": 2}
    config = tiny_config(model=model, epochs=1, init=str(source))
    result = train(config, tmp_path / "run", data=Digits(count=300))
    source.rename(tmp_path / "gone")
    (tmp_path / "run" / "result.json").unlink()
    again = train(config, tmp_path / "run", quatsphere.ResumeOptions(resume=True), data=Digits(count=300))
    assert again["test"] == result["test"]
    with pytest.raises(Exception, match="no run in"):
        train(change(config, "train", seed=1), tmp_path / "other", data=Digits(count=300))


def test_another_model_is_refused() -> None:
    model = build_model(quatsphere.load("cifar10-resnet20").model.config)
    with pytest.raises(ConfigError, match="is a model 'qsv', not 'resnet20'"):
        start_from(model, "digits-qsv", ("a", "b"), print)
