"""The whole plan `smoke` by the command, killed with SIGKILL several times; then its tables and verdicts."""

from __future__ import annotations

import contextlib
import html
import io
import itertools
import json
import os
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers.warm_workers import warm_workers

from quatsphere.cli import main
from quatsphere.study import runner
from quatsphere.study.plan import PLANS, plan_cells
from quatsphere.study.results import Results
from quatsphere.study.runner import make_request
from quatsphere.study.worker import train_cell

KILLS = 10
LONGEST = 0.5
"""Maximum lifetime of a runner in seconds: too short for all cells, long enough for some."""


SHORT = {"data.max_train_images": 64}
"""Settings of the cells that are killed: four steps each."""


class Study(NamedTuple):
    """A finished smoke study whose runner was killed several times."""

    results: Results
    after: list[dict[str, bytes]]
    """Records after each kill and at the end."""
    uninterrupted: dict[str, Any]
    """Record of the first cell, trained without interruption."""


SET = ("--set", *(f"{key}={value}" for key, value in SHORT.items()))
ROWS = ("full", "transport_identity", "both_off")


def start(folder: Path, worker: tuple[str, ...] = runner.WORKER_COMMAND, *words: str) -> int:
    """`quatsphere study run smoke` in a fork: importing torch again would take seconds."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        log = os.open(folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 2)
        sys.stdout = sys.stderr = os.fdopen(log, "w", buffering=1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        runner.WORKER_COMMAND = worker
        code = main(["study", "run", "smoke", "--results", str(folder), "--jobs", "2", *SET, *words])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def ended(pid: int, seconds: float) -> int | None:
    """Exit code of a process, or None if it does not end in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, state = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(state)
        time.sleep(0.02)
    return None


def rows_of(results: Results) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in results.cells.glob("*.json")}


