"""Files of runs that reports read: wrong types are refused by the name of the file, damaged lines are left out."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quatsphere.errors import CheckpointError, QuatsphereError
from quatsphere.report.figure_data import run_figures
from quatsphere.report.run_files import read_run_files
from quatsphere.storage.run_folder import RunFolder
from quatsphere.storage.sealed_json import write_sealed

OLDER = Path(__file__).parents[1] / "storage" / "fixtures" / "trained" / "qsv-finished"
"""A run that was written before results had a checksum."""
WRONG: tuple[Any, ...] = (None, "x", 7, -1, [], {}, [None], [[[]]], {"a": []}, True)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shutil.copytree(OLDER, tmp_path / "run")
    return tmp_path / "run"


def mutations(value: Any, seed: int) -> list[Any]:
    """Copies of a JSON value, each with one field, at most three levels deep, of another type."""
    dice, made = random.Random(seed), []

    def visit(part: Any, place: tuple[Any, ...]) -> None:
        pairs = part.items() if isinstance(part, dict) else enumerate(part[:1]) if isinstance(part, list) else ()
        for key, inner in pairs:
            changed = copy.deepcopy(value)
            target = changed
            for step in place:
                target = target[step]
            target[key] = dice.choice(WRONG)
            made.append(changed)
            if len(place) < 3:
                visit(inner, (*place, key))

    visit(value, ())
    return made


def write_metrics(run: Path, fields: Any) -> None:
    (run / "metrics.jsonl").write_text(f"{json.dumps(fields)}\n{json.dumps(fields)}\n")


def last_metrics(run: Path) -> Any:
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


FILES: dict[str, tuple[Callable[[Path], Any], Callable[[Path, Any], None]]] = {
    "result.json": (
        lambda run: RunFolder(run, lambda message: None).read_result(),
        lambda run, fields: write_sealed(run / "result.json", {"format": 2, **fields}),
    ),
    "metrics.jsonl": (last_metrics, write_metrics),
}


@pytest.mark.parametrize("name", FILES)
def test_a_field_of_another_type_is_one_line(name: str, run: Path) -> None:
    """Sealed results and lines of metrics with a wrong field: refused or left out, or the figures can be drawn."""
    read, write = FILES[name]
    left_out, messages = 0, []
    for number, fields in enumerate(mutations(read(run), 0)):
        write(run, fields)
        try:
            found = read_run_files(run)
        except QuatsphereError as error:
            messages.append(str(error))
        else:
            left_out += len(found.metrics) == 0
            if number % 4 == 0:
                assert all(name for name, _ in run_figures([found], lambda message: None))
    assert left_out + len(messages) > 10
    assert all(name in message and "\n" not in message for message in messages)


def test_older_results_are_read_with_a_note(run: Path) -> None:
    notes: list[str] = []
    folder = RunFolder(run, notes.append)
    result = folder.read_result()
    assert result is not None
    assert folder.read_result() == result
    assert notes == [f"the result has no checksum, because an older version wrote it ({run / 'result.json'})"]


def test_diagnostics_of_another_type_are_refused(run: Path) -> None:
    (run / "diagnostics.json").write_text('{"schema": "new"}')
    with pytest.raises(CheckpointError, match=r"diagnostics\.json \(field schema is wrong"):
        read_run_files(run)


def test_settings_of_another_type_are_refused(run: Path) -> None:
    (run / "config.yaml").write_text("model: {name: qsv, shells: many}\ndata: {name: x}\ntrain: {epochs: 3}\n")
    with pytest.raises(CheckpointError, match=r"config\.yaml: field model\.shells is wrong"):
        read_run_files(run)
