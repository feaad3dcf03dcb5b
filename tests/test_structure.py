"""Limits on the structure of the source tree, measured by docs/structure.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "quatsphere"


@pytest.fixture(scope="module")
def structure() -> ModuleType:
    spec = importlib.util.spec_from_file_location("structure", ROOT / "docs" / "structure.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_few_public_names_are_defined_twice(structure: ModuleType) -> None:
    twice = structure.defined_twice(SOURCE)
    assert len(twice) <= 30, twice


def test_files_are_short(structure: ModuleType) -> None:
    assert structure.sizes(SOURCE)["longest file"] <= 400
