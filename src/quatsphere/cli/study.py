"""quatsphere study: the paper's tables with your own numbers beside the paper's, and a verdict for each claim."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from quatsphere.cli.parser import Parser, add_data_root, add_json, at_least
from quatsphere.cli.study_shows import (
    check_results,
    measure_cells,
    show_claims,
    show_status,
    show_tables,
    verify_cell,
    write_document,
)
from quatsphere.errors import ConfigError, QuatsphereError

EPILOG = """\
quatsphere study run smoke --results DIR          minutes, no download
quatsphere study run lite --results DIR --data.root FOLDER
quatsphere study claims --results DIR             what holds, what fails, what is undecided and why
"""
DATA = "folder with the data (default: QUATSPHERE_DATA, downloads)"


def run(words: list[str]) -> int:
    """Do what the second word says."""
    parser = Parser(
        prog="quatsphere study",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    adders = (_add_plans, _add_check, _add_run, _add_status, _add_measure, _add_table, _add_claims, _add_document)
    for add in (*adders, _add_verify):
        add(actions)
    asked = parser.parse_args(words)
    act: Callable[[argparse.Namespace], int] = asked.act
    return act(asked)


def _action(actions: Any, name: str, text: str, act: Callable[[argparse.Namespace], int]) -> Parser:
    parser: Parser = actions.add_parser(name, help=text, description=text)
    parser.set_defaults(act=act)
    return parser


def _add_results(parser: Parser) -> None:
    parser.add_argument("--results", required=True, metavar="DIR", help="folder with the results of 'study run'")
    add_json(parser)


def _add_plans(actions: Any) -> None:
    parser = _action(actions, "plans", "list the plans, or the cells of one", list_plans)
    parser.add_argument("plan", nargs="?", metavar="PLAN", help="a plan whose cells are listed")


def _add_check(actions: Any) -> None:
    text = "check that every row of a plan changes its target and nothing else, or that stored numbers agree"
    parser = _action(actions, "check", text, check)
    parser.add_argument("plan", nargs="?", metavar="PLAN", help="see 'study plans'")
    parser.add_argument("--results", metavar="DIR", help="compare the numbers of a results folder instead")
    add_data_root(parser, DATA)


def _add_run(actions: Any) -> None:
    parser = _action(
        actions, "run", "train the unfinished cells of a plan; kill it and start it again at will", run_plan
    )
    parser.add_argument("plan", metavar="PLAN", help="a name that 'study plans' lists, e.g. lite")
    parser.add_argument("--results", required=True, metavar="DIR", help="where finished cells are kept")
    parser.add_argument("--only", nargs="+", default=[], metavar="GLOB", help="only rows or cells that fit, e.g. full")
    parser.add_argument("--seeds", nargs="+", type=at_least(0), metavar="N", help="these seeds instead of the plan's")
    parser.add_argument(
        "--jobs", type=at_least(1), metavar="N", help="cells side by side (default: one per core or GPU)"
    )
    parser.add_argument("--launcher", choices=("local", "ray"), default="local", help="this machine, or a Ray cluster")
    add_data_root(parser, DATA)
    parser.add_argument(
        "--keep-weights",
        choices=("best", "all", "none"),
        default="best",
        help="checkpoints of finished cells that stay in DIR/runs (default: best)",
    )
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="GROUP.FIELD=X", help="change settings of every cell, as in 'train'"
    )


def _add_status(actions: Any) -> None:
    _add_results(_action(actions, "status", "what is finished, what is not", show_status))


def _add_measure(actions: Any) -> None:
    text = "measure the inside of finished cells that were kept without those numbers"
    parser = _action(actions, "measure", text, measure_cells)
    parser.add_argument("--results", required=True, metavar="DIR", help="folder with the results of 'study run'")
    add_data_root(parser, DATA)
    parser.add_argument("--again", action="store_true", help="also those that have the numbers")


def _add_table(actions: Any) -> None:
    parser = _action(actions, "table", "the paper's tables, ours beside the paper's", show_tables)
    _add_results(parser)
    parser.add_argument("--format", choices=("markdown", "latex", "csv"), default="markdown", help="default: markdown")
    parser.add_argument("--by", choices=("row", "length"), default="row", help="length: contrasts by images seen")
    parser.add_argument(
        "--table", metavar="NAME", help="only this one: ablation, context, probes, beyond, crossed, seeds"
    )


def _add_claims(actions: Any) -> None:
    _add_results(_action(actions, "claims", "a verdict for every claim of the paper", show_claims))


def _add_verify(actions: Any) -> None:
    text = "train a finished cell again and compare weights, accuracy and predictions"
    parser = _action(actions, "verify", text, verify_cell)
    parser.add_argument("cell", metavar="CELL", help="a cell of the results folder, e.g. cifar10.full.e2.s42")
    _add_results(parser)
    add_data_root(parser, DATA)
    parser.add_argument("--run-dir", metavar="DIR", help="where to train (default: a temporary folder)")


def _add_document(actions: Any) -> None:
    parser = _action(actions, "document", "write docs/results.md from a results folder", write_document)
    parser.add_argument("--results", required=True, metavar="DIR", help="folder with the results of 'study run'")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the Markdown file to write")


def list_plans(asked: argparse.Namespace) -> int:
    """The plans with their size, or one plan's cells in the order they run."""
    from quatsphere.study.plan import PLANS, plan_cells

    if asked.plan is None:
        for name, plan in PLANS.items():
            print(f"{name:<9} {len(plan_cells(plan)):>4} cells  {plan.purpose}")
        return 0
    for cell in plan_cells(find_plan(asked.plan)):
        print(cell.id)
    return 0


