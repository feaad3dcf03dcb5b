"""Behaviour of models: traces, errors, dropout keys, custom layouts, overfitting real images."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers.variants import SMALL
from torch import Tensor

from quatsphere import create_model
from quatsphere.errors import ConfigError
from quatsphere.geometry import sphere
from quatsphere.nn.layout import Layout, Shell
from quatsphere.nn.shell_step import Residual


def test_trace_names_every_intermediate() -> None:
    model = create_model("qsv", **SMALL).eval()
    images = torch.rand(2, 3, 16, 16)
    logits, trace = model(images, return_trace=True)
    assert torch.equal(logits, model(images))
    assert trace["tokens"].shape == (2, 16, 32)
    counts = [16, 16, 24, 32, 32, 32]  # targets of: embedding, within, two cross, two rounds
    for name in ("field", "scores", "weights", "aggregated", "update", "hidden"):
        assert [value.shape[1] for value in trace[name]] == counts[1:], name
    for neighbours, weights in zip(trace["neighbours"], trace["weights"], strict=True):
        assert weights.shape[1:3] == neighbours.shape
        assert torch.allclose(weights.sum(2), torch.ones(()))
    assert torch.allclose(trace["pool_weights"].sum(1), torch.ones(2))
    assert trace["pooled"].shape == (2, 32)
    assert torch.allclose(trace["field"][0].norm(dim=-1), torch.ones(()))


@pytest.mark.parametrize("name", ["attention", "resnet20"])
def test_traces_of_the_baselines(name: str) -> None:
    model = create_model(name).eval()
    images = torch.rand(1, 3, 32, 32)
    logits, trace = model(images, return_trace=True)
    assert torch.equal(logits, model(images))
    assert {"tokens", "pooled", "logits"} <= set(trace)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("qvs", {}, "unknown model 'qvs'; did you mean 'qsv'"),
        ("attention", {"transport": "identity"}, "model 'attention' has no setting 'transport'"),
        ("attention", {"routing": "alignment"}, "routing must be softmax or uniform: got 'alignment'"),
        ("qsv", {"base_vertices": 4, "shells": 1, "self_neighbour": False}, "k=4 neighbours .* only 3 other vertices"),
        ("resnet20", {"rounds": 2}, "model 'resnet20' has no setting 'rounds'"),
        ("qsv", {"routng": "uniform"}, "has no setting 'routng'; did you mean 'routing'"),
        ("qsv", {"routing": "sharp"}, "routing must be alignment or absolute or uniform or geometric: got 'sharp'"),
        ("qsv", {"dim": 250}, "a multiple of 64: got 250; nearest legal value 256"),
        ("qsv", {"heads": 0}, "heads must be >= 1: got 0; nearest legal value 1"),
        ("qsv", {"dim": 2.5}, "dim must be a whole number: got 2.5"),
        ("qsv", {"neighbours": 129}, "neighbours must lie in 1..128.*nearest legal value 128"),
        ("qsv", {"base_vertices": 3}, "base_vertices must be >= 4: got 3; nearest legal value 4"),
        ("qsv", {"base_vertices": 5}, "shell 2 needs k=6 neighbours but a source shell has only 5"),
        ("qsv", {"shells": 0}, "shells must be >= 1: got 0; nearest legal value 1"),
        ("qsv", {"inner_radius": 1.0}, "radii must be positive and decrease inwards"),
        ("qsv", {"inner_radius": -0.4}, "radii must be positive and decrease inwards"),
        ("qsv", {"layout": "plane", "routing": "geometric"}, "routing 'geometric' compares directions on the sphere"),
        ("qsv", {"layout": "plane", "base_vertices": 100}, "multiple of 16 vertices: got 100; nearest legal value 96"),
        ("qsv", {"beta_start": 0.05}, "beta_start must be > 0.1"),
        ("qsv", {"attention_dropout": 1.0}, r"attention_dropout must lie in \[0, 1\)"),
        ("attention", {"dim": 100, "heads": 6}, "dim must be a multiple of heads=6: got 100; nearest legal value 102"),
        ("attention", {"budget": 100}, "no width fits a budget of 100 parameters"),
    ],
)  # fmt: skip
def test_impossible_models_state_the_rule(name: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_model(name, **changes)


def test_dropout_follows_the_keys_and_not_the_batch() -> None:
    model = create_model("qsv", **SMALL).train()
    images, keys = torch.rand(4, 3, 16, 16), torch.tensor([3, 1, 4, 15])
    whole = model(images, sample_keys=keys)
    assert torch.allclose(whole[1:3], model(images[1:3], sample_keys=keys[1:3]), atol=1e-6)
    assert not torch.allclose(whole, model(images, sample_keys=keys + 1), atol=1e-3)
    torch.manual_seed(0)
    first = model(images)
    torch.manual_seed(0)
    assert torch.equal(first, model(images))


def test_custom_layout() -> None:
    torch.manual_seed(0)
    cloud = [sphere.directions(torch.randn(n, 3)) * r for n, r in ((20, 1.0), (20, 0.8), (30, 0.5))]
    layout = Layout([Shell(points, True) for points in cloud], [5, 5, 6], "geometric")
    model = create_model("qsv", dim=32, heads=4, layout=layout)
    assert model.layout.vertex_counts == [20, 20, 30]
    assert isinstance(model.cross[0].gate, Residual)  # equal sizes: the residual is added directly
    model(torch.rand(2, 3, 32, 32)).sum().backward()


def test_graph_follows_moved_positions() -> None:
    model = create_model("qsv", **SMALL).eval()
    before = model.layout.cross[0].neighbours
    with torch.no_grad():
        model.layout.shells[1].positions.copy_(model.layout.shells[1].positions.flip(0))
    model(torch.rand(1, 3, 16, 16))
    assert torch.equal(model.layout.cross[0].neighbours, before.flip(0))


def test_state_dict_round_trip() -> None:
    one, two = create_model("qsv", **SMALL, seed=1).eval(), create_model("qsv", **SMALL, seed=2).eval()
    two.load_state_dict(one.state_dict())
    images = torch.rand(2, 3, 16, 16)
    assert torch.equal(one(images), two(images))


def test_wrap_is_exact_for_rotated_panoramas() -> None:
    """With `wrap`, turning the image by a whole number of pixels is sampled exactly as turned coordinates."""
    model = create_model("qsv", **SMALL, wrap_longitude=True).eval()
    images = torch.rand(1, 3, 16, 16)
    coords = model.layout.image_coords()
    turned = coords + torch.tensor([2 * 4 / 16, 0.0])
    assert torch.allclose(model.embed(images.roll(4, dims=-1), turned), model.embed(images, coords), atol=1e-4)


def test_overfits_64_real_images(cifar_images: tuple[Tensor, Tensor]) -> None:
    images, labels = cifar_images
    images = (images - images.mean((0, 2, 3), keepdim=True)) / images.std((0, 2, 3), keepdim=True)
    model = create_model(
        "qsv", dim=64, heads=4, base_vertices=32, shells=2, attention_dropout=0.0, output_dropout=0.0, rounds=1
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(400):
        optimiser.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimiser.step()
        model.constrain()
        if loss < 0.01:
            break
    accuracy = (model.eval()(images).argmax(1) == labels).float().mean()
    assert accuracy == 1.0
