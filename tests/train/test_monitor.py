"""Measures of routing and field that are logged each epoch."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.tiny_runs import tiny_config

from quatsphere.data import Dataset, Split
from quatsphere.geometry.quaternion import exp, multiply, random_unit
from quatsphere.models import build_model, create_model
from quatsphere.models.scoring import measure_routing
from quatsphere.nn.trace import field_motion, routing_entropy, routing_peak
from quatsphere.storage.run_folder import RunFolder
from quatsphere.train import Reporter
from quatsphere.train.checkpointing import RunContext
from quatsphere.train.distributed import Team
from quatsphere.train.resources import StopSwitch
from quatsphere.train.run import fit_to_data, load_data
from quatsphere.train.trainer import MONITORED_IMAGES, Trainer


@pytest.mark.parametrize("k", [2, 5, 16])
def test_uniform_weights_have_entropy_one_and_peak_one(k: int) -> None:
    weights = torch.full((2, 3, k, 4), 1 / k)
    assert routing_entropy(weights) == pytest.approx(1)
    assert routing_peak(weights) == pytest.approx(1)


@pytest.mark.parametrize("k", [2, 5, 16])
def test_one_hot_weights_have_entropy_zero_and_peak_k(k: int) -> None:
    weights = torch.zeros(2, 3, k, 4)
    weights[:, :, 1] = 1
    assert routing_entropy(weights) == 0
    assert routing_peak(weights) == k


def test_weights_on_half_of_the_neighbours() -> None:
    weights = torch.tensor([0.5, 0.5, 0, 0]).view(1, 1, 4, 1)
    assert routing_entropy(weights) == pytest.approx(math.log(2) / math.log(4))
    assert routing_peak(weights) == 2


def test_single_neighbour_is_uniform() -> None:
    assert routing_entropy(torch.ones(1, 1, 1, 1)) == 1


def test_field_motion_is_the_mean_rotation_angle() -> None:
    """q ⊗ exp(ω) rotates by 2 |ω|, regardless of the sign."""
    q = random_unit(6, 4)
    turned = multiply(q, exp(torch.tensor([0.05, 0.0, 0.0]).expand(6, 4, 3)))
    assert field_motion([q, -turned], [q, q]) == pytest.approx([0, 0.1], abs=1e-3)
    assert field_motion([q], None) == []


def test_routing_measures_of_qsv() -> None:
    model = build_model(tiny_config(model={"image_size": 8, "in_channels": 1}).model)
    model.train()
    measured = measure_routing(model, torch.randn(3, 1, 8, 8))
    assert model.training
    assert {name: len(values) for name, values in measured.items()} == {
        "routing_entropy": 3,
        "routing_peak": 3,
        "beta": 3,
        "beta_heads": 3,
        "bound": 2,
    }
    assert measured["beta"] == pytest.approx([math.log(2) + 0.1] * 3, rel=1e-5)
    assert [len(heads) for heads in measured["beta_heads"]] == [4] * 3
    assert [sum(heads) / 4 for heads in measured["beta_heads"]] == pytest.approx(measured["beta"], rel=1e-5)
    assert measured["bound"] == pytest.approx([(0.01 + math.pi / 4) / 2] * 2, rel=1e-5)
    assert all(0 < value <= 1 for value in measured["routing_entropy"])
    assert all(1 <= value <= 4 for value in measured["routing_peak"])


def test_measures_do_not_depend_on_the_batch_size() -> None:
    model = build_model(tiny_config(model={"image_size": 8, "in_channels": 1}).model)
    images = torch.randn(7, 1, 8, 8)
    whole, parts = measure_routing(model, images, batch_size=7), measure_routing(model, images, batch_size=3)
    assert parts.keys() == whole.keys()
    assert parts.pop("beta_heads") == whole.pop("beta_heads")
    assert all(parts[name] == pytest.approx(whole[name], rel=1e-5) for name in whole)


def test_routing_measures_of_a_model_without_routing() -> None:
    measured = measure_routing(create_model("resnet20", width=4), torch.randn(2, 3, 32, 32))
    assert measured == {name: [] for name in ("routing_entropy", "routing_peak", "beta", "beta_heads", "bound")}


@pytest.mark.parametrize("count", [7, 256, 400, 1000])
def test_monitored_images_cover_all_classes(count: int, tmp_path: object) -> None:
    """Validation images are sorted by class: the first 256 of 400 would miss the last classes."""
    config = tiny_config()
    digits = load_data(config.data, print)
    levels = torch.arange(count, dtype=torch.float64) * 255 / max(1, count - 1)
    images = levels.byte().view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    val = Split(images, torch.zeros(count, dtype=torch.int64))
    dataset = Dataset(*("x", digits.classes, digits.train, val, digits.test, digits.mean, digits.std, "f", ()))
    context = RunContext(RunFolder("nowhere"), Team(), torch.device("cpu"), Reporter(), StopSwitch())
    config = fit_to_data(config, dataset)
    seen = Trainer(config, dataset, build_model(config.model), context).monitored_images()[:, 0, 0, 0]
    assert len(seen) == min(count, MONITORED_IMAGES)
    assert seen.diff().min() >= 0
    ends = (torch.tensor([0.0, 1.0]) - digits.mean) / digits.std
    assert seen[0] == pytest.approx(ends[0].item(), abs=0.05)
    assert seen[-1] == pytest.approx(ends[1].item(), abs=0.05)
