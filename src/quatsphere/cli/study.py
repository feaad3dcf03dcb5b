"""quatsphere study: the paper's tables with your own numbers beside the paper's, and a verdict for each claim."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from quatsphere.cli.parser import Parser, add_data_root, add_json, at_least
from quatsphere.errors import CheckpointError, ConfigError, StudyError
from quatsphere.storage.run_folder import print_note as note

if TYPE_CHECKING:
    from quatsphere.study.results import Results

_EPILOG = """\
quatsphere study run smoke --results DIR          minutes, no download
quatsphere study run lite --results DIR --data.root FOLDER
quatsphere study claims --results DIR             what holds, what fails, what is undecided and why
"""


def run(words: list[str]) -> int:
    """Parse the words and run the action."""
    parser = Parser(
        prog="quatsphere study",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, action: Callable[[argparse.Namespace], int], text: str) -> Parser:
        added: Parser = actions.add_parser(name, help=text, description=text)
        added.set_defaults(run_action=action)
        return added

    plans = add("plans", list_plans, "list the plans, or the cells of one")
    plans.add_argument("plan", nargs="?", metavar="PLAN", help="a plan whose cells are listed")

    text = "check that every row of a plan changes its target and nothing else, or that stored numbers agree"
    check = add("check", check_plan_or_results, text)
    check.add_argument("plan", nargs="?", metavar="PLAN", help="see 'study plans'")
    check.add_argument("--results", metavar="DIR", help="compare the numbers of a results folder instead")
    _add_data_root(check)

    text = "add checksums to cells that an older version wrote; their numbers stay as they are"
    _add_results(add("seal", seal_cells, text), json=False)

    start = add("run", train_plan, "train the unfinished cells of a plan; may be stopped and restarted at any time")
    option = start.add_argument
    option("plan", metavar="PLAN", help="a name that 'study plans' lists, e.g. lite")
    option("--results", required=True, metavar="DIR", help="folder for the results")
    option("--only", nargs="+", default=[], metavar="GLOB", help="only rows or cells that match, e.g. full")
    option("--seeds", nargs="+", type=at_least(0), metavar="N", help="these seeds instead of the plan's")
    option("--jobs", type=at_least(1), metavar="N", help="cells trained at a time (default: one per core or GPU)")
    option(
        "--launcher", choices=("local", "ray", "slurm"), default="local", help="this machine, a Ray cluster, or SLURM"
    )
    option(
        "--slurm", nargs="+", default=[], metavar="NAME=X",
        help="parameters of sbatch for --launcher slurm, e.g. partition=gpu gpus_per_node=1 time=240 (minutes)",
    )  # fmt: skip
    _add_data_root(start)
    option(
        "--keep-weights",
        choices=("best", "all", "none"),
        default="best",
        help="checkpoints of finished cells that are kept in DIR/runs (default: best)",
    )
    option("--set", nargs="+", default=[], metavar="GROUP.FIELD=X", help="change settings of every cell, as in 'train'")

    _add_results(add("status", show_status, "count finished and missing cells of every plan"))

    measure = add("measure", measure_cells, "diagnose finished cells whose records have no diagnostics")
    _add_results(measure, json=False)
    _add_data_root(measure)
    measure.add_argument("--again", action="store_true", help="diagnose all finished cells")

    table = add("table", show_tables, "print the paper's tables, our numbers beside the paper's")
    _add_results(table)
    table.add_argument("--format", choices=("markdown", "latex", "csv"), default="markdown", help="default: markdown")
    table.add_argument("--by", choices=("row", "length"), default="row", help="length: contrasts by images seen")
    table.add_argument(
        "--table", metavar="NAME", help="only this one: ablation, context, probes, beyond, crossed, seeds"
    )

    _add_results(add("claims", show_claims, "print a verdict for every claim of the paper"))

    page = add("document", write_document, "write the results page of a results folder")
    _add_results(page, json=False)
    page.add_argument("-o", "--output", required=True, metavar="FILE", help="the Markdown file to write")

    verify = add("verify", verify_cell, "train a finished cell again and compare weights, accuracy and predictions")
    verify.add_argument("cell", metavar="CELL", help="a cell of the results folder, e.g. cifar10.full.e2.s42")
    _add_results(verify)
    _add_data_root(verify)
    verify.add_argument("--run-dir", metavar="DIR", help="folder for the run (default: a temporary folder)")

    options = parser.parse_args(words)
    return int(options.run_action(options))


def _add_results(parser: Parser, *, json: bool = True) -> None:
    parser.add_argument("--results", required=True, metavar="DIR", help="folder with the results of 'study run'")
    if json:
        add_json(parser)


def _add_data_root(parser: Parser) -> None:
    add_data_root(parser, "folder with the data (default: QUATSPHERE_DATA, downloads)")


def list_plans(options: argparse.Namespace) -> int:
    """Print the plans with their size, or the cells of one plan in the order they run."""
    from quatsphere.study.plan import PLANS, find_plan, plan_cells

    if options.plan is None:
        for name, plan in PLANS.items():
            print(f"{name:<9} {len(plan_cells(plan)):>4} cells  {plan.purpose}")
    else:
        for cell in plan_cells(find_plan(options.plan)):
            print(cell.id)
    return 0


def check_plan_or_results(options: argparse.Namespace) -> int:
    """Check the rows of a plan, or the records of a results folder."""
    if (options.plan is None) == (options.results is None):
        raise ConfigError("name a plan, or a results folder with --results; see 'quatsphere study check --help'")
    return _check_results(options.results) if options.plan is None else _check_plan(options.plan, options.data_root)


def _check_plan(name: str, data_root: str | None) -> int:
    """Compare settings, parameters, initial weights and batches of every row with those of its reference."""
    from quatsphere.study.isolation import check_cells
    from quatsphere.study.plan import find_plan, plan_cells, reference_of

    plan = find_plan(name)
    found = check_cells(plan_cells(plan, data_root=data_root), lambda cell: reference_of(cell, plan))
    for row, differences in found.items():
        print(f"{row}: {'; '.join(differences) or 'only its target changes'}")
    wrong = [row for row, differences in found.items() if differences]
    if wrong:
        raise ConfigError(f"{len(wrong)} rows change more than they declare, first {wrong[0]}; see study/variants.py")
    return 0


def _results(folder: str) -> Results:
    """The results folder of an option; it must exist."""
    from quatsphere.study.results import Results

    results = Results(folder)
    results.require()
    return results


def _inspect(results: Results) -> tuple[dict[str, dict[str, Any]], dict[str, str], list[str]]:
    """Records by cell, faults of damaged or inconsistent cells, and cells without a seal."""
    from quatsphere.study.record import inconsistencies

    records, damaged, unsealed = results.check()
    return records, {**damaged, **inconsistencies(records.values())}, unsealed


def _refuse_damaged(found: dict[str, str]) -> None:
    if found:
        first, fault = next(iter(found.items()))
        raise CheckpointError(f"{len(found)} cells are damaged, first {first} ({fault}); restore their files")


def _check_results(folder: str) -> int:
    """Verify the seals, settings and fields of every cell, and compare its predictions with its accuracies."""
    results = _results(folder)
    records, found, unsealed = _inspect(results)
    for cell, fault in (*found.items(), *((cell, "not sealed") for cell in unsealed)):
        print(f"{cell}: {fault}")
    with_predictions = sum("predictions" in record for record in records.values())
    print(
        f"{len(records) + sum(cell not in records for cell in found)} cells, {with_predictions} with predictions, "
        f"{len(unsealed)} not sealed, {len(found)} damaged"
    )
    _note_unsealed(folder, unsealed)
    _refuse_damaged(found)
    return 0


def _note_unsealed(folder: str, cells: list[str]) -> None:
    if cells:
        note(
            f"{len(cells)} cells have no checksum, because an older version wrote them; "
            f"'quatsphere study seal --results {folder}' adds it"
        )


def _read_cells(folder: str) -> list[dict[str, Any]]:
    """Records of all cells, with a note if some are not sealed."""
    records, damaged, unsealed = _results(folder).check()
    if damaged:
        raise CheckpointError(next(iter(damaged.values())))
    _note_unsealed(folder, unsealed)
    return list(records.values())


def seal_cells(options: argparse.Namespace) -> int:
    """Write the cells that have no seal again, with one; refuse if a cell is damaged."""
    results = _results(options.results)
    with results.open():
        records, found, unsealed = _inspect(results)
        _refuse_damaged(found)
        for cell in unsealed:
            results.seal(cell)
    print(f"{len(unsealed)} cells sealed now, {len(records) - len(unsealed)} before")
    return 0


def train_plan(options: argparse.Namespace) -> int:
    """Train the unfinished cells of a plan; fail at the end if a cell failed."""
    from quatsphere.report.study_display import StudyDisplay
    from quatsphere.study import runner
    from quatsphere.study.plan import find_plan, plan_cells
    from quatsphere.study.results import Results
    from quatsphere.study.time_estimate import SpeedEstimator, format_seconds

    cells = plan_cells(
        find_plan(options.plan),
        seeds=options.seeds,
        only=options.only,
        data_root=options.data_root,
        settings=parse_settings(options.set),
    )
    results = Results(options.results)
    todo = runner.unfinished(cells, results)
    launcher = runner.make_launcher(
        options.launcher, options.jobs, cells[0].config.train.threads, results, parse_settings(options.slurm, "--slurm")
    )
    if options.launcher == "local":
        runner.require_data(todo)
    speeds = SpeedEstimator(results.finished())
    speeds.measure(todo, lambda text: print(text, flush=True))
    jobs, seconds = launcher.jobs, speeds.remaining(todo, launcher.jobs)
    duration = "" if seconds is None else f", about {format_seconds(seconds)}"
    print(f"{len(cells)} cells, {len(cells) - len(todo)} finished before{duration}; {jobs} at a time", flush=True)
    with sigterm_interrupts(), StudyDisplay(todo, jobs, speeds) as display:
        summary = runner.run_plan(options.plan, cells, results, launcher, display, keep_weights=options.keep_weights)
    print(f"{summary.finished} cells finished now, {summary.skipped} before, {len(summary.failed)} failed")
    if summary.failed:
        first, reason = next(iter(summary.failed.items()))
        raise StudyError(f"{len(summary.failed)} cells failed, first {first} ({reason}); run again to retry")
    return 0


def parse_settings(words: list[str], option: str = "--set") -> dict[str, Any]:
    """`train.epochs=2` -> {"train.epochs": 2}."""
    pairs = [word.partition("=") for word in words]
    if not all(equals for _, equals, _ in pairs):
        example = {"--set": "GROUP.FIELD=VALUE, e.g. --set train.epochs=2; see 'quatsphere train --help'"}
        raise ConfigError(f"{option} takes {example.get(option, 'NAME=VALUE, e.g. --slurm partition=gpu')}")
    return {key: _parse_value(value) for key, _, value in pairs}


def _parse_value(word: str) -> Any:
    """Number, truth value or None that a word spells; otherwise the word."""
    try:
        value = json.loads(word)
    except ValueError:
        return None if word.lower() == "none" else word
    return word if isinstance(value, list | dict | str) else value


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C: the running cells save and stop."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def show_status(options: argparse.Namespace) -> int:
    """Print finished and missing cells of every plan that was started in a folder."""
    from quatsphere.study.table_formats import status_table

    status = _results(options.results).status()
    if options.json:
        print(json.dumps(status))
        return 0
    _print_table(status_table(options.results, status), "right")
    for cell, epochs in status["begun"].items():
        print(f"{cell}: {epochs} epochs so far")
    return 0


def measure_cells(options: argparse.Namespace) -> int:
    """Add missing diagnostics from stored weights."""
    from quatsphere.study.record import add_diagnostics

    results = _results(options.results)
    diagnosed, without_weights = add_diagnostics(results, options.data_root, again=options.again, note=print)
    print(f"{diagnosed} cells measured, {without_weights} without weights")
    return 0


def show_tables(options: argparse.Namespace) -> int:
    """Print all tables or one."""
    from quatsphere.study.length_contrasts import length_tables
    from quatsphere.study.paper_tables import PaperTables
    from quatsphere.study.results import at_one_length
    from quatsphere.study.table_formats import TABLE_FORMATS

    records = _read_cells(options.results)
    tables = length_tables(records) if options.by == "length" else PaperTables(at_one_length(records)).all()
    found = {table.name: table for table in tables}
    if options.table is not None and options.table not in found:
        raise ConfigError(f"unknown table {options.table!r}; choose one of {', '.join(found)}")
    chosen = list(found.values()) if options.table is None else [found[options.table]]
    if options.json:
        print(json.dumps([{"name": t.name, "title": t.title, "head": t.columns, "rows": t.rows} for t in chosen]))
    else:
        print("\n".join(TABLE_FORMATS[options.format](table) for table in chosen), end="")
    return 0


def show_claims(options: argparse.Namespace) -> int:
    """Print every claim with its verdict."""
    from quatsphere.storage.atomic import finite
    from quatsphere.study.claims import CLAIMS, decide
    from quatsphere.study.results import at_one_length
    from quatsphere.study.table_formats import claims_table

    claims = decide(CLAIMS, at_one_length(_read_cells(options.results)))
    if options.json:
        print(json.dumps(finite(claims)))
    else:
        _print_table(claims_table(f"{options.results}: {len(claims)} claims", claims))
    return 0


def write_document(options: argparse.Namespace) -> int:
    """Write the results page, its figure and the table of all cells that it links to."""
    from quatsphere.report.figure_data import write_length_figure
    from quatsphere.storage.atomic import write_text
    from quatsphere.study.document import BY_SEED, document, seeds_csv
    from quatsphere.study.length_document import FIGURE, has_lengths, length_document

    results, page = _results(options.results), Path(options.output)
    by_length = has_lengths(_read_cells(options.results))
    text = (length_document if by_length else document)(results, page)
    if by_length:
        write_length_figure(results.finished(), page.parent / FIGURE)
    write_text(results.path / BY_SEED, seeds_csv(results))
    write_text(page, text)
    print(options.output)
    return 0


def verify_cell(options: argparse.Namespace) -> int:
    """Train a cell again; fail if it is not reproduced."""
    import tempfile

    from quatsphere.cli.console import LiveReporter
    from quatsphere.study.record import describe_comparison, retrain

    results = _results(options.results)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(options.run_dir or Path(folder) / options.cell)
        found = retrain(results, options.cell, run_dir, options.data_root, LiveReporter())
    print(json.dumps(found) if options.json else describe_comparison(found))
    if not found["verified"]:
        raise StudyError(f"cell {options.cell} was not reproduced; see the lines above")
    return 0


def _print_table(table: Any, justify: str = "left") -> None:
    """Print a table in the terminal."""
    from rich.console import Console

    from quatsphere.cli.console import number_table

    Console().print(number_table(table.title, table.columns, table.rows, justify=justify))
