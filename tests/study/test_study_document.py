"""docs/results.md, docs/results-lite.md and their figure equal what is generated from results/."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.study_records import PAPER, make_record, make_records

from quatsphere.report.figure_data import write_length_figure
from quatsphere.study.claims import CLAIMS, Claim, decide
from quatsphere.study.claims.evidence import Evidence
from quatsphere.study.claims.rules import Contrast, difference
from quatsphere.study.document import (
    BY_SEED,
    accuracy_headline,
    count_claims,
    describe_mixed_pairs,
    describe_verdict,
    document,
    is_short,
    mixed_pairs,
    seeds_csv,
    without_commit,
)
from quatsphere.study.length_contrasts import CONTRASTS
from quatsphere.study.length_document import FIGURE, has_lengths, length_document
from quatsphere.study.paper_tables import epoch_table
from quatsphere.study.results import Results
from quatsphere.study.table_formats import format_value

ROOT = Path(__file__).parent.parent.parent
LITE, PAGE = ROOT / "results" / "lite", ROOT / "docs" / "results-lite.md"
CURVE, CURVE_PAGE = ROOT / "results" / "curve", ROOT / "docs" / "results.md"
HINT = "run: make results"
SMALL = 2_000_000
"""Maximum size of results under version control, in bytes."""


@pytest.fixture
def lite() -> Results:
    assert any(LITE.glob("cells/*.json"))
    return Results(LITE)


def test_the_page_is_up_to_date(lite: Results) -> None:
    assert PAGE.read_text(encoding="utf-8") == document(lite, PAGE), HINT
    assert (LITE / BY_SEED).read_text(encoding="utf-8") == seeds_csv(lite), HINT


def test_the_page_by_length_and_its_figure_are_up_to_date(tmp_path: Path) -> None:
    results = Results(CURVE)
    assert has_lengths(results.finished())
    assert CURVE_PAGE.read_text(encoding="utf-8") == length_document(results, CURVE_PAGE), HINT
    assert (CURVE / BY_SEED).read_text(encoding="utf-8") == seeds_csv(results), HINT
    write_length_figure(results.finished(), tmp_path / "again.svg")
    assert (CURVE_PAGE.parent / FIGURE).read_bytes() == (tmp_path / "again.svg").read_bytes(), HINT


def test_statements_cover_every_contrast() -> None:
    assert all(contrast.statement for contrast in CONTRASTS.values())


def test_runs_beside_the_plan_are_shown(tmp_path: Path) -> None:
    """Fingerprints and runs at the paper's size are read from their files, one JSON object per line."""
    entry = {"name": "entropy", "paper": "0.99", "ours": [0.98, 0.991], "verdict": "partly"}
    grid = {"run": "mean-0.001-haar", "images": 38400, "test_accuracy": 0.329, "fingerprint": [entry]}
    large = {"run": "full", "parameters": 640_000, "epochs": 10, "images": 450_000, "test_accuracy": 0.61}
    shutil.copytree(CURVE, tmp_path / "curve")
    results = Results(tmp_path / "curve")
    (results.path / "fingerprints.jsonl").write_text(json.dumps(grid) + "\n")
    large |= {"test_images": 10, "by_class": {"cat": 0.4}, "validation": [0.4, 0.58], "fingerprint": [entry]}
    (results.path / "paper_size.jsonl").write_text(json.dumps(large))
    text = length_document(results, tmp_path / "page.md")
    assert "| mean-0.001-haar | 0.98-0.991 partly | 32.9 |" in text
    assert "| full | 640,000 | 10 | 450,000 | 61.0 (n = 10) | 40 |" in text
    assert "Validation accuracy of `full` after each epoch: 40.0, 58.0." in text
    assert "| full | 0.98-0.991 partly | 61.0 |" in text


def test_the_page_has_no_line_for_every_seed(lite: Results) -> None:
    """A hundred columns belong in a file."""
    assert max(line.count("|") for line in PAGE.read_text(encoding="utf-8").splitlines()) < 12


def test_the_page_states_length_and_reproduced_accuracies(lite: Results) -> None:
    text = PAGE.read_text(encoding="utf-8").split("what is undecided\n\n")[1].split("\n")[0]
    assert text.startswith("Measured after 40,000 training images, when QSV has a test accuracy of 41.6 %")
    assert "softmax regression on the same samples reaches 38.8 %" in text
    assert text.endswith("No accuracy of the paper has been reproduced yet.")


def found_in(records: list[dict[str, Any]], name: str) -> tuple[Claim, dict[str, Any], Evidence]:
    claim = next(claim for claim in CLAIMS if claim.id == name)
    evidence = Evidence(records)
    return claim, decide([claim], records)[0], evidence