def check(asked: argparse.Namespace) -> int:
    """A plan's rows, or a results folder."""
    if (asked.plan is None) == (asked.results is None):
        raise ConfigError("name a plan, or a results folder with --results; see 'quatsphere study check --help'")
    return check_plan(asked) if asked.results is None else check_results(asked)


def check_plan(asked: argparse.Namespace) -> int:
    """Settings, parameters, initial weights and batches of every row against those of its reference."""
    from quatsphere.study.isolation import check_cells
    from quatsphere.study.plan import plan_cells, reference_of

    plan = find_plan(asked.plan)
    found = check_cells(plan_cells(plan, data_root=asked.data_root), lambda cell: reference_of(cell, plan))
    for row, differences in found.items():
        print(f"{row}: {'; '.join(differences) or 'only its target changes'}")
    wrong = [row for row, differences in found.items() if differences]
    if wrong:
        raise ConfigError(f"{len(wrong)} rows change more than they declare, first {wrong[0]}; see study/variants.py")
    return 0


def find_plan(name: str) -> Any:
    """A plan by name."""
    from quatsphere.study.plan import PLANS

    if name not in PLANS:
        raise ConfigError(f"unknown plan {name!r}; choose one of {', '.join(PLANS)}")
    return PLANS[name]


def parse_settings(words: list[str]) -> dict[str, Any]:
    """`train.epochs=2` -> {"train.epochs": 2}."""
    pairs = [word.partition("=") for word in words]
    if not all(equals for _, equals, _ in pairs):
        raise ConfigError("--set takes GROUP.FIELD=VALUE, e.g. --set train.epochs=2; see 'quatsphere train --help'")
    return {key: _plain(value) for key, _, value in pairs}


def _plain(word: str) -> Any:
    """A number, true, false or none where the word is one; else the word."""
    try:
        value = json.loads(word)
    except ValueError:
        return None if word.lower() == "none" else word
    return word if isinstance(value, list | dict | str) else value


def run_plan(asked: argparse.Namespace) -> int:
    """Train what is unfinished, show it, and fail at the end if a cell failed."""
    from quatsphere.cli.study_board import Board
    from quatsphere.study.estimate import Pace, spell_seconds
    from quatsphere.study.plan import plan_cells
    from quatsphere.study.results import Results
    from quatsphere.study.runner import require_ready, unfinished
    from quatsphere.study.runner import run_plan as run_cells

    cells = plan_cells(
        find_plan(asked.plan),
        seeds=asked.seeds,
        only=asked.only,
        data_root=asked.data_root,
        settings=parse_settings(asked.set),
    )
    results = Results(asked.results)
    todo = unfinished(cells, results)
    launcher = make_launcher(asked.launcher, asked.jobs or default_jobs(cells[0].config.train.threads))
    if asked.launcher == "local":
        require_ready(todo)
    pace = Pace(results.finished())
    pace.measure(todo, lambda text: print(text, flush=True))
    jobs, seconds = launcher.jobs, pace.left(todo, launcher.jobs)
    time = "" if seconds is None else f", about {spell_seconds(seconds)}"
    print(f"{len(cells)} cells, {len(cells) - len(todo)} finished before{time}; {jobs} side by side", flush=True)
    with sigterm_interrupts(), Board(todo, jobs, pace) as board:
        summary = run_cells(asked.plan, cells, results, launcher, board, keep_weights=asked.keep_weights)
    print(f"{summary.finished} cells finished now, {summary.skipped} before, {len(summary.failed)} failed")
    if summary.failed:
        first, reason = next(iter(summary.failed.items()))
        raise QuatsphereError(f"{len(summary.failed)} cells failed, first {first} ({reason}); run again to retry")
    return 0


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does: the cells at work save and stop."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def default_jobs(threads: int | None) -> int:
    """One cell per GPU; without GPUs as many as the cores can feed."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return torch.cuda.device_count() or (1 if threads is None else max(1, cores // threads))


def make_launcher(name: str, jobs: int) -> Any:
    """Who trains the cells."""
    if name == "ray":
        from quatsphere.study.launch_ray import RayLauncher

        return RayLauncher()
    import torch

    from quatsphere.study.launch import LocalLauncher

    return LocalLauncher(jobs, torch.cuda.device_count())
