"""Accuracy, confusion, likelihood and calibration against values computed by hand."""

from __future__ import annotations

import json
import math

import pytest
import torch
from helpers.tiny_runs import tiny_config
from hypothesis import given
from hypothesis import strategies as st

from quatsphere.data import Dataset
from quatsphere.models import build_model
from quatsphere.train import Evaluation, evaluate, predict_logits
from quatsphere.train.evaluation import pack_indices, unpack_indices
from quatsphere.train.run import fit_to_data, load_data

THREE = ("a", "b", "c")


def test_perfect_model() -> None:
    labels = torch.tensor([0, 1, 2, 2])
    found = Evaluation(torch.nn.functional.one_hot(labels, 3) * 100.0, labels, THREE)
    assert found.accuracy == 1
    assert found.per_class == {"a": 1, "b": 1, "c": 1}
    assert found.confusion.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 2]]
    assert found.nll == pytest.approx(0, abs=1e-12)
    assert found.ece == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_constant_logits(classes: int) -> None:
    labels = torch.arange(classes)
    found = Evaluation(torch.zeros(classes, classes), labels, tuple(map(str, range(classes))))
    assert found.nll == pytest.approx(math.log(classes))
    assert found.accuracy == pytest.approx(1 / classes)
    assert found.ece == pytest.approx(0, abs=1e-12)


def test_confusion_has_labels_in_rows() -> None:
    logits = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]])
    found = Evaluation(logits, torch.tensor([0, 0, 1, 1]), THREE)
    assert found.confusion.tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 0]]
    assert found.per_class == {"a": 0.5, "b": 0.5, "c": None}
    assert found.accuracy == 0.5


def two_class_logits(confidence: float, count: int) -> torch.Tensor:
    """Rows with this probability of the first class."""
    return torch.tensor([[math.log(confidence), math.log(1 - confidence)]]).repeat(count, 1)


@pytest.mark.parametrize(("right", "gap"), [(8, 0.0), (10, 0.2), (5, 0.3), (0, 0.8)])
def test_calibration_of_one_confidence(right: int, gap: float) -> None:
    """Confidence 0.8 everywhere is calibrated if 8 of 10 are right."""
    labels = torch.tensor([0] * right + [1] * (10 - right))
    assert Evaluation(two_class_logits(0.8, 10), labels, ("a", "b")).ece == pytest.approx(gap, abs=1e-6)


def test_calibration_weighs_bins_by_their_images() -> None:
    """30 images at confidence 0.9, all right, and 10 at 0.6, all wrong."""
    logits = torch.cat([two_class_logits(0.9, 30), two_class_logits(0.6, 10)])
    labels = torch.tensor([0] * 30 + [1] * 10)
    assert Evaluation(logits, labels, ("a", "b")).ece == pytest.approx(0.75 * 0.1 + 0.25 * 0.6, abs=1e-6)


def test_report_is_plain_json() -> None:
    found = Evaluation(torch.eye(3), torch.tensor([0, 1, 2]), THREE).report()
    assert set(found) == {"images", "accuracy", "nll", "ece", "per_class", "confusion"}
    assert json.loads(json.dumps(found)) == found


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_data(tiny_config().data, print)


def test_logits_do_not_depend_on_the_batch_size_or_change_the_mode(digits: Dataset) -> None:
    model = build_model(fit_to_data(tiny_config(), digits).model)
    model.train()
    seen: list[tuple[int, int]] = []
    few = predict_logits(
        model, digits, digits.val.images, batch_size=7, progress=lambda done, total: seen.append((done, total))
    )
    many = predict_logits(model, digits, digits.val.images)
    assert model.training
    assert torch.allclose(few, many, atol=1e-5)
    assert seen[0] == (7, len(digits.val))
    assert seen[-1] == (len(digits.val), len(digits.val))
    assert predict_logits(model, digits, digits.val.images[:0]).shape == (0, 10)


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_split_is_chosen_by_name(split: str, digits: Dataset) -> None:
    model = build_model(fit_to_data(tiny_config(), digits).model)
    found = evaluate(model, digits, split)
    assert torch.equal(found.labels, getattr(digits, split).labels)
    assert len(found.logits) == len(found.labels)


@given(st.lists(st.integers(0, 65_535), max_size=300))
def test_packed_predictions_round_trip(classes: list[int]) -> None:
    indices = torch.tensor(classes, dtype=torch.int64)
    assert unpack_indices(pack_indices(indices)).tolist() == classes
