"""What a report shows of a study: its claims decided, its tables and figures, every cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from quatsphere.report.figure_data import schematics
from quatsphere.report.page import PageClaim, PageTable, Picture, Report, Section, Tile, to_picture, write_report
from quatsphere.report.run_report import time_text
from quatsphere.report.study_figures import costs_of, result_figures
from quatsphere.study.claims import CLAIMS, decide
from quatsphere.study.curve import length_tables, rows_by_length
from quatsphere.study.paper_tables import PaperTables
from quatsphere.study.results import Record, at_one_length, read_records

KINDS = {
    "trained": ("Claims that need training", "What our runs say of the paper's statements about trained models."),
    "static": ("Claims that need none", "Arithmetic and geometry, computed from the code at the paper's size."),
}
"""kind of claim -> heading, sentence."""
NOT_JUDGED = "Not judged: none of these runs is on the paper's data, CIFAR-10 and CIFAR-100."

ACCURACY_TEXT = "Percent of test images: means over seeds (range, n). Changes are paired by seed [95 % interval]."


def study_report(
    name: str,
    records: Sequence[Record],
    claims: Sequence[Record],
    tables: Sequence[PageTable],
    shown: Sequence[Picture],
) -> Report:
    """The whole report: tables and figures, then claims, then every cell."""
    sections = [Section("Accuracies", ACCURACY_TEXT, tables, shown)]
    for kind, (title, text) in KINDS.items():
        chosen = [claim for claim in claims if claim["kind"] == kind]
        if any(claim["n"] for claim in chosen):
            sections.append(Section(title, text, claims=[claim_of(claim) for claim in chosen]))
        elif chosen:
            sections.append(Section(title, NOT_JUDGED))
    sections.append(Section("Every run", "One row per finished cell.", [cells_table(records)]))
    told = f"{len(records)} runs on {', '.join(_kinds(records, 'dataset')) or 'nothing yet'}"
    return Report(f"Study {name}", told, _tiles(records, claims), _facts(records), sections)


def _tiles(records: Sequence[Record], claims: Sequence[Record]) -> list[Tile]:
    """How much was run, and how the claims stand."""
    diverged = sum(record["status"] == "diverged" for record in records)
    hours = time_text(sum(record.get("seconds") or 0.0 for record in records))
    shown = [
        Tile("runs", str(len(records)), f"{diverged} diverged" if diverged else "none diverged"),
        Tile("rows", str(len(_kinds(records, "variant"))), f"{len(_kinds(records, 'seed'))} seeds"),
        Tile("training time", hours, "all runs together"),
    ]
    for verdict in ("holds", "fails", "undecided") if claims else ():
        count = sum(claim["verdict"] == verdict for claim in claims)
        shown.append(Tile(f"claims: {verdict}", str(count), f"of {len(claims)}"))
    return shown


def claim_of(found: Record) -> PageClaim:
    """A claim and its verdict as text."""
    paper_n = f" (n = {found['paper_n']})" if found.get("paper_n") else ""
    interval = found.get("interval")
    return PageClaim(
        found["id"],
        found["statement"],
        found["verdict"],
        found.get("why") or "",
        number_text(found.get("ours")),
        number_text(found.get("paper")) + paper_n,
        f"{number_text(interval[0])} to {number_text(interval[1])}" if interval else "",
        str(found["n"]) if found.get("n") else "",
        found.get("section") or "",
    )


def number_text(value: Any) -> str:
    """A number, a list of numbers, or words."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(number_text(item) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def cells_table(records: Sequence[Record]) -> PageTable:
    """Every run; those that diverged are marked."""
    columns = ("cell", "row", "data", "seed", "test", "val", "epochs", "time", "status")
    rows = [
        (
            str(record["cell"]),
            str(record["variant"]),
            str(record["dataset"]),
            str(record["seed"]),
            _share(record.get("test_accuracy")),
            _share(record.get("val_accuracy")),
            str(record.get("epochs", "-")),
            time_text(record["seconds"]) if record.get("seconds") else "-",
            str(record["status"]),
        )
        for record in records
    ]
    marked = frozenset(index for index, record in enumerate(records) if record["status"] == "diverged")
    return PageTable(f"{len(rows)} runs", columns, rows, marked=marked)


def _facts(records: Sequence[Record]) -> list[tuple[str, str]]:
    """What identifies the numbers: everything that differs between runs is listed."""
    versions = [
        ", ".join(f"{name} {version}" for name, version in (record.get("versions") or {}).items()) for record in records
    ]
    found = {
        "runs": len(records),
        "rows": _listed(_kinds(records, "variant")),
        "data": _listed(_kinds(records, "dataset")),
        "data fingerprints": _listed(_kinds(records, "fingerprint")),
        "seeds": _listed(_kinds(records, "seed")),
        "commits": _listed(_kinds(records, "commit")),
        "versions": _listed(dict.fromkeys(versions)),
        "machines": _listed(_kinds(records, "processor")),
    }
    return [(name, str(value)) for name, value in found.items() if value not in (None, "")]


def _kinds(records: Iterable[Record], field: str) -> list[Any]:
    """Distinct values, in order of appearance."""
    return list(dict.fromkeys(record[field] for record in records if record.get(field) is not None))


def _listed(values: Iterable[Any]) -> str:
    return "; ".join(str(value) for value in values if value)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


FIGURE_CAPTIONS = {
    "ablation": (
        "Accuracies and changes",
        "Each row beside the one it is compared with; diamonds: the paper's values.",
    ),
    "lengths": ("Contrasts against length", "Every confirmatory contrast of docs/protocol.md by images seen."),
    "temperature": ("Inverse temperature β", "Its course in training, with the paper's two probes."),
    "qsv": ("QSV in one view", "What each role of the kernel is worth."),
}
"""figure -> title, sentence; a figure of one data set has its name behind a dash."""


def write_study_report(folder: Path, page: Path) -> None:
    """The report of a results folder."""
    records = read_records(folder)
    shown = at_one_length(records)
    finished = [record for record in records if record["status"] == "finished"]
    claims = decide(CLAIMS, shown)
    name = folder.absolute().name
    write_report(page, study_report(name, records, claims, study_tables(records), study_pictures(finished)))


def study_pictures(records: list[dict[str, Any]]) -> list[Picture]:
    """The figures of the results that have a caption."""
    shown = []
    for name, figure in [*result_figures(records), *schematics(*costs_of(records))]:
        kind, _, dataset = name.partition("-")
        if kind in FIGURE_CAPTIONS:
            title, text = FIGURE_CAPTIONS[kind]
            shown.append(to_picture(f"{title} ({dataset})" if dataset else title, text, figure))
    return shown


def study_tables(records: list[dict[str, Any]]) -> list[PageTable]:
    """The tables of `quatsphere study table`; accuracies by seed are among the cells already."""
    by_length = length_tables(records) if len(rows_by_length(records)) > 1 else []
    found = [*by_length, *PaperTables(at_one_length(records)).all()]
    return [PageTable(table.title, table.columns, table.rows) for table in found if table.name != "seeds"]
