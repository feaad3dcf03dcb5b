"""What `quatsphere study` shows of a results folder: status, tables, verdicts, the page."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from quatsphere.errors import ConfigError


def show_status(asked: argparse.Namespace) -> int:
    """Finished and missing cells of every plan that was started here."""
    from quatsphere.study.results import Results
    from quatsphere.study.status import status

    facts = status(Results(asked.results))
    if asked.json:
        print(json.dumps(facts))
        return 0
    table = Table(title=f"{asked.results}", title_justify="left")
    for column in ("plan", "cells", "finished", "diverged", "begun", "missing"):
        table.add_column(column, justify="left" if column == "plan" else "right")
    for plan, counts in facts["plans"].items():
        table.add_row(plan, *(str(len(counts[key])) for key in ("cells", "finished", "diverged", "begun", "missing")))
    Console().print(table)
    for cell, epochs in facts["begun"].items():
        print(f"{cell}: {epochs} epochs so far")
    return 0


def measure_cells(asked: argparse.Namespace) -> int:
    """Fill in what a cell's own process could not measure, from the weights that were kept."""
    from quatsphere.study.measure import fill_in
    from quatsphere.study.results import Results

    done, left = fill_in(Results(asked.results), asked.data_root, again=asked.again, say=print)
    print(f"{done} cells measured, {left} without weights")
    return 0


def show_tables(asked: argparse.Namespace) -> int:
    """Every table, or one."""
    from quatsphere.study.render import FORMATS
    from quatsphere.study.tables import Tables

    found = {table.name: table for table in Tables(_records(asked.results)).all()}
    if asked.table is not None and asked.table not in found:
        raise ConfigError(f"unknown table {asked.table!r}; choose one of {', '.join(found)}")
    chosen = list(found.values()) if asked.table is None else [found[asked.table]]
    if asked.json:
        print(json.dumps([{"name": t.name, "title": t.title, "head": t.head, "rows": t.rows} for t in chosen]))
    else:
        print("\n".join(FORMATS[asked.format](table) for table in chosen), end="")
    return 0


def show_claims(asked: argparse.Namespace) -> int:
    """Every claim with its verdict."""
    from quatsphere.files.atomic import finite
    from quatsphere.study.claims import CLAIMS, decide
    from quatsphere.study.document import spell_number, spell_ours
    from quatsphere.study.tables import spell_verdict

    found = decide(CLAIMS, _records(asked.results))
    if asked.json:
        print(json.dumps(finite(found)))
        return 0
    table = Table(title=f"{asked.results}: {len(found)} claims", title_justify="left")
    for column in ("claim", "paper", "ours", "n", "verdict"):
        table.add_column(column)
    for claim in found:
        row = (claim["id"], spell_number(claim["paper"]), spell_ours(claim), str(claim["n"]), spell_verdict(claim))
        table.add_row(*row)
    Console().print(table)
    return 0


def write_document(asked: argparse.Namespace) -> int:
    """The page of results."""
    from quatsphere.files.atomic import write_text
    from quatsphere.study.document import document
    from quatsphere.study.results import Results

    results = Results(asked.results)
    results.require()
    write_text(Path(asked.output), document(results))
    print(asked.output)
    return 0


def _records(folder: str) -> list[dict[str, Any]]:
    from quatsphere.study.results import Results

    results = Results(folder)
    results.require()
    return results.finished()
