"""Verdicts of the fingerprint for fields with closed forms."""

from __future__ import annotations

import pytest

from quatsphere.data import Dataset, load_dataset
from quatsphere.diagnostics import diagnose
from quatsphere.diagnostics.fingerprint import PAPER_DIAGNOSTICS, REQUIRED_SECTIONS, fingerprint
from quatsphere.models import create_model


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits", max_train_images=64)


def compare(digits: Dataset, field_init: str) -> dict[str, dict[str, object]]:
    model = create_model(
        "qsv", dim=64, heads=4, base_vertices=48, shells=3, in_channels=1, image_size=8, field_init=field_init
    )
    found = diagnose(model, digits, images=16, accuracy_images=16, seed=0, only=REQUIRED_SECTIONS)
    return {row["name"]: row for row in fingerprint(found)}


def test_a_haar_field_misses_the_papers_orientation(digits: Dataset) -> None:
    """The mean rotation angle between Haar quaternions is 2.207 rad; vertices are their own neighbours in two steps."""
    found = compare(digits, "haar")
    assert found["orientation spread, rad"]["verdict"] == "misses"
    assert found["normalised routing entropy"]["verdict"] == "misses"
    assert found["interior vertices moved, spacings"]["verdict"] == "fits"


def test_an_aligned_field_has_no_spread(digits: Dataset) -> None:
    found = compare(digits, "aligned")
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
    assert found[[known.name for known in PAPER_DIAGNOSTICS].index("score spread")]["verdict"] == verdict
