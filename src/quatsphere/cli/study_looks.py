"""What a report shows of a study: its claims decided, its tables and figures, every cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quatsphere.cli.figure_data import ablation_rows, costs_of, result_figures, schematics
from quatsphere.report.figures import AblationRow, Measured
from quatsphere.report.page import Picture, Table, draw, write_report
from quatsphere.report.study_page import study_report
from quatsphere.study.claims import CLAIMS, decide
from quatsphere.study.results import Results

CAPTIONS = {
    "ablation": ("Accuracies and changes", "Each row beside the one it is compared with, and the paper's values."),
    "temperature": ("Inverse temperature β", "Its course in training, with the paper's two probes."),
    "qsv": ("QSV in one view", "What each role of the kernel is worth."),
}
"""figure -> title, sentence; a figure of one data set has its name behind a dash."""


def write_study_report(folder: Path, page: Path) -> None:
    """The report of a results folder."""
    results = Results(folder)
    results.require()
    records = results.finished()
    finished = [record for record in records if record["status"] == "finished"]
    claims = decide(CLAIMS, records)
    datasets = dict.fromkeys(record["dataset"] for record in finished)
    tables = [accuracy_table([r for r in finished if r["dataset"] == dataset], dataset) for dataset in datasets]
    name = folder.absolute().name
    write_report(page, study_report(name, records, claims, tables, study_pictures(finished)))


def study_pictures(records: list[dict[str, Any]]) -> list[Picture]:
    """The figures of the results that have a caption."""
    shown = []
    for name, figure in [*result_figures(records), *schematics(*costs_of(records))]:
        kind, _, dataset = name.partition("-")
        if kind in CAPTIONS:
            title, text = CAPTIONS[kind]
            shown.append(draw(f"{title} ({dataset})" if dataset else title, text, figure))
    return shown


def accuracy_table(records: list[dict[str, Any]], dataset: str) -> Table:
    """One row per variant: mean, range and n of the seeds, the change from its reference, the paper's two numbers."""
    columns = ("row", "n", "test, %", "range", "change", "95 % interval", "paper, %", "paper's change")
    rows = [table_row(row) for row in ablation_rows(records, dataset)]
    return Table(f"Test accuracy on {dataset}", columns, rows)


def table_row(row: AblationRow) -> tuple[str, ...]:
    """An ablation row as text."""
    spread = f"{min(row.seeds):.2f} to {max(row.seeds):.2f}" if len(row.seeds) > 1 else ""
    change = "" if row.change is None else f"{row.change.mean:+.2f}"
    paper = "" if row.paper_accuracy is None else f"{row.paper_accuracy:.1f}"
    paper_change = "" if row.paper_change is None else f"{row.paper_change:+.1f}"
    ours = (f"{row.accuracy.mean:.2f}", spread, change, interval(row.change))
    return (row.title, str(len(row.seeds)), *ours, paper, paper_change)


def interval(measured: Measured | None) -> str:
    """The ends of an interval; one seed has none."""
    if measured is None or measured.low is None or measured.high is None:
        return ""
    return f"{measured.low:+.2f} to {measured.high:+.2f}"
