"""quatsphere study: plans, tables, verdicts, the results page, and messages for mistakes. Numbers are invented."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.study_records import PAPER, make_record, make_records

from quatsphere.cli.study import parse_settings
from quatsphere.study.results import Results

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A results folder with the paper's accuracies as three seeds, at the lite size."""
    results = Results(tmp_path_factory.mktemp("made-up") / "lite")
    with results.open():
        for record in make_records(PAPER, seeds=(42, 1, 2)):
            results.write(record["cell"], record)
        gone = make_record("bound_none", 42, 0.0) | {"status": "diverged", "reason": "loss is not finite"}
        results.write(gone["cell"], gone)
    return str(results.path)


def test_plans_are_listed_with_their_size(command: Command) -> None:
    lines = command("study", "plans").out.splitlines()
    names = ["paper", "lite", "beyond", "sweep", "precision", "tuning", "curve", "smoke"]
    assert [line.split()[0] for line in lines] == names
    assert "99 cells" in lines[1]
    cells = command("study", "plans", "smoke").out.split()
    assert cells[0] == "digits.full.s1"


def test_a_plan_is_checked_row_by_row(command: Command) -> None:
    lines = command("study", "check", "smoke").out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        f"digits.{row}" for row in ("full", "transport_identity", "both_off", "routing_uniform", "attention")
    ]
    assert all(line.endswith("only its target changes") for line in lines)


def test_claims_as_json_and_as_a_table(command: Command, folder: str) -> None:
    claims = {claim["id"]: claim for claim in json.loads(command("study", "claims", "--results", folder, "--json").out)}
    assert claims["transport.cifar10"]["verdict"] == "holds"
    assert claims["transport.cifar10"]["ours"] == pytest.approx(-4.25)
    assert claims["accuracy.full"]["verdict"] == "undecided"
    assert claims["transport.cifar100"]["verdict"] == "undecided"
    shown = command("study", "claims", "--results", folder).out
    assert "kernel_factor" in shown


def test_tables_in_three_formats(command: Command, folder: str) -> None:
    words = ("study", "table", "--results", folder, "--table", "ablation")
    markdown = command(*words).out
    assert "| Transport -> identity | 81.70 (81.30 to 82.10, n = 3) | -4.25 [" in markdown
    assert r"| Routing on \|Re(r)\| |" in markdown
    latex = command(*words, "--format", "latex").out
    assert latex.count("\\\\") == 9
    assert r"Transport $\to$ identity & 81.70" in latex
    assert "_" not in latex.replace(r"\_", "")
    rows = list(csv.reader(io.StringIO(command(*words, "--format", "csv").out)))
    assert len({len(row) for row in rows}) == 1
    assert rows[2][3] == "81.7 (-4.3)"
    tables = json.loads(command("study", "table", "--results", folder, "--json").out)
    assert [table["name"] for table in tables] == ["ablation", "context", "probes", "beyond", "crossed", "seeds"]
    seeds = {row[1]: row for row in tables[-1]["rows"]}
    assert "diverged" in seeds["bound_none"]


def test_context_table_cites_the_literature(command: Command, folder: str) -> None:
    rows = json.loads(command("study", "table", "--results", folder, "--table", "context", "--json").out)[0]["rows"]
    by_model = {row[0]: row for row in rows}
    assert by_model["ResNet-56"][4] == "93.0 (cited)"
    assert by_model["Flat-lattice control"][2].startswith("91.10")
    assert by_model["Flat-lattice control"][4] == "91.1 (+3.8)"
    assert by_model["Flat-lattice control"][5] == "holds"


def test_results_page_depends_only_on_the_folder(command: Command, folder: str) -> None:
    (Path(folder) / "reading.md").write_text("## Interpretation\n\nA remark.\n")
    pages = []
    for name in ("one.md", "two.md"):
        assert command("study", "document", "--results", folder, "-o", name).code == 0
        pages.append(Path(name).read_text())
    assert pages[0] == pages[1]
    assert "A remark." in pages[0]
    assert '0.99 times the paper\'s size**: "removing transport costs accuracy (4.3 points)". Paper -4.3' in pages[0]
    assert folder not in pages[0]
    (link,) = re.findall(r"\[by_seed\.csv\]\((.*)\)", pages[0])
    rows = list(csv.DictReader(io.StringIO(Path(link).read_text())))
    assert len(rows) == 3 * len(PAPER) + 1
    assert {"data": "cifar10", "row": "full", "seed": "42", "test accuracy": "85.90", "commit": "c" * 12} in rows


def test_status(command: Command, folder: str) -> None:
    assert json.loads(command("study", "status", "--results", folder, "--json").out)["cells"] == 3 * len(PAPER) + 1


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("study",), 2, "ACTION"),
        (("study", "run", "small", "--results", "x"), 2, "unknown plan 'small'; choose one of paper, lite"),
        (("study", "run", "smoke"), 2, "--results"),
        (("study", "run", "smoke", "--results", "x", "--only", "ful"), 2, "no cell matches --only ful"),
        (("study", "run", "smoke", "--results", "x", "--set", "train.epochs"), 2, "--set takes GROUP.FIELD=VALUE"),
        (("study", "run", "smoke", "--results", "x", "--set", "train.epoch=2"), 2, "unknown setting 'train.epoch'"),
        (("study", "run", "smoke", "--results", "x", "--jobs", "0"), 2, "must be a whole number >= 1"),
        (("study", "status", "--results", "nowhere"), 2, "no results in nowhere"),
        (("study", "claims", "--results", "nowhere"), 2, "no results in nowhere"),
    ],
)
def test_mistakes(words: tuple[str, ...], code: int, message: str, fails: Command) -> None:
    fails(code, message, *words)
    assert not Path("x").exists()


@pytest.mark.parametrize(
    ("code", "message", "words"),
    [
        (3, "no CIFAR-10 files in", ("lite", "--data-root", ".")),
        (2, "batch_size must not exceed the 1295 training images", ("smoke", "--set", "train.batch_size=2000")),
    ],
)
def test_missing_data_is_found_before_the_first_cell(
    code: int, message: str, words: tuple[str, ...], fails: Command
) -> None:
    fails(code, message, "study", "run", *words, "--results", "x")
    assert not Path("x").exists()


def test_parsing_of_settings() -> None:
    words = [
        "optim.peak_lr=4e-3",
        "train.epochs=2",
        "model.zero_init=false",
        "data.max_train_images=none",
        "data.name=idx",
    ]
    assert parse_settings(words) == {
        "optim.peak_lr": 0.004,
        "train.epochs": 2,
        "model.zero_init": False,
        "data.max_train_images": None,
        "data.name": "idx",
    }


def test_unknown_table_is_an_error(folder: str, fails: Command) -> None:
    fails(2, "unknown table 'ablations'", "study", "table", "--results", folder, "--table", "ablations")


def test_missing_ray_is_an_error(fails: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ("study", "run", "smoke", "--results", "x", "--launcher", "ray")
    fails(2, r"--launcher ray needs Ray; pip install 'quatsphere\[cluster\]'", *words)
