"""A small part of the soak in every test run; the runner's state, table and page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from soak import runner
from soak.promises import PROMISES, ROOT, Promise, Trials

QUICK = {"rotations-compose": 20, "norms-after-many-steps": 50, "neighbour-layouts": 12, "markup-in-reports": 10}
QUICK |= {"derivatives": 11}


@pytest.mark.parametrize("name", QUICK)
def test_a_few_attempts_survive(name: str, tmp_path: Path) -> None:
    trials = Trials(QUICK[name], tmp_path, full=False)
    PROMISES[name].check(trials)
    assert trials.survived == trials.tried >= QUICK[name], trials.failures


def test_attempts_are_counted(tmp_path: Path) -> None:
    trials = Trials(3, tmp_path)
    for number in range(3):
        with trials.one(number):
            assert number != 1
    with trials.several("more") as batch:
        batch.number = 5
    assert (trials.tried, trials.survived) == (8, 7)
    assert trials.failures[0].startswith("1: AssertionError")


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two promises that are not run but recorded."""
    started: list[str] = []
    made = {name: Promise(name, f"Promise {name}", 4, 1, lambda trials: None) for name in ("one", "two")}
    monkeypatch.setattr(runner, "PROMISES", made)

    def run_row(promise: Promise, scale: float, seconds: float) -> dict[str, Any]:
        started.append(promise.name)
        tried = 4 if promise.name == "one" else 3
        facts = {"wanted": 4, "seconds": 1, "cpu": 1, "date": "2000-01-01", "machine": "m", "why": "", "failures": []}
        return {"tried": tried, "survived": tried, **facts}

    monkeypatch.setattr(runner, "run_row", run_row)
    return started


def test_finished_rows_are_skipped(two: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--state", str(tmp_path / "s.json"), "--jobs", "1"]
    assert runner.main(words) == 1
    assert runner.main(words) == 1
    assert two == ["one", "two", "two"]
    assert re.search(r"two +\| 3 of 4 \| 3", capsys.readouterr().out)
    assert set(json.loads((tmp_path / "s.json").read_text())["rows"]) == {"one", "two"}


def test_all_promises_fit_into_an_hour_of_two_cores() -> None:
    """By measured or estimated times, with a third of the hour to spare."""
    assert sum(promise.seconds for promise in PROMISES.values()) < 2 * 60 * 60 * 2 / 3


def test_the_page_is_generated(two: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- soak -->\nold\n<!-- /soak -->\nafter\n")
    runner.main(["--state", str(tmp_path / "s.json"), "--page", str(page)])
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "| Promise two | 3 of 4 | 3 |" in text


def test_the_published_table_has_known_promises() -> None:
    table = (ROOT / "docs" / "reliability.md").read_text().partition(runner.TABLE[0])[2].partition(runner.TABLE[1])[0]
    rows = re.findall(r"^\| ([A-Z].*?) \|", table, re.MULTILINE)
    assert rows
    assert set(rows) <= {promise.text for promise in PROMISES.values()}


def test_tests_that_the_page_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "reliability.md").read_text())
    assert len(named) > 20
    assert [name for file, name in named if f"def {name}(" not in (ROOT / file).read_text()] == []