@pytest.fixture(scope="module")
def study(unchecked: None, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Kill the runner ten times at random moments, then let it finish; the first cell warms the workers up."""
    folder = tmp_path_factory.mktemp("study")
    first = plan_cells(PLANS["smoke"], settings=SHORT)[0]
    uninterrupted = train_cell(make_request(first, Results(folder / "uninterrupted")))
    results, moments, after = Results(folder / "smoke"), random.Random(5), []
    with warm_workers(folder) as worker:
        for _ in range(KILLS):
            pid = start(results.path, worker)
            assert ended(pid, moments.uniform(0.0, LONGEST)) is None, results.path.with_suffix(".log").read_text()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            after.append(rows_of(results))
        assert ended(start(results.path, worker), 500) == 0, results.path.with_suffix(".log").read_text()
    return Study(results, [*after, rows_of(results)], uninterrupted)


def test_kills_neither_lose_nor_repeat_finished_cells(study: Study) -> None:
    for before, later in itertools.pairwise(study.after):
        assert all(later[name] == row for name, row in before.items())
    rows = study.after[-1]
    assert set(rows) == {cell.id for cell in plan_cells(PLANS["smoke"])}
    for name in rows:
        epochs = [line["epoch"] for line in study.results.run(name).read_metrics()]
        assert epochs == [1, 2]
        assert json.loads(rows[name])["cell"] == name
        assert len(json.loads(rows[name])["trajectory"]["train_loss"]) == 2


def test_resumed_cell_equals_the_uninterrupted_one(study: Study) -> None:
    kept = study.results.read(study.uninterrupted["cell"])
    assert kept is not None
    assert kept["test_accuracy"] == pytest.approx(study.uninterrupted["test_accuracy"], abs=1e-7)
    assert kept["trajectory"]["train_loss"] == pytest.approx(study.uninterrupted["trajectory"]["train_loss"], abs=1e-6)


@pytest.fixture(scope="module")
def worker(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """Command of warm workers for further tests."""
    with warm_workers(tmp_path_factory.mktemp("warm")) as command:
        yield command


def begun(results: Results) -> dict[str, int]:
    """cell -> process that is training it, from the locks of the run folders."""
    texts = {path.parent.name: path.read_text() for path in results.runs.glob("*/.lock")}
    return {cell: json.loads(text)["pid"] for cell, text in texts.items() if text.endswith("}")}


def wait_for_work(results: Results, pid: int) -> dict[str, int]:
    while not (workers := begun(results)):
        assert ended(pid, 0.05) is None, results.path.with_suffix(".log").read_text()
    return workers


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_and_stop(number: int, tmp_path: Path, worker: tuple[str, ...]) -> None:
    results = Results(tmp_path / "smoke")
    pid = start(results.path, worker)
    (child, *_) = wait_for_work(results, pid).values()
    os.kill(pid, number)
    assert ended(pid, 120) == 130
    assert "what was saved before is intact" in results.path.with_suffix(".log").read_text()
    until = time.monotonic() + 60  # a warm worker is no child of the runner and may end after it
    while begun(results) or is_alive(child):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_killed_cell_is_reported_and_others_continue(tmp_path: Path, worker: tuple[str, ...]) -> None:
    results = Results(tmp_path / "smoke")
    pid = start(results.path, worker, "--seeds", "1", "--only", "full", "both_off")
    cell, child = next(iter(wait_for_work(results, pid).items()))
    os.kill(child, signal.SIGKILL)
    assert ended(pid, 300) == 8
    assert f"first {cell} (its process ended with code 137" in results.path.with_suffix(".log").read_text()
    assert set(rows_of(results)) == {"digits.full.s1", "digits.both_off.s1"} - {cell}
    assert ended(start(results.path, worker, "--seeds", "1", "--only", "full", "both_off"), 300) == 0
    assert set(rows_of(results)) == {"digits.full.s1", "digits.both_off.s1"}


def call(*words: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["study", *words]) == 0
    return out.getvalue()


def test_status_of_a_finished_study(study: Study) -> None:
    facts = json.loads(call("status", "--results", str(study.results.path), "--json"))
    assert len(facts["plans"]["smoke"]["finished"]) == len(plan_cells(PLANS["smoke"]))
    assert not facts["begun"]
    assert "11" in call("status", "--results", str(study.results.path))


def test_tables_contain_means_of_cells(study: Study) -> None:
    tables: list[dict[str, Any]] = json.loads(call("table", "--results", str(study.results.path), "--json"))
    ablation = {row[0]: row for row in next(t for t in tables if t["name"] == "ablation")["rows"]}
    accuracies = {}
    for row in ROWS:
        records = [study.results.read(f"digits.{row}.s{seed}") for seed in (1, 2, 3)]
        accuracies[row] = [100 * record["test_accuracy"] for record in records if record]
    full = sum(accuracies["full"]) / 3
    assert ablation["Full kernel (baseline)"][1].startswith(f"{full:.2f} (")
    assert "n = 3" in ablation["Full kernel (baseline)"][1]
    change = sum(accuracies["both_off"]) / 3 - full
    assert ablation["Both roles disabled"][2].startswith(f"{change:+.2f} [")
    assert ablation["Geometric routing"][1] == "-"


def test_full_model_learns(unchecked: None, tmp_path: Path) -> None:
    """The first cell as the plan has it; chance is 10 %."""
    first = plan_cells(PLANS["smoke"])[0]
    assert train_cell(make_request(first, Results(tmp_path)))["test_accuracy"] > 0.6


def test_tables_of_digits_have_no_values_of_the_paper(study: Study) -> None:
    tables = {t["name"]: t for t in json.loads(call("table", "--results", str(study.results.path), "--json"))}
    assert tables["ablation"]["head"] == ["Variant", "digits", "change"]
    assert tables["context"]["head"] == ["Model", "parameters", "digits", "change"]
    assert tables["crossed"]["head"][1] == "digits, points"
    assert all(len(row) == len(table["head"]) for table in tables.values() for row in table["rows"])
    assert "CIFAR" not in json.dumps(tables)


def test_report_of_digits_has_no_verdicts(study: Study, tmp_path: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["report", str(study.results.path), "-o", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert re.search("<th[^>]*>digits</th>", page)
    assert not re.search("<th[^>]*>CIFAR", page)
    assert "Not judged: none of these runs is on the paper's data" in html.unescape(page)


def test_claims_have_every_field(study: Study) -> None:
    claims = json.loads(call("claims", "--results", str(study.results.path), "--json"))
    assert len({claim["id"] for claim in claims}) == len(claims) > 100
    for claim in claims:
        assert {"id", "kind", "verdict", "n", "ours", "paper", "interval"} <= set(claim)
        assert claim["verdict"] in ("holds", "fails", "undecided")
        assert claim["why"] or claim["verdict"] != "undecided"
        assert claim["kind"] == "static" or claim["verdict"] == "undecided" or claim["n"] >= 3
    by_id = {claim["id"]: claim for claim in claims}
    trained = [claim for claim in claims if claim["kind"] == "trained"]
    assert {claim["verdict"] for claim in trained} == {"undecided"}
    assert by_id["attention_over_qsv"]["why"] == "no CIFAR-10 cells"


@pytest.mark.slow
def test_the_real_command_with_fresh_processes(tmp_path: Path, study: Study) -> None:
    """Workers that start for every cell produce the same records."""
    results = Results(tmp_path / "smoke")
    assert ended(start(results.path), 1200) == 0, results.path.with_suffix(".log").read_text()
    for name in rows_of(study.results):
        one, other = results.read(name), study.results.read(name)
        assert one is not None
        assert other is not None
        assert one["test_accuracy"] == other["test_accuracy"]
        assert one["trajectory"]["train_loss"] == other["trajectory"]["train_loss"]
