"""Run folders written by version 0.1.0 (commit b8d345d) still load, resume and evaluate.

`fixtures/trained` has for QSV and for attention a finished run and the same run interrupted in its second epoch.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from torch.testing import assert_close

from quatsphere.cli import main
from quatsphere.storage.checkpoint import load_best, load_last_good
from quatsphere.storage.run_folder import RunFolder

TRAINED = Path(__file__).parent / "fixtures" / "trained"
MODELS = ("qsv", "attention")


@pytest.mark.parametrize("model", MODELS)
def test_evaluate_reproduces_the_recorded_result(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = TRAINED / f"{model}-finished"
    assert main(["evaluate", str(run), "--json"]) == 0
    measured, recorded = json.loads(capsys.readouterr().out), json.loads((run / "result.json").read_text())
    assert measured["step"] == recorded["best_step"]
    for measure in ("images", "accuracy", "per_class", "confusion"):
        assert measured[measure] == recorded["test"][measure]
    assert measured["nll"] == pytest.approx(recorded["test"]["nll"], rel=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_interrupted_run_resumes_to_the_recorded_end(model: str, tmp_path: Path) -> None:
    """Bit-identity is promised on one machine only, so other processors may differ in the last digits."""
    finished = RunFolder(TRAINED / f"{model}-finished")
    run = RunFolder(tmp_path / "run", print)
    shutil.copytree(TRAINED / f"{model}-interrupted", run.path)
    assert main(["train", "--run-dir", str(run.path), "--resume"]) == 0
    for record, expected in zip(run.read_metrics(), finished.read_metrics(), strict=True):
        assert record["step"] == expected["step"]
        assert record["train"] == pytest.approx(expected["train"], rel=1e-3, abs=1e-8)
    assert load_best(run.checkpoints).step == load_best(finished.checkpoints).step
    last, expected_last = (load_last_good(folder.checkpoints, print) for folder in (run, finished))
    assert last is not None
    assert expected_last is not None
    assert last.step == expected_last.step
    assert_close(last.weights, expected_last.weights, rtol=1e-2, atol=1e-4)
