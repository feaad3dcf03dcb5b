"""docs/results.md is what the command makes of results/lite: regenerated here and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from quatsphere.study.document import document, spell_number
from quatsphere.study.results import Results

ROOT = Path(__file__).parent.parent.parent
LITE, PAGE = ROOT / "results" / "lite", ROOT / "docs" / "results.md"
SMALL = 2_000_000
"""Bytes that results under version control may take."""


@pytest.fixture
def lite() -> Results:
    assert any(LITE.glob("cells/*.json"))
    return Results(LITE)


def test_the_page_is_up_to_date(lite: Results) -> None:
    hint = "run: quatsphere study document --results results/lite -o docs/results.md"
    assert PAGE.read_text(encoding="utf-8") == document(lite), hint


def test_results_are_small_and_name_no_machine(lite: Results) -> None:
    files = [path for path in LITE.rglob("*") if path.is_file() and "runs" not in path.relative_to(LITE).parts]
    assert sum(path.stat().st_size for path in files) < SMALL
    assert not any("data.root" in path.read_text() for path in files)


def test_numbers_for_people() -> None:
    assert spell_number(None) == "-"
    assert spell_number((0.9, 1.8)) == "0.9 to 1.8"
    assert spell_number((1, 2, 3)) == "1, 2, 3"
    assert spell_number(0.123456) == "0.1235"
