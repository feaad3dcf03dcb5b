"""Every function and test that docs/paper_map.md names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "paper_map.md").read_text()
CODE = sorted(set(re.findall(r"`([\w/]+\.py):(\w+)`", TEXT)))
TESTS = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", TEXT)))


@pytest.mark.parametrize(("path", "name"), CODE)
def test_code_exists(path: str, name: str) -> None:
    source = (ROOT / "src" / "quatsphere" / path).read_text()
    assert re.search(rf"^(def|class) {name}\b|^{name}\b", source, re.MULTILINE)


@pytest.mark.parametrize(("path", "name"), TESTS)
def test_test_exists(path: str, name: str) -> None:
    assert re.search(rf"^def {name}\b", (ROOT / "tests" / path).read_text(), re.MULTILINE)


def test_every_equation_of_the_paper_is_named() -> None:
    labels = "rel-quat attn-weight residual perturb-omega perturb hamilton knn-budget rieadam-pullback rieadam coulomb"
    assert all(f"eq:{label}" in TEXT for label in labels.split())
