"""The paper's diagnostics as a test of an implementation: closed forms at known fields, and the command."""

from __future__ import annotations

import pytest

from quatsphere.data import Dataset, load_dataset
from quatsphere.diagnostics import diagnose
from quatsphere.diagnostics.fingerprint import MARKS, SECTIONS, fingerprint
from quatsphere.models import create_model


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits", max_train_images=64)


def marks(digits: Dataset, field_init: str) -> dict[str, dict[str, object]]:
    model = create_model(
        "qsv", dim=64, heads=4, base_vertices=48, shells=3, in_channels=1, image_size=8, field_init=field_init
    )
    found = diagnose(model, digits, images=16, accuracy_images=16, seed=0, only=SECTIONS)
    return {mark["name"]: mark for mark in fingerprint(found)}


def test_a_haar_field_misses_the_papers_orientation(digits: Dataset) -> None:
    """Between Haar quaternions the mean rotation angle is 2.207 rad; self within a shell lowers two of the steps."""
    found = marks(digits, "haar")
    assert found["orientation spread, rad"]["verdict"] == "misses"
    assert found["normalised routing entropy"]["verdict"] == "misses"
    assert found["interior vertices moved, spacings"]["verdict"] == "fits"


def test_an_aligned_field_has_no_spread_at_all(digits: Dataset) -> None:
    found = marks(digits, "aligned")
    assert found["score spread"]["ours"] == pytest.approx([0.0] * 5, abs=1e-6)
    assert found["peak weight, multiples of 1/k"]["ours"] == pytest.approx([1.0] * 5, abs=1e-5)
    assert {found[name]["verdict"] for name in ("score spread", "peak weight, multiples of 1/k")} == {"misses"}


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.3, 0.4], "fits"),
        ([0.1, 0.3], "partly"),
        ([0.1, 0.9], "partly"),
        ([0.1, 0.2], "misses"),
        ([], "not measured"),
    ],
)
def test_verdicts(values: list[float], verdict: str) -> None:
    shells = {"shells": []}
    other = {"routing": {"entropy": [], "peak": []}, "beta": {"mean": []}, "coverage": shells}
    found = fingerprint({**other, "spread": {"orientation": [], "score": values}})
    assert found[[mark.name for mark in MARKS].index("score spread")]["verdict"] == verdict
