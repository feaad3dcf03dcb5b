"""What a report shows of a study: its claims decided, its tables and figures, every cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quatsphere.cli.figure_data import costs_of, result_figures, schematics
from quatsphere.report.page import Picture, Table, draw, write_report
from quatsphere.report.study_page import study_report
from quatsphere.study.claims import CLAIMS, decide
from quatsphere.study.curve import at_one_length, rows_by_length
from quatsphere.study.curve_tables import length_tables
from quatsphere.study.results import Results
from quatsphere.study.tables import Tables

CAPTIONS = {
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
    results = Results(folder)
    results.require()
    records = results.finished()
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
        if kind in CAPTIONS:
            title, text = CAPTIONS[kind]
            shown.append(draw(f"{title} ({dataset})" if dataset else title, text, figure))
    return shown


def study_tables(records: list[dict[str, Any]]) -> list[Table]:
    """The tables of `quatsphere study table`; accuracies by seed are among the cells already."""
    by_length = length_tables(records) if len(rows_by_length(records)) > 1 else []
    found = [*by_length, *Tables(at_one_length(records)).all()]
    return [Table(table.title, table.head, table.rows) for table in found if table.name != "seeds"]
