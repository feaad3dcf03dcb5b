"""The report of a run from its files: finished, unfinished, with and without predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quatsphere.report.page import Card, Report, write_report
from quatsphere.report.run_files import RunFiles
from quatsphere.report.run_report import RunReportInputs, run_report

CONFIG: dict[str, Any] = {
    "model": {"name": "qsv", "shells": 2},
    "data": {"name": "digits"},
    "train": {"epochs": 5, "seed": 42},
}
METRICS = [{"epoch": 1, "train": {"loss": 1.0, "accuracy": 0.5}, "val_accuracy": 0.25}]
NAMES = ["<script>alert(1)</script>", "b", "c"]
RESULT: dict[str, Any] = {
    "test_accuracy": 0.75,
    "val_accuracy": 0.7,
    "best_epoch": 3,
    "epochs": 5,
    "steps": 100,
    "seconds": 30.0,
    "parameters": 1234567,
    "model": "qsv",
    "fingerprint": "ab" * 32,
    "commit": "c" * 40,
    "versions": {"torch": "2.13.0"},
    "test": {
        "images": 8,
        "nll": 0.5,
        "ece": 0.1,
        "per_class": {NAMES[0]: 1.0, NAMES[1]: 0.5, NAMES[2]: None},
        "confusion": [[4, 0, 0], [2, 2, 0], [0, 0, 0]],
    },
}


def files(folder: Path, **changes: Any) -> RunFiles:
    given: dict[str, Any] = {"metrics": METRICS, "result": RESULT, "diagnostics": None, **changes}
    return RunFiles("<b>run</b>", folder, CONFIG, given["metrics"], given["result"], given["diagnostics"])


def titles(report: Report) -> list[str]:
    return [section.title for section in report.sections]


def test_a_finished_run(tmp_path: Path) -> None:
    report = run_report(files(tmp_path), RunReportInputs(images={"train": 1000, "test": 8}))
    assert report.tiles[0].value == "0.7500"
    assert titles(report) == ["Results", "Diagnostics", "Settings"]
    rows = report.sections[0].tables[0].rows
    assert list(rows) == [(NAMES[0], "1.000", "4"), ("b", "0.500", "4"), ("c", "-", "0")]
    facts = dict(report.facts)
    assert facts["images"] == "1,000 train, 8 test"
    assert facts["seed"] == "42"
    assert facts["commit"] == "c" * 40
    assert "quatsphere diagnose" in report.sections[1].text
    write_report(tmp_path / "r.html", report)
    page = (tmp_path / "r.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<h1>Run &lt;b&gt;run&lt;/b&gt;</h1>" in page


@pytest.mark.parametrize("metrics", [[], METRICS])
def test_an_unfinished_run(metrics: list[dict[str, Any]], tmp_path: Path) -> None:
    report = run_report(
        files(tmp_path, result=None, metrics=metrics), RunReportInputs(missing="no checkpoint yet; train it")
    )
    assert "not finished" in report.subtitle
    assert [tile.value for tile in report.tiles] == ["0.2500" if metrics else "-", str(len(metrics))]
    assert titles(report)[0] == "Predictions"
    assert report.sections[0].text == "Left out: no checkpoint yet; train it"
    write_report(tmp_path / "r.html", report)


@pytest.mark.parametrize("result", [RESULT, None])
def test_every_headline_number_is_explained(result: dict[str, Any] | None, tmp_path: Path) -> None:
    tiles = run_report(files(tmp_path, result=result), RunReportInputs()).tiles
    assert len(tiles) >= 2
    assert all(len(tile.meaning.split()) >= 4 and "{" not in tile.meaning for tile in tiles)


def test_cards_mark_wrong_predictions(tmp_path: Path) -> None:
    cards = [Card("test image 0", "data:,", None, "b", 0.5, "c"), Card("test image 1", "data:,", None, "b", 0.5, "b")]
    report = run_report(files(tmp_path), RunReportInputs(cards=cards))
    write_report(tmp_path / "r.html", report)
    page = (tmp_path / "r.html").read_text()
    assert page.count('class="card wrong"') == page.count('class="card right"') == 1
    assert page.count("true: c") == 1
