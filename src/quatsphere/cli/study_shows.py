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
    from quatsphere.study.curve import at_one_length
    from quatsphere.study.curve_tables import length_tables
    from quatsphere.study.render import FORMATS
    from quatsphere.study.tables import Tables

    records = _records(asked.results)
    tables = length_tables(records) if asked.by == "length" else Tables(at_one_length(records)).all()
    found = {table.name: table for table in tables}
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
    from quatsphere.storage.atomic import finite
    from quatsphere.study.claims import CLAIMS, decide
    from quatsphere.study.curve import at_one_length
    from quatsphere.study.document import spell_number, spell_ours
    from quatsphere.study.tables import spell_verdict

    found = decide(CLAIMS, at_one_length(_records(asked.results)))
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
    """The page of results, and the table of all cells that it links to."""
    from quatsphere.storage.atomic import write_text
    from quatsphere.study.document import BY_SEED, by_seed, document
    from quatsphere.study.results import Results

    results = Results(asked.results)
    results.require()
    write_text(results.path / BY_SEED, by_seed(results))
    write_text(Path(asked.output), document(results, Path(asked.output)))
    print(asked.output)
    return 0


def check_results(asked: argparse.Namespace) -> int:
    """Every cell's settings against their hash and its predictions against its accuracies."""
    from quatsphere.errors import CheckpointError
    from quatsphere.study.results import Results
    from quatsphere.study.verify import inconsistencies

    results = Results(asked.results)
    results.require()
    found = inconsistencies(results)
    for cell, fault in found.items():
        print(f"{cell}: {fault}")
    records = results.finished()
    packed = sum("predictions" in record for record in records)
    print(f"{len(records)} cells, {packed} with predictions, {len(found)} that do not agree with themselves")
    if found:
        first, fault = next(iter(found.items()))
        raise CheckpointError(f"{len(found)} cells are damaged, first {first} ({fault}); restore their files")
    return 0


def verify_cell(asked: argparse.Namespace) -> int:
    """A cell trained again; not verified is an error."""
    import tempfile

    from quatsphere.cli.console import LiveReporter
    from quatsphere.errors import QuatsphereError
    from quatsphere.study.results import Results
    from quatsphere.study.verify import retrain

    results = Results(asked.results)
    results.require()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(asked.run_dir or Path(folder) / asked.cell)
        found = retrain(results, asked.cell, run_dir, asked.data_root, LiveReporter())
    if asked.json:
        print(json.dumps(found))
    else:
        print(spell_comparison(found))
    if not found["verified"]:
        raise QuatsphereError(f"cell {asked.cell} was not reproduced; see the lines above")
    return 0


def spell_comparison(found: dict[str, Any]) -> str:
    """What a repetition gave, in words."""
    stored, again = found["test_accuracy"]
    low, high = found["interval"]
    if found["same_weights"]:
        weights = "the same weights, bit for bit"
    else:
        why = "although processor, threads and torch are the same" if found["bits_expected"] else "on another system"
        weights = f"other weights, {why}"
    same = found["same_predictions"]
    lines = [
        f"{found['cell']}: {weights}",
        f"test accuracy {again:.4f}, stored {stored:.4f} (other machines: {low:.4f} to {high:.4f})",
        *([] if same is None else [f"the same prediction on {same:.2%} of the test images"]),
    ]
    return "\n".join(lines)


def _records(folder: str) -> list[dict[str, Any]]:
    from quatsphere.study.results import Results

    results = Results(folder)
    results.require()
    return results.finished()
