"""Every chart and table of a run's report has its explanation."""

from __future__ import annotations

from quatsphere.diagnostics.tables import DIAGNOSIS_TABLES
from quatsphere.report.explanations import INTRODUCTIONS, RUN_PICTURES, TABLES, VIEW_INTRODUCTIONS
from quatsphere.report.run_report import RUN_SECTIONS


def test_every_chart_and_table_is_explained() -> None:
    charts = [name for names in RUN_SECTIONS.values() for name in names]
    assert set(charts) == set(RUN_PICTURES)
    assert all(shows and normal for _, shows, normal in RUN_PICTURES.values())
    assert len(TABLES) == len(DIAGNOSIS_TABLES)
    assert not any(
        "typically" in text.lower() for text in (*TABLES.values(), *(e.normal for e in RUN_PICTURES.values()))
    )


def test_every_view_has_an_introduction_of_three_sentences() -> None:
    assert set(VIEW_INTRODUCTIONS) < set(INTRODUCTIONS)
    assert all(text.count(". ") == 2 for text in VIEW_INTRODUCTIONS.values())
