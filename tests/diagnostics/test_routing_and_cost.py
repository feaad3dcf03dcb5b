"""Routing weights, summaries, costs and gradient maps on cases with known values."""

from __future__ import annotations

from itertools import count

import pytest
import torch
from torch import Tensor, nn

from quatsphere.diagnostics.cost_breakdown import fractions, time_parts, timed_methods
from quatsphere.diagnostics.measures import (
    HISTOGRAM_BINS,
    MAX_MAP_SIDE,
    effective_share,
    gradient_map,
    histogram_edges,
    pixel_gradients,
    summarize,
    to_json_values,
    weight_histogram,
    weighted_mean,
)
from quatsphere.diagnostics.traced_model import patched_attribute
from quatsphere.models import create_model
from quatsphere.nn.trace import routing_entropy, routing_peak


@pytest.mark.parametrize("k", [4, 14, 16])
def test_uniform_weights(k: int) -> None:
    weights = torch.full((2, 3, k, 4), 1 / k)
    assert (routing_entropy(weights), routing_peak(weights)) == pytest.approx((1, 1))
    histogram = weight_histogram(weights)
    assert histogram_edges()[int(histogram.argmax())] == 1.0
    assert histogram.max() == histogram.sum() == 1


def test_all_weight_on_one_neighbour() -> None:
    weights = torch.zeros(1, 1, 8, 1)
    weights[:, :, 3] = 1
    histogram = weight_histogram(weights)
    assert len(histogram) == HISTOGRAM_BINS == len(histogram_edges()) - 1
    assert histogram[0] == 7 / 8
    assert histogram[-1] == 1 / 8  # 8 times the uniform weight is beyond the last edge


def test_summarize() -> None:
    values = torch.arange(101.0)[torch.randperm(101)]
    assert summarize(values) == {"mean": 50, "q05": 5, "q50": 50, "q95": 95, "max": 100}


def test_weighted_mean() -> None:
    assert weighted_mean([torch.tensor([1.0]), torch.tensor([4.0])], [2.0, 1.0]).tolist() == [2.0]


def test_to_json_values() -> None:
    value = {"a": torch.tensor([1 / 3, 2.0]), 3: [(1.23456789, None)], "n": 7, "flag": True}
    assert to_json_values(value) == {"a": [0.333333, 2.0], "3": [[1.23457, None]], "n": 7, "flag": True}


def test_patched_attribute_is_restored() -> None:
    layer, ones = nn.Linear(2, 2), torch.ones(2)
    before = layer(ones)
    with patched_attribute(layer, "forward", lambda forward: lambda x: 2 * forward(x)):
        assert torch.equal(layer(ones), 2 * before)
        with patched_attribute(layer, "forward", lambda forward: lambda x: 3 * forward(x)):
            assert torch.allclose(layer(ones), 6 * before)
        assert torch.equal(layer(ones), 2 * before)
    assert torch.equal(layer(ones), before)
    assert "forward" not in vars(layer)


def test_patched_attribute_is_restored_after_an_error() -> None:
    layer = nn.Linear(2, 2)

    def fail() -> None:
        with patched_attribute(layer, "forward", lambda forward: None):
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert "forward" not in vars(layer)


SMALL = {
    "qsv": {"dim": 16, "heads": 2, "base_vertices": 16, "shells": 2, "image_size": 8, "backend": "factored"},
    "attention": {"dim": 16, "heads": 2, "base_vertices": 16, "shells": 2, "image_size": 8},
    "resnet20": {"width": 2, "image_size": 8},
}


@pytest.mark.parametrize("name", SMALL)
def test_times_of_all_parts(name: str) -> None:
    """With a clock that advances at every reading, each call of a timed method takes one tick."""
    model = create_model(name, **SMALL[name])
    ticks = count()
    calls = len(timed_methods(model))
    seconds = time_parts(model, torch.randn(2, 3, 8, 8), repeats=2, clock=lambda: float(next(ticks)))
    parts = {part for part, _, _ in timed_methods(model)}
    assert set(seconds) == parts | {"rest"}
    assert sum(seconds[part] for part in parts) == calls
    assert sum(seconds.values()) * 2 == 2 * 2 * calls + 1
    assert not any(method in vars(owner) for _, owner, method in timed_methods(model))


def test_fractions() -> None:
    assert fractions({"a": 1.0, "b": 3.0}) == {"a": 0.25, "b": 0.75}
    assert fractions({"a": 0.0}) == {"a": 0.0}


class Linear(nn.Module):
    """Two logits: a weighted sum of pixels, and a constant."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, images: Tensor) -> Tensor:
        logit = (images * self.weight).sum((1, 2, 3))
        return torch.stack((logit, torch.full_like(logit, -100.0)), dim=1)


def test_gradient_of_a_linear_model_is_its_weight() -> None:
    weight = torch.zeros(2, 4, 4)
    weight[0, 1, 2], weight[1, 1, 2], weight[0, 3, 3] = 1.0, -2.0, 1.0
    total = pixel_gradients(Linear(weight), torch.rand(5, 2, 4, 4))
    expected = torch.zeros(4, 4, dtype=torch.float64)
    expected[1, 2], expected[3, 3] = 15, 5
    assert torch.equal(total, expected)
    assert gradient_map(total)[1, 2] == 0.75
    assert gradient_map(total).sum() == 1


def test_effective_share_of_pixels() -> None:
    assert effective_share(torch.full((8, 8), 1 / 64)) == pytest.approx(1)
    one = torch.zeros(8, 8)
    one[2, 3] = 1
    assert effective_share(one) == pytest.approx(1 / 64)
    half = torch.zeros(8, 8)
    half[:4] = 1 / 32
    assert effective_share(half) == pytest.approx(0.5)
    assert effective_share(torch.zeros(2, 2)) == 0


def test_large_images_are_averaged_down() -> None:
    assert gradient_map(torch.rand(2 * MAX_MAP_SIDE, 96)).shape == (MAX_MAP_SIDE, MAX_MAP_SIDE)
