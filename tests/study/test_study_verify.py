"""`study verify` retrains a cell and compares; `study check --results` finds inconsistent records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from quatsphere.cli import main
from quatsphere.storage.sealed_json import seal, unseal
from quatsphere.study.plan import PLANS, plan_cells
from quatsphere.study.record import NOISE, compare_records, inconsistencies
from quatsphere.study.results import Results
from quatsphere.study.runner import differing_settings, run_plan
from quatsphere.train.evaluation import pack_indices, unpack_indices

pytestmark = pytest.mark.usefixtures("unchecked")
CELL = "digits.full.s1"
PUBLISHED = Path(__file__).parents[2] / "results"
SHORT = {"train.epochs": 1, "data.max_train_images": 64}


@pytest.fixture
def results(tmp_path: Path, in_process: Any) -> Results:
    found = Results(tmp_path / "results")
    run_plan("smoke", plan_cells(PLANS["smoke"], seeds=[1], only=["full"], settings=SHORT), found, in_process)
    return found


def test_same_machine_reproduces_the_weights(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "verify", CELL, "--results", str(results.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["same_weights"]
    assert found["same_predictions"] == 1.0
    assert found["test_accuracy"][0] == pytest.approx(found["test_accuracy"][1])


def test_a_cell_that_cannot_be_reproduced_is_an_error(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    file = results.file(CELL)
    record = unseal(file.read_bytes())
    file.write_bytes(seal({**record, "weights_sha256": record["weights_sha256"][::-1]}))
    assert main(["study", "verify", CELL, "--results", str(results.path)]) != 0
    said = capsys.readouterr()
    assert "other weights, although commit, processor, threads and torch are the same" in said.out
    assert f"cell {CELL} was not reproduced" in said.err


def test_an_unknown_cell(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "verify", "nothing", "--results", str(results.path)]) == 2
    assert "no finished cell 'nothing'" in capsys.readouterr().err


def test_on_another_processor_the_accuracy_decides(results: Results) -> None:
    stored = results.read(CELL)
    assert stored is not None
    low, high = stored["test_accuracy"] - NOISE, stored["test_accuracy"] + NOISE
    other = {**stored, "processor": "another", "weights_sha256": "0" * 64}
    assert compare_records(stored, other)["verified"]
    assert not compare_records(stored, {**other, "test_accuracy": high + 0.01})["verified"]
    assert not compare_records(stored, {**other, "test_accuracy": low - 0.01})["verified"]


def test_inconsistent_records_are_reported(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    assert inconsistencies(results.finished()) == {}
    assert main(["study", "check", "--results", str(results.path)]) == 0
    row = results.read(CELL)
    assert row is not None
    predicted = torch.from_numpy(unpack_indices(row["predictions"]).astype("int64"))
    predicted[0] = 1 if predicted[0] == 0 else 0  # the first image is of class 0
    results.write(CELL, {**row, "predictions": pack_indices(predicted)})
    assert main(["study", "check", "--results", str(results.path)]) != 0
    assert f"{CELL}: its predictions give" in capsys.readouterr().out
    results.write(CELL, {**row, "predictions": "not base64!"})
    assert inconsistencies(results.finished()) == {CELL: "its predictions cannot be read"}


@pytest.mark.parametrize("folder", ["curve", "tuning/lr-0.001", "tuning/lr-0.002", "tuning/lr-0.004"])
def test_published_cells_are_consistent_and_match_their_plan(folder: str) -> None:
    """Every published cell is still a cell of its plan, with the same settings."""
    results = Results(PUBLISHED / folder)
    assert inconsistencies(results.finished()) == {}
    plan, _, rate = folder.partition("/lr-")
    settings = {"optim.peak_lr": float(rate)} if rate else {}
    planned = {cell.id: cell for cell in plan_cells(PLANS[plan], settings=settings)}
    for record in results.finished():
        assert not differing_settings(record["config"], planned[record["cell"]].config)
