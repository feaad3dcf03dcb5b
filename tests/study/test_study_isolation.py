"""Every row changes only the component it targets; the check finds any other difference."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from quatsphere.config.resolve import flat_settings
from quatsphere.data import Dataset, load_dataset
from quatsphere.study.isolation import find_differences
from quatsphere.study.plan import Cell, cell_config, make_config
from quatsphere.study.variants import SCALES, VARIANTS, Variant


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits", max_train_images=64)


def cell_of(row: str, seed: int = 1, **more: Any) -> Cell:
    """A smoke cell with settings beyond those its row changes."""
    config = cell_config(SCALES["smoke"], "digits", row, seed, data_root=None, settings={})
    changes = {key.replace("__", "."): value for key, value in more.items()}
    return Cell("digits", row, seed, make_config({**flat_settings(config), **changes}))


@pytest.mark.parametrize("row", VARIANTS)
def test_only_the_target_changes(row: str, digits: Dataset) -> None:
    variant = VARIANTS[row]
    assert find_differences(cell_of(row), cell_of(variant.reference), variant, digits) == []


@pytest.mark.parametrize(
    ("more", "seen"),
    [
        ({"optim__peak_lr": 1e-3}, "setting optim.peak_lr"),
        ({"train__label_smoothing": 0.0}, "batch"),
        ({"train__seed": 2}, "has other initial values"),
        ({"train__seed": 2}, "batch"),
        ({"data__crop_pad": 0}, "batch"),
        ({"data__trivial_augment": True}, "batch"),
        ({"train__batch_size": 16}, "batch"),
        ({"model__field_init": "haar"}, "fields.0.base has other initial values"),
        ({"model__rounds": 0}, "parameter rounds.0.post.weight is gone"),
        ({"model__rounds": 2}, "parameter rounds.1.post.weight is new"),
        ({"model__dim": 64}, "parameter embed.projection.weight has shape (64, 25), in the reference (32, 25)"),
        ({"model__beta_start": 5.0}, "cross.0.routing.beta_logit has other initial values"),
        ({"model__positions": "frozen"}, "parameter layout.shells.0.positions is gone"),
    ],
)
def test_other_differences_are_found(more: dict[str, Any], seen: str, digits: Dataset) -> None:
    found = find_differences(
        cell_of("transport_identity", **more), cell_of("full"), VARIANTS["transport_identity"], digits
    )
    assert any(seen in text for text in found), found


def test_effects_of_named_settings_must_be_declared(digits: Dataset) -> None:
    """Naming a setting does not declare its effect on the initial state."""
    greedy = Variant("x", {"model.transport": "identity", "model.rounds": 0})
    found = find_differences(cell_of("transport_identity", model__rounds=0), cell_of("full"), greedy, digits)
    assert found
    assert all("rounds" in text for text in found)


@pytest.mark.parametrize(
    ("allowed", "seen"),
    [
        ({"removes": ("rounds.*",)}, "declared to remove rounds.*"),
        ({"adds": ("*.transport.*",)}, "declared to add"),
        ({"reinitialises": ("embed.*",)}, "declared to reinitialise"),
    ],
)
def test_a_declared_difference_must_exist(allowed: dict[str, Any], seen: str, digits: Dataset) -> None:
    variant = dataclasses.replace(VARIANTS["transport_identity"], **allowed)
    found = find_differences(cell_of("transport_identity"), cell_of("full"), variant, digits)
    assert len(found) == 1
    assert seen in found[0]