@pytest.mark.parametrize(
    ("name", "row", "change", "words"),
    [
        ("frozen_random", "frozen_random", -6.9, "same direction, 0.36 times the paper's size"),
        ("frozen_random", "frozen_random", 2.0, "not seen at this length, opposite sign"),
        ("uniform.cifar10", "routing_uniform", 0.3, "within 1 point of 0; differs from 0 by +0.30"),
        ("uniform.cifar10", "routing_uniform", 0.0, "within 1 point of 0"),
        ("uniform.cifar10", "routing_uniform", 4.0, "not seen at this length"),
    ],
)
def test_short_study_reports_direction_and_size(name: str, row: str, change: float, words: str) -> None:
    noise = (0.01, -0.01, 0.0)
    records = make_records({"full": [50.0] * 3, row: [50.0 + change + x for x in noise]}, seeds=(42, 1, 2))
    claim, found, evidence = found_in(records, name)
    assert is_short(evidence)
    assert describe_verdict(claim, found, True) == words


def test_verdicts_at_the_papers_size() -> None:
    claim, found, evidence = found_in(make_records(PAPER, seeds=(42, 1, 2), scale="paper"), "frozen_random")
    assert not is_short(evidence)
    assert describe_verdict(claim, found, False) == "holds"


def test_the_headline_counts_images_and_accuracies(tmp_path: Path) -> None:
    records = make_records(PAPER, seeds=(42, 1, 2), scale="paper")
    evidence = Evidence(records)
    found = decide(CLAIMS, records)
    text = accuracy_headline(Results(tmp_path), evidence, found)
    assert "after 22,500,000 training images, when QSV has a test accuracy of 86.0 %" in text
    assert "of the paper's 19 accuracies are reproduced" in text
    assert "softmax" not in text
    (tmp_path / "linear.json").write_text('{"test": 0.388}')
    assert "softmax regression on the same samples reaches 38.8 %" in accuracy_headline(
        Results(tmp_path), evidence, found
    )


def test_claims_are_counted_by_kind() -> None:
    found = decide(CLAIMS, [])
    text = count_claims(found)
    assert text.startswith(
        "98 statements of the ledger are about trained models: with these cells 0 hold, 0 do not and 98"
    )
    assert text.endswith("The other 22 need no training: they are sizes and properties of the model at its start.")


def test_pairs_of_two_commits_are_counted(lite: Results) -> None:
    records = make_records({"full": (50, 51, 52), "transport_identity": (46, 47, 48)}, seeds=(42, 1, 2))
    records[1]["commit"], records[2]["commit"] = "d" * 40, None
    assert mixed_pairs(records) == {"cifar10.transport_identity": (2, 3)}
    assert describe_mixed_pairs(records).endswith("of different commits: cifar10.transport_identity 2 of 3")
    assert without_commit(records) == ["cifar10.full.s2"]
    assert mixed_pairs(lite.finished())["cifar10.transport_identity"] == (12, 17)
    assert without_commit(lite.finished()) == ["cifar10.full.s51"]


def test_differences_by_epoch() -> None:
    """Validation accuracies after every epoch, paired by seed; at most eight epochs are shown."""

    def course(row: str, *values: float) -> dict[str, Any]:
        return make_record(row, 42, 50.0, trajectory={"val_accuracy": list(values)})

    table = epoch_table([course("full", 0.3, 0.4, 0.5), course("transport_identity", 0.29, 0.38, 0.46)])
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["transport -> identity"] == ("-1.0", "-2.0", "-4.0")
    assert rows["both roles off"] == ("-", "-", "-")
    many = epoch_table([course("full", *([0.5] * 500))])
    assert (len(many.columns), many.columns[1], many.columns[-1]) == (9, "epoch 1", "epoch 500")


def test_intervals_that_the_reading_quotes(lite: Results) -> None:
    """The layouts' interaction, and attention against QSV on the plane, with their own variances."""
    evidence = Evidence(lite.finished())
    crossed = {"flat": 1.0, "attention": -1.0, "qsv_plane": -1.0, "full": 1.0}
    quoted = {"flat": 1.0, "qsv_plane": -1.0}, difference("qsv_plane", "full"), crossed
    found = [Contrast(weights, own_variance=True).estimate(evidence) for weights in quoted]
    intervals = [estimate.interval() if estimate is not None else None for estimate in found]
    assert intervals == [pytest.approx(x, abs=0.005) for x in ((-1.10, 1.57), (-2.64, 1.84), (0.05, 4.38))]


def test_results_are_small_and_contain_no_local_path(lite: Results) -> None:
    files = [path for path in LITE.rglob("*") if path.is_file() and "runs" not in path.relative_to(LITE).parts]
    assert sum(path.stat().st_size for path in files) < SMALL
    assert not any("data.root" in path.read_text() for path in files)


def test_number_format() -> None:
    assert format_value(None) == "-"
    assert format_value((0.9, 1.8)) == "0.9 to 1.8"
    assert format_value((1, 2, 3)) == "1, 2, 3"
    assert format_value(0.123456) == "0.1235"
