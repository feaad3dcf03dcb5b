"""Running a plan: finished cells are skipped, failures reported, records complete. Real training in this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.study_records import make_record

from quatsphere.errors import CheckpointError, ConfigError
from quatsphere.storage.checkpoint import load_best
from quatsphere.study import runner
from quatsphere.study.plan import PLANS, Cell, plan_cells
from quatsphere.study.record import add_diagnostics, weights_digest
from quatsphere.study.results import Results
from quatsphere.study.runner import LocalLauncher, Outcome, StudyObserver, make_request, run_plan
from quatsphere.study.worker import train_cell
from quatsphere.train.evaluation import unpack_indices
from quatsphere.train.run import load_data

pytestmark = pytest.mark.usefixtures("unchecked")
SHORT = {"train.epochs": 1, "data.max_train_images": 64}


def short_cells(*only: str, **settings: Any) -> list[Cell]:
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    return plan_cells(PLANS["smoke"], seeds=[1], only=only, settings={**SHORT, **changes})


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


def test_finished_cell_has_a_record_and_is_skipped(results: Results, in_process: Any) -> None:
    cells = short_cells("full", "both_off")
    assert run_plan("smoke", cells, results, in_process).finished == 2
    row = results.read("digits.full.s1")
    assert row is not None
    assert set(make_record("full", 1, 50.0)) <= set(row)
    assert set(make_record("full", 1, 50.0)["trajectory"]) == set(row["trajectory"])
    assert row["diagnostics"]["orientation_spread"]
    assert "data.root" not in row["config"]
    assert str(results.path) not in results.file("digits.full.s1").read_text()
    before = {path: path.read_bytes() for path in results.cells.iterdir()}
    again = run_plan("smoke", cells, results, in_process)
    assert (again.finished, again.skipped, in_process.trained) == (0, 2, ["digits.full.s1", "digits.both_off.s1"])
    assert {path: path.read_bytes() for path in results.cells.iterdir()} == before
    assert (results.path / ".gitignore").read_text().splitlines()[0] == "runs/"


def test_cells_that_differ_in_their_seed_share_their_settings(results: Results) -> None:
    with results.open():
        for seed in (1, 2):
            row = make_record("full", seed, 50.0)
            results.write(row["cell"], row)
            found = results.read(row["cell"])
            assert found is not None
            assert found["config"] == row["config"]
            assert found["config"]["train.seed"] == seed
    (file,) = results.settings.iterdir()
    assert json.loads(results.file("cifar10.full.s2").read_text())["config"] == file.stem


def test_missing_or_changed_settings_are_reported(results: Results) -> None:
    with results.open():
        results.write("cifar10.full.s1", make_record("full", 1, 50.0))
    (file,) = results.settings.iterdir()
    text = file.read_text()
    for damaged in (text.replace("{", '{"data.crop_pad":9,', 1), text[:-3], "no JSON"):
        file.write_text(damaged)
        with pytest.raises(CheckpointError, match=rf"settings of cifar10.full.s1.json were changed .*{file.name}"):
            results.finished()
    file.unlink()
    with pytest.raises(CheckpointError, match=rf"settings of cifar10.full.s1.json are missing .*{file.name}"):
        results.read("cifar10.full.s1")
    with results.open():
        results.write("cifar10.full.s2", make_record("full", 2, 50.0))
    assert file.read_text() == text
    assert results.read("cifar10.full.s1") is not None


def test_records_of_format_1_are_read(results: Results) -> None:
    row = {**make_record("full", 1, 50.0), "format": 1}
    results.cells.mkdir(parents=True)
    results.file("cifar10.full.s1").write_text(json.dumps(row))
    assert results.read("cifar10.full.s1") == row


def test_finished_cell_with_other_settings_is_an_error(results: Results, in_process: Any) -> None:
    run_plan("smoke", short_cells("full"), results, in_process)
    with pytest.raises(
        ConfigError, match=r"digits.full.s1 was finished with other settings \(train.epochs: 1 there, 2 now"
    ):
        run_plan("smoke", short_cells("full", train__epochs=2), results, in_process)
    moved = short_cells("full", train__checkpoint_seconds=7.0)
    assert run_plan("smoke", moved, results, in_process).skipped == 1


def test_setting_missing_in_a_record_counts_as_default(results: Results, in_process: Any) -> None:
    cells = short_cells("full")
    run_plan("smoke", cells, results, in_process)
    row = results.read("digits.full.s1")
    assert row is not None
    del row["config"]["model.wrap_longitude"]
    results.write("digits.full.s1", row)
    assert run_plan("smoke", cells, results, in_process).skipped == 1


def test_a_failing_cell_does_not_stop_the_others(results: Results, in_process: Any) -> None:
    bad, good = short_cells("full", train__batch_size=9999)[0], short_cells("both_off")[0]
    summary = run_plan("smoke", [bad, good], results, in_process)
    assert list(summary.failed) == ["digits.full.s1"]
    assert "batch_size" in summary.failed["digits.full.s1"]
    assert [path.stem for path in results.cells.glob("*.json")] == ["digits.both_off.s1"]
    assert results.status()["plans"]["smoke"]["missing"] == ["digits.full.s1"]


def test_lost_record_is_restored_without_training(results: Results, in_process: Any) -> None:
    cells = short_cells("full")
    run_plan("smoke", cells, results, in_process)
    first = results.file("digits.full.s1").read_text()
    weights = sorted(path.name for path in results.run("digits.full.s1").checkpoints.iterdir())
    results.file("digits.full.s1").unlink()
    run_plan("smoke", cells, results, in_process)
    assert results.file("digits.full.s1").read_text() == first
    assert sorted(path.name for path in results.run("digits.full.s1").checkpoints.iterdir()) == weights


def test_record_has_predictions_and_hash_of_weights(results: Results, in_process: Any) -> None:
    cells = short_cells("full")
    run_plan("smoke", cells, results, in_process)
    row = results.read("digits.full.s1")
    assert row is not None
    test = load_data(cells[0].config.data, lambda message: None).test
    right = unpack_indices(row["predictions"]) == test.labels.numpy()
    assert right.mean() == pytest.approx(row["test_accuracy"])
    best = load_best(results.run("digits.full.s1").checkpoints).weights
    assert row["weights_sha256"] == weights_digest(best)
    name, tensor = next(iter(best.items()))
    assert weights_digest({**best, name: -tensor}) != row["weights_sha256"]


def test_a_cell_that_diverges_is_a_result(results: Results, in_process: Any) -> None:
    (cell,) = short_cells("full", optim__peak_lr=1e6, optim__quaternion_lr=1e5)
    assert run_plan("smoke", [cell], results, in_process).finished == 1
    row = results.read(cell.id)
    assert row is not None
    assert row["status"] == "diverged"
    assert "not finite" in row["reason"]
    assert results.status()["plans"]["smoke"]["diverged"] == [cell.id]


@pytest.mark.parametrize(("keep", "left"), [("best", 1), ("none", 0), ("all", 2)])
def test_kept_weights(keep: str, left: int, results: Results, in_process: Any) -> None:
    cells = short_cells("full", train__checkpoint_steps=1)
    run_plan("smoke", cells, results, in_process, keep_weights=keep)
    steps = list(results.run("digits.full.s1").checkpoints.glob("step-*"))
    assert len(steps) == left if keep != "all" else len(steps) >= left


def test_diagnostics_can_be_added_later(results: Results, in_process: Any) -> None:
    cells = short_cells("full", "both_off")
    run_plan("smoke", cells, results, in_process)
    results.drop_weights("digits.both_off.s1", "none")
    rows = {cell.id: results.read(cell.id) for cell in cells}
    for name, row in rows.items():
        assert row is not None
        results.write(name, {**row, "diagnostics": {}})
    assert add_diagnostics(results, None, note=lambda message: None) == (1, 1)
    assert results.read("digits.full.s1") == rows["digits.full.s1"]


def test_status_counts(results: Results, in_process: Any) -> None:
    with pytest.raises(ConfigError, match="no results in"):
        results.status()
    run_plan("smoke", short_cells("full"), results, in_process)
    cells = short_cells("both_off", "routing_uniform")
    train_cell(make_request(cells[0], results))
    results.add_to_plan("smoke", [cell.id for cell in cells])
    found = results.status()["plans"]["smoke"]
    assert {key: len(value) for key, value in found.items()} == {
        "cells": 3, "finished": 1, "diverged": 0, "begun": 1, "missing": 1,
    }  # fmt: skip


def test_second_runner_is_an_error(results: Results, in_process: Any) -> None:
    with results.open(), pytest.raises(CheckpointError, match="is locked by pid"):
        run_plan("smoke", short_cells("full"), results, in_process)


def test_damaged_record_is_reported(results: Results) -> None:
    with results.open():
        results.file("digits.full.s1").write_text('{"half": ')
    with pytest.raises(CheckpointError, match=r"damaged result \(.*digits.full.s1.json"):
        results.finished()


def test_leftovers_of_a_killed_writer_are_ignored(results: Results) -> None:
    with results.open():
        pass
    (results.cells / ".digits.full.s1.json.tmp.999999999").write_text("{")
    (results.cells / "digits.full.s1.json.tmp.999999999").write_text("{")
    assert results.finished() == []
    with results.open():
        assert list(results.cells.iterdir()) == []


class EventLog(StudyObserver):
    def __init__(self) -> None:
        self.events: list[str] = []

    def started(self, cell: str) -> None:
        self.events.append(f"started {cell}")

    def ended(self, outcome: Outcome) -> None:
        self.events.append(f"ended {outcome.request.id} {outcome.error[:60]}")


def test_worker_reports_its_failure_and_writes_a_log(results: Results, tmp_path: Path) -> None:
    """In a separate process; the error is returned as one line."""
    cell = plan_cells(PLANS["lite"], only=["cifar10.full.s1"], data_root=str(tmp_path))[0]
    log = EventLog()
    summary = run_plan("lite", [cell], results, LocalLauncher(1), log)
    assert "no CIFAR-10 files" in summary.failed[cell.id]
    assert log.events[0] == "started cifar10.full.s1"
    assert log.events[1].startswith("ended cifar10.full.s1 no CIFAR-10 files")
    assert (results.runs / "cifar10.full.s1.log").exists()


NOISY_WORKER = """
import os, sys
os.write(1, b"library: loaded \\xff, no end of line")
from quatsphere.study import worker

def train_cell(request, reporter):
    os.write(1, b"onednn_verbose,info\\n")
    print("{}")
    worker.send({"done": 1, "total": 2, "speed": 3.0})
    return {"cell": request.id}

worker.train_cell = train_cell
sys.exit(worker.serve_request())
"""


def test_lines_of_libraries_on_stdout_go_to_the_log(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "worker.py"
    script.write_text(NOISY_WORKER)
    monkeypatch.setattr(runner, "WORKER_COMMAND", (sys.executable, str(script)))
    seen: list[Any] = []
    outcome = runner.run_in_process(make_request(short_cells("full")[0], results), lambda *values: seen.append(values))
    assert outcome.record == {"cell": "digits.full.s1"}
    assert seen == [(1, 2, 3.0)]
    log = (results.runs / "digits.full.s1.log").read_text()
    assert "library: loaded \\xff, no end of line\n" in log
    assert "onednn_verbose,info\n" in log
    assert "{}\n" in log
