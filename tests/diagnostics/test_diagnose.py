"""Diagnoses of untrained models, of all kinds of models, and against independent computations."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from quatsphere.data import Dataset, load_dataset
from quatsphere.diagnostics import PAPER_VALUES, SCHEMA, diagnose
from quatsphere.diagnostics.diagnose import SECTIONS
from quatsphere.diagnostics.traced_model import transport_effects, transport_off
from quatsphere.errors import ConfigError
from quatsphere.models import QSV, Model, create_model
from quatsphere.models.lattice import model_steps
from quatsphere.models.scoring import Evaluation, measure_routing
from quatsphere.train.evaluation import evaluate

SMALL: dict[str, Any] = {"image_size": 8, "in_channels": 1, "base_vertices": 16, "shells": 2}
SMALL_QSV: dict[str, Any] = {**SMALL, "dim": 16, "heads": 2, "neighbours": 4, "rounds": 1, "backend": "factored"}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qsv": ("qsv", SMALL_QSV),
    "plane": ("qsv", {**SMALL_QSV, "layout": "plane", "plane_rows": 4}),
    "readings": (
        "qsv",
        {
            **SMALL_QSV,
            "stencil": "pitch",
            "perturbation": "shell",
            "inner_skip": "residual",
            "pooling": "quaternion_per_head",
            "self_neighbour": False,
        },
    ),
    "mixed": ("qsv", {**SMALL_QSV, "transport": "lift", "head_mixing": "linear"}),
    "attention": ("attention", {**SMALL, "dim": 16, "heads": 2}),
    "attention_uniform": ("attention", {**SMALL, "dim": 16, "heads": 2, "routing": "uniform"}),
    "resnet20": ("resnet20", {"image_size": 8, "in_channels": 1, "width": 2}),
}
NO_FIELD = {"spread", "beta", "bound", "heads", "drift", "holonomy", "transport"}
ABSENT = {
    "qsv": {"training"},
    "plane": {"training", "graphs"},
    "readings": {"training"},
    "mixed": {"training"},
    "attention_uniform": {"training"} | NO_FIELD,
    "attention": {"training"} | NO_FIELD,
    "resnet20": {"training", "routing", "coverage", "graphs"} | NO_FIELD,
}


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


def build(kind: str, **more: Any) -> Model:
    name, settings = MODELS[kind]
    return create_model(name, seed=3, **{**settings, **more})


def perturbed(kind: str = "qsv", **more: Any) -> Model:
    """Return a model with noise added to its parameters, so that the perturbation networks are active."""
    model = build(kind, **more)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith((".base", ".positions")):
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.fixture(scope="module")
def found(digits: Dataset) -> dict[str, dict[str, Any]]:
    return {kind: diagnose(build(kind), digits, images=20, accuracy_images=30, seed=3) for kind in MODELS}


@pytest.mark.parametrize("kind", MODELS)
def test_absent_sections_by_model(kind: str, found: dict[str, dict[str, Any]]) -> None:
    seen = found[kind]
    assert {name for name in SECTIONS if "absent" in seen[name]} == ABSENT[kind]
    assert all(seen[name]["absent"] for name in ABSENT[kind])
    assert (seen["schema"], seen["model"]) == (SCHEMA, MODELS[kind][0])
    assert seen["paper"] == {}  # digits are not the paper's data
    assert json.loads(json.dumps(seen, allow_nan=False)) == seen


@pytest.mark.parametrize("kind", ["qsv", "attention"])
def test_papers_values_only_for_qsv_on_cifar10(kind: str, digits: Dataset) -> None:
    seen = diagnose(build(kind), replace(digits, name="cifar10"), images=4, only=["routing"])
    assert seen["paper"] == (PAPER_VALUES if kind == "qsv" else {})


def test_an_untrained_model(found: dict[str, dict[str, Any]]) -> None:
    """β has a zero logit, ω = 0, there is no drift and no displacement, and the spread is below Haar's."""
    seen = found["qsv"]
    assert seen["beta"]["mean"] == pytest.approx([math.log(2) + 0.1] * 3, rel=1e-5)
    assert all(shell["value"] == pytest.approx((0.01 + math.pi / 4) / 2, rel=1e-5) for shell in seen["bound"]["shells"])
    assert all(shell["used"]["max"] < 1e-3 for shell in seen["bound"]["shells"])
    assert seen["drift"]["angle"] == [0, 0]
    assert all(shell["displacement"] == {"mean": 0, "max": 0} for shell in seen["coverage"]["shells"])
    assert all(0.5 < angle < 2.2 for angle in seen["spread"]["orientation"])
    assert all(0 < entropy <= 1 for entropy in seen["routing"]["entropy"])
    assert set(seen["graphs"]["agreement"][1].values()) == {1.0}
    assert seen["holonomy"]["angle"] < 1e-6
    assert seen["holonomy"]["carried"] < 1e-4
    assert [step["name"] for step in seen["steps"]] == ["within", "cross 1", "round 1"]
    assert [(step["source"], step["target"]) for step in seen["steps"]] == [(1, 1), (1, 2), (2, 2)]


