"""Report page of a study: tables, figures, decided claims and every cell."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from quatsphere.diagnostics.tables import format_number
from quatsphere.report.explanations import INTRODUCTIONS, STUDY_INTRODUCTION, STUDY_PICTURES, STUDY_TILES
from quatsphere.report.figure_data import costs_of, result_figures, schematics
from quatsphere.report.page import PageClaim, Picture, Report, Section, Tile, to_picture, write_report
from quatsphere.report.run_report import draw_twice
from quatsphere.study.claims import CLAIMS, decide
from quatsphere.study.length_contrasts import length_tables, rows_by_length
from quatsphere.study.paper_tables import PaperTables
from quatsphere.study.results import CellRecord, at_one_length, read_records
from quatsphere.study.table_formats import Table, format_value
from quatsphere.study.time_estimate import format_seconds

KINDS = {
    "trained": ("Claims that need training", "The paper's statements about trained models, judged on these runs."),
    "static": (
        "Claims that need none",
        "Sizes and properties at the start, computed from the code at the paper's size.",
    ),
}
"""kind of claim -> heading, description."""
NOT_JUDGED = "Not judged: none of these runs is on the paper's data, CIFAR-10 and CIFAR-100."

ACCURACY_TEXT = "Percent of test images: means over seeds (range, n). Changes are paired by seed [95 % interval]."


def study_report(
    name: str,
    records: Sequence[CellRecord],
    claims: Sequence[CellRecord],
    tables: Sequence[Table],
    shown: Sequence[Picture],
) -> Report:
    """Assemble the report: tables and figures, then claims, then every cell."""
    sections = [Section("Accuracies", ACCURACY_TEXT, tables, shown)]
    for kind, (title, text) in KINDS.items():
        chosen = [claim for claim in claims if claim["kind"] == kind]
        if any(claim["n"] for claim in chosen):
            sections.append(Section(title, text, claims=[claim_of(claim) for claim in chosen]))
        elif chosen:
            sections.append(Section(title, NOT_JUDGED))
    sections.append(Section("Every run", "One row per finished cell.", [cells_table(records)]))
    subtitle = f"{len(records)} runs on {', '.join(_distinct_values(records, 'dataset')) or 'nothing yet'}"
    tiles, facts = _tiles(records, claims), _facts(records)
    introduction = f"{INTRODUCTIONS['qsv']} {STUDY_INTRODUCTION}"
    return Report(f"Study {name}", subtitle, tiles, facts, sections, introduction=introduction)


def _tiles(records: Sequence[CellRecord], claims: Sequence[CellRecord]) -> list[Tile]:
    """Headline numbers: runs, rows, training time, claims by verdict."""
    diverged = sum(record["status"] == "diverged" for record in records)
    hours = format_seconds(sum(record.get("seconds") or 0.0 for record in records))
    shown = [
        Tile("runs", str(len(records)), f"{diverged} diverged" if diverged else "none diverged"),
        Tile("rows", str(len(_distinct_values(records, "variant"))), f"{len(_distinct_values(records, 'seed'))} seeds"),
        Tile("training time", hours, "all runs together"),
    ]
    for verdict in ("holds", "fails", "undecided") if claims else ():
        count = sum(claim["verdict"] == verdict for claim in claims)
        shown.append(Tile(f"claims: {verdict}", str(count), f"of {len(claims)}"))
    return [dataclasses.replace(tile, meaning=STUDY_TILES[tile.label]) for tile in shown]


def claim_of(found: CellRecord) -> PageClaim:
    """Convert a decided claim to text."""
    paper_n = f" (n = {found['paper_n']})" if found.get("paper_n") else ""
    interval = found.get("interval")
    return PageClaim(
        found["id"],
        found["statement"],
        found["verdict"],
        found.get("why") or "",
        _number_text(found.get("ours")),
        _number_text(found.get("paper")) + paper_n,
        f"{_number_text(interval[0])} to {_number_text(interval[1])}" if interval else "",
        str(found["n"]) if found.get("n") else "",
        found.get("section") or "",
    )


def _number_text(value: Any) -> str:
    """Text of a number, range or list; empty if there is none."""
    return "" if value is None else format_value(value)


def cells_table(records: Sequence[CellRecord]) -> Table:
    """Table of all runs; diverged ones are marked."""
    columns = ("cell", "row", "data", "seed", "test", "val", "epochs", "time", "status")
    rows = []
    for record in records:
        accuracies = [format_number(record.get(name), ".4f") for name in ("test_accuracy", "val_accuracy")]
        duration = format_seconds(record["seconds"]) if record.get("seconds") else "-"
        identity = (str(record[name]) for name in ("cell", "variant", "dataset", "seed"))
        rows.append((*identity, *accuracies, str(record.get("epochs", "-")), duration, str(record["status"])))
    marked = frozenset(index for index, record in enumerate(records) if record["status"] == "diverged")
    return Table(columns, rows, f"{len(rows)} runs", marked=marked)


def _facts(records: Sequence[CellRecord]) -> list[tuple[str, str]]:
    """Identity of the runs: all values that occur of data, seeds, commits, versions and machines."""
    versions = [
        ", ".join(f"{name} {version}" for name, version in (record.get("versions") or {}).items()) for record in records
    ]
    found = {
        "runs": [len(records)],
        "rows": _distinct_values(records, "variant"),
        "data": _distinct_values(records, "dataset"),
        "data fingerprints": _distinct_values(records, "fingerprint"),
        "seeds": _distinct_values(records, "seed"),
        "commits": _distinct_values(records, "commit"),
        "versions": list(dict.fromkeys(versions)),
        "machines": _distinct_values(records, "processor"),
    }
    joined = {name: "; ".join(str(value) for value in values if value) for name, values in found.items()}
    return [(name, text) for name, text in joined.items() if text]


def _distinct_values(records: Iterable[CellRecord], field: str) -> list[Any]:
    """Distinct values, in order of appearance."""
    return list(dict.fromkeys(record[field] for record in records if record.get(field) is not None))


def write_study_report(folder: Path, page: Path) -> None:
    """Write the report of a results folder."""
    records = read_records(folder)
    shown = at_one_length(records)
    finished = [record for record in records if record["status"] == "finished"]
    tables = [*(length_tables(records) if len(rows_by_length(records)) > 1 else []), *PaperTables(shown).all()]
    chosen = [table for table in tables if table.name != "seeds"]  # the table of cells has them
    claims, name = decide(CLAIMS, shown), folder.absolute().name
    write_report(page, study_report(name, records, claims, chosen, study_pictures(finished)))


def study_pictures(records: list[dict[str, Any]]) -> list[Picture]:
    """Figures of the results that have a caption."""
    page, phone = draw_twice(lambda: dict(chain(result_figures(records), schematics(*costs_of(records)))))
    shown = []
    for name, figure in page.items():
        kind, _, dataset = name.partition("-")
        if kind in STUDY_PICTURES:
            title, text, normal = STUDY_PICTURES[kind]
            shown.append(to_picture(f"{title} ({dataset})" if dataset else title, text, figure, normal, phone[name]))
    return shown
