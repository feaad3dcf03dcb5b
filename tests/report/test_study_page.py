"""Report of a study, from invented records: a hundred runs, diverged ones, claims of every verdict."""

from __future__ import annotations

from typing import Any

from quatsphere.report.page import write_report
from quatsphere.report.study_report import claim_of, study_report


def record(variant: str, seed: int, **changes: Any) -> dict[str, Any]:
    return {
        "cell": f"cifar10-{variant}-{seed}",
        "variant": variant,
        "dataset": "cifar10",
        "seed": seed,
        "status": "finished",
        "test_accuracy": 0.5 + 0.001 * seed,
        "val_accuracy": 0.5,
        "epochs": 12,
        "seconds": 90.0,
        "fingerprint": "ab" * 32,
        "commit": "c" * 40,
        "versions": {"torch": "2.13.0"},
        "processor": "a CPU",
        **changes,
    }


def claim(verdict: str, **changes: Any) -> dict[str, Any]:
    return {"id": "x", "kind": "trained", "statement": "s", "verdict": verdict, "n": 3, "ours": 0.12345, **changes}


def test_a_hundred_runs(tmp_path: Any) -> None:
    records = [record(f"<b>row {row}</b>", seed) for row in range(20) for seed in range(5)]
    claims = [claim("holds", id=f"{i}") for i in range(120)]
    write_report(tmp_path / "r.html", study_report("a <i>study", records, claims, [], []))
    page = (tmp_path / "r.html").read_text()
    assert page.count("<tr>") == 101
    assert page.count('class="claim holds"') == 120
    assert len(page) < 15e6
    assert "<b>row" not in page
    assert "Study a &lt;i&gt;study" in page


def test_headline_numbers() -> None:
    records = [record("full", 1), record("full", 2), record("bound_none", 1, status="diverged", test_accuracy=None)]
    claims = [claim("holds"), claim("fails"), claim("fails", kind="static")]
    report = study_report("s", records, claims, [], [])
    shown = {tile.label: (tile.value, tile.detail) for tile in report.tiles}
    assert shown["runs"] == ("3", "1 diverged")
    assert shown["rows"] == ("2", "2 seeds")
    assert shown["training time"][0] == "4 min 30 s"
    assert shown["claims: fails"] == ("2", "of 3")
    titles = [section.title for section in report.sections]
    assert titles == ["Accuracies", "Claims that need training", "Claims that need none", "Every run"]
    cells = report.sections[-1].tables[0]
    assert cells.marked == {2}
    assert cells.rows[2][4] == "-"


def test_claims_without_relevant_runs_are_not_judged() -> None:
    claims = [claim("undecided", n=0, why="no CIFAR-10 cells"), claim("holds", kind="static", n=1)]
    trained, static = study_report("s", [record("full", 1, dataset="digits")], claims, [], []).sections[1:3]
    assert not trained.claims
    assert trained.text.startswith("Not judged")
    assert len(static.claims) == 1


def test_identity_lists_all_values() -> None:
    report = study_report("s", [record("full", 1), record("full", 2, commit="d" * 40)], [], [], [])
    assert dict(report.facts)["commits"] == f"{'c' * 40}; {'d' * 40}"
    assert dict(report.facts)["seeds"] == "1; 2"


def test_claims_as_text() -> None:
    shown = claim_of(claim("undecided", why="too short", interval=[-0.5, 0.25], paper=(0.24, 0.46), paper_n=2))
    assert (shown.ours, shown.interval, shown.paper) == ("0.1235", "-0.5 to 0.25", "0.24 to 0.46 (n = 2)")
    assert (shown.n, shown.why) == ("3", "too short")
    assert claim_of(claim("holds", ours=None)).ours == ""
    assert claim_of(claim("holds", ours=3)).ours == "3"
    assert study_report("nothing", [], [], [], []).subtitle == "0 runs on nothing yet"