def test_shares_sum_to_one(found: dict[str, dict[str, Any]]) -> None:
    for kind in MODELS:
        parts = found[kind]["parts"]
        assert parts["total"] == sum(p.numel() for p in build(kind).parameters())
        assert sum(parts["parameter_share"].values()) == pytest.approx(1, abs=1e-4)
        assert sum(parts["time_share"].values()) == pytest.approx(1, abs=1e-4)
        assert sum(map(sum, found[kind]["receptive"]["map"])) == pytest.approx(1, abs=1e-3)
        if "absent" not in found[kind]["routing"]:
            for row in found[kind]["routing"]["histogram"]["shares"]:
                assert sum(row) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("kind", ["qsv", "attention"])
def test_routing_agrees_with_the_training_log(kind: str, digits: Dataset) -> None:
    """Another pass over the same images gives the measures of metrics.jsonl."""
    model = perturbed(kind)
    seen = diagnose(model, digits, images=20, only=["routing"])
    images = digits.val.images[torch.arange(20) * len(digits.val) // 20]
    logged = measure_routing(model, (images / 255 - digits.mean.view(-1, 1, 1)) / digits.std.view(-1, 1, 1))
    assert seen["routing"]["entropy"] == pytest.approx(logged["routing_entropy"], rel=1e-4)
    assert seen["routing"]["peak"] == pytest.approx(logged["routing_peak"], rel=1e-4)
    assert set(seen) & set(SECTIONS) == {"routing"}


def test_accuracy_agrees_with_evaluate(digits: Dataset) -> None:
    model = perturbed()
    section = diagnose(model, digits, split="test", only=["accuracy"])["accuracy"]
    expected = evaluate(model, digits, "test")
    assert section["held_out"]["accuracy"] == pytest.approx(expected.accuracy, rel=1e-5)
    assert section["held_out"]["confusion"] == expected.confusion.tolist()
    assert section["train"]["images"] == len(digits.test)
    assert section["gap"] == pytest.approx(section["train"]["accuracy"] - expected.accuracy, abs=1e-5)


def test_uniform_routing_is_uniform(digits: Dataset) -> None:
    seen = diagnose(perturbed(routing="uniform"), digits, images=4, only=["routing", "beta"])
    assert seen["routing"]["entropy"] == seen["routing"]["peak"] == [1, 1, 1]
    assert seen["beta"]["used"] is False
    seen = diagnose(perturbed("attention_uniform"), digits, images=4, only=["routing"])
    assert seen["routing"]["entropy"] == seen["routing"]["peak"] == [1, 1]


def test_graph_metrics_ignore_the_vertex_itself(found: dict[str, dict[str, Any]]) -> None:
    assert found["readings"]["graphs"] == found["qsv"]["graphs"]


def test_a_frozen_identity_field(digits: Dataset) -> None:
    only = ["spread", "bound", "heads", "drift"]
    seen = diagnose(build("qsv", field_mode="frozen_identity"), digits, images=4, seed=3, only=only)
    assert seen["spread"] == {"orientation": [0, 0, 0], "score": [0, 0, 0]}
    assert seen["heads"]["similarity"] == [1, 1]
    assert seen["bound"] == {"absent": "the field is not perturbed"}


def test_saturated_perturbation_reaches_its_bound(digits: Dataset) -> None:
    """Saturated networks reach ε in every component: |ω|/ε = √3."""
    model = perturbed()
    with torch.no_grad():
        for step in model_steps(model):
            step.module.perturbation.outer_bias.fill_(50.0)
    shells = diagnose(model, digits, images=4, only=["bound"])["bound"]["shells"]
    assert all(shell["used"]["q05"] == pytest.approx(math.sqrt(3), rel=1e-4) for shell in shells)
    assert all(shell["used"]["max"] == pytest.approx(math.sqrt(3), rel=1e-4) for shell in shells)


def test_unbounded_perturbation_has_no_ratio(digits: Dataset) -> None:
    shells = diagnose(perturbed(bound="none"), digits, images=4, only=["bound"])["bound"]["shells"]
    assert all(shell["value"] is None and shell["used"] is None and shell["tangent"]["mean"] > 0 for shell in shells)


def test_drift_of_a_rotated_field(digits: Dataset) -> None:
    model = build("qsv")
    assert isinstance(model, QSV)
    with torch.no_grad():
        for field in model.fields:
            field.base.copy_(field.base[..., [1, 0, 3, 2]] * torch.tensor([-1.0, 1, 1, -1]))  # times i: half a turn
    seen = diagnose(model, digits, seed=3, only=["drift"])
    assert seen["drift"]["angle"] == pytest.approx([math.pi, math.pi], rel=1e-5)
    assert "absent" in diagnose(model, digits, only=["drift"])["drift"]


@pytest.mark.parametrize("transport", ["sandwich", "one_sided", "lift", "lower"])
def test_transport_off_equals_the_identity_variant(transport: str, digits: Dataset) -> None:
    full, off = perturbed(transport=transport), perturbed(transport="identity")
    off.load_state_dict(full.state_dict())
    images = torch.randn(3, 1, 8, 8)
    full.eval()
    off.eval()
    before = full(images)
    with transport_off(model_steps(full), torch.ones(2, dtype=torch.bool)):
        assert torch.allclose(full(images), off(images), atol=1e-6)
    with transport_off(model_steps(full), torch.zeros(2, dtype=torch.bool)):
        assert torch.equal(full(images), before)
    with transport_off(model_steps(full), torch.tensor([True, False])):
        one = full(images)
    assert torch.equal(full(images), before)
    assert not torch.allclose(one, before, atol=1e-4)
    assert not torch.allclose(one, off(images), atol=1e-4)


def test_effects_of_transport_are_differences(digits: Dataset) -> None:
    model = perturbed()
    model.eval()
    images, labels = torch.randn(40, 1, 8, 8), torch.arange(40) % 10

    def evaluate_images() -> Evaluation:
        with torch.no_grad():
            return Evaluation(model(images), labels, digits.classes)

    effects = transport_effects(model, evaluate_images)
    with transport_off(model_steps(model), torch.tensor([False, True])):
        second = evaluate_images()
    assert effects["heads"][1]["nll"] == pytest.approx(second.nll - effects["nll"])
    assert (len(effects["heads"]), len(effects["steps"])) == (2, 3)


def test_transport_has_no_effect_on_an_aligned_field(digits: Dataset) -> None:
    section = diagnose(perturbed(field_mode="frozen_identity"), digits, images=20, only=["transport"])["transport"]
    assert all(abs(effect["nll"]) < 1e-5 for effect in (*section["heads"], *section["steps"], section["all"]))
    assert "absent" in diagnose(perturbed(transport="identity"), digits, images=4, only=["transport"])["transport"]


def test_measures_by_epoch(digits: Dataset) -> None:
    records = [
        {"epoch": e, "beta": [1.0, 2.0], "beta_heads": [[0.5, 1.5], [2.0, 2.0]], "train": {"loss": 3.0 - e}}
        for e in (1, 2)
    ]
    seen = diagnose(build("resnet20"), digits, metrics=records, only=["training"])["training"]
    assert (seen["epoch"], seen["train_loss"], seen["beta"]) == ([1, 2], [2, 1], [[1, 2], [1, 2]])
    assert (seen["beta_min"], seen["beta_max"]) == ([[0.5, 2], [0.5, 2]], [[1.5, 2], [1.5, 2]])


def test_mode_is_restored_and_progress_reported(digits: Dataset) -> None:
    model = build("qsv")
    model.train()
    reported: list[tuple[str, int, int]] = []
    diagnose(model, digits, images=4, accuracy_images=8, progress=lambda *state: reported.append(state))
    assert model.training
    assert {name for name, _, _ in reported} >= {"accuracy", "routing", "transport"}


def test_invalid_arguments(digits: Dataset) -> None:
    with pytest.raises(ConfigError, match="no section 'rooting'"):
        diagnose(build("qsv"), digits, only=["rooting"])
    with pytest.raises(ConfigError, match="images must be >= 1"):
        diagnose(build("qsv"), digits, images=0)


def test_documentation_explains_every_section() -> None:
    text = (Path(__file__).parents[2] / "docs" / "diagnostics.md").read_text()
    assert [name for name in SECTIONS if f"`{name}`" not in text] == []
    assert f"`schema` {SCHEMA}" in text
