"""Cells are sealed: a changed bit or a wrong type is refused by name; cells of older versions are read with a note."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from helpers.study_records import make_record

from quatsphere.cli import main
from quatsphere.errors import CheckpointError
from quatsphere.study.results import Results

CELL = "cifar10.full.s1"


@pytest.fixture
def results(tmp_path: Path) -> Results:
    made = Results(tmp_path / "results")
    with made.open():
        made.write(CELL, make_record("full", 1, 61.0, diagnostics={"drift": [0.5], "steps": ["within"]}))
    return made


def downgrade(results: Results) -> dict[str, Any]:
    """Write the cell as an older version did; return its fields."""
    fields = json.loads(results.file(CELL).read_text())
    del fields["sha256"]
    fields["format"] = 2
    results.file(CELL).write_text(json.dumps(fields))
    return fields


def test_no_flipped_bit_of_a_cell_is_accepted(results: Results) -> None:
    path, dice = results.file(CELL), random.Random(0)
    data = path.read_bytes()
    for place in [*range(8 * 120), *(dice.randrange(8 * len(data)) for _ in range(500))]:
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match=r"^damaged result "):
            results.finished()


def test_check_lists_cells_and_seal_seals_them(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(results.path)
    assert main(["study", "check", "--results", folder]) == 0
    assert "1 cells, 0 with predictions, 0 not sealed, 0 damaged" in capsys.readouterr().out
    before = downgrade(results)
    assert main(["study", "check", "--results", folder]) == 0
    said = capsys.readouterr()
    assert f"{CELL}: not sealed" in said.out
    assert "1 cells have no checksum" in said.err
    assert main(["study", "table", "--results", folder]) == 0
    assert "1 cells have no checksum" in capsys.readouterr().err
    assert main(["study", "seal", "--results", folder]) == 0
    assert "1 cells sealed now, 0 before" in capsys.readouterr().out
    after = json.loads(results.file(CELL).read_text())
    assert len(after.pop("sha256")) == 64
    assert after == {**before, "format": 3}
    assert results.check()[2] == []


def test_damaged_cells_are_listed_and_not_sealed(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    with results.open():
        results.write("cifar10.full.s2", make_record("full", 2, 60.0))
    downgrade(results)
    other = results.file("cifar10.full.s2")
    other.write_bytes(other.read_bytes().replace(b"0.6,", b"0.7,", 1))
    assert main(["study", "check", "--results", str(results.path)]) == 4
    out = capsys.readouterr().out
    assert "cifar10.full.s2: damaged result (" in out
    assert "sha256 differs" in out
    assert "2 cells, 0 with predictions, 1 not sealed, 1 damaged" in out
    assert main(["study", "seal", "--results", str(results.path)]) == 4
    assert "sha256" not in json.loads(results.file(CELL).read_text())


WRONG: tuple[Any, ...] = (None, "x", 7, -1, [], {}, [None], {"a": []}, True)


def places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all fields, three levels deep."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    below = [found for key, part in inner if len(place) < 3 for found in places(part, (*place, key))]
    return [place, *below] if place else below


@pytest.mark.parametrize("verb", [["table"], ["claims"], ["document", "-o", "page.md"]], ids=lambda verb: verb[0])
def test_a_wrong_type_is_one_line(
    verb: list[str],
    results: Results,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fields of an unsealed cell, replaced by values of other types: read without harm, or refused by name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("quatsphere.report.figure_data.write_length_figure", lambda *words: None)
    fields, dice, refused = downgrade(results), random.Random(0), 0
    for place in places(fields):
        changed = copy.deepcopy(fields)
        target = changed
        for key in place[:-1]:
            target = target[key]
        target[place[-1]] = dice.choice(WRONG)
        results.file(CELL).write_text(json.dumps(changed))
        code = main(["study", *verb, "--results", str(results.path)])
        said = capsys.readouterr().err
        assert code in (0, 4), (place, target[place[-1]], said)
        refused += code == 4
    assert refused > 20
