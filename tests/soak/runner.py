"""Command of the soak: run promises, each in a separate process, and print `promise | tried | survived`.

Finished rows are stored in a state file; the next start at the same commit skips them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from soak import files, fuzzing, interruptions, numerics  # noqa: F401 - add their promises
from soak.promises import PROMISES, ROOT, OutOfTime, Promise, Trials, patience

TABLE = "<!-- soak -->", "<!-- /soak -->"
"""Marks around the generated part of a page."""
GRACE_SECONDS = 60
Row = dict[str, Any]


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; 0 if every row is full and every attempt survived."""
    options = _parse(words)
    names = options.only or list(PROMISES)
    if options.inside:
        return run_inside(PROMISES[names[0]], options.scale, Path(options.inside))
    if options.list:
        print("\n".join(f"{name:24} {PROMISES[name].wanted:6}  {PROMISES[name].text}" for name in names))
        return 0
    state, commit = Path(options.state), current_commit()
    rows, lock = read_rows(state), threading.Lock()
    due = [name for name in names if not is_finished(rows.get(name), PROMISES[name], commit, options.scale)]
    end = time.monotonic() + 60 * options.minutes

    def run(name: str) -> None:
        left = end - time.monotonic()
        if left > 0:
            print(f"{name} ...", file=sys.stderr, flush=True)
            row = {"commit": commit, **run_row(PROMISES[name], options.scale, left)}
            with lock:
                rows[name] = row
                store_rows(state, rows)
            print(as_table({name: rows[name]}).partition("\n")[2], file=sys.stderr, flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run, sorted(due, key=lambda name: -PROMISES[name].seconds)))
    print(as_table({name: rows[name] for name in names if name in rows}))
    if options.page:
        write_page(Path(options.page), rows)
    return 0 if all(is_kept(rows.get(name), PROMISES[name], options.scale) for name in names) else 1


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.soak", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(PROMISES), metavar="NAME", help="run these promises")
    parser.add_argument("--list", action="store_true", help="print the promises and their counts")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the attempts, e.g. 0.01 for a quick look")
    parser.add_argument("--jobs", type=int, default=2, help="promises at a time (2)")
    parser.add_argument("--minutes", type=float, default=60, help="time after which no attempt is made (60)")
    parser.add_argument("--state", default="soak.json", help="file of the finished rows (soak.json)")
    parser.add_argument("--page", help="page whose generated table is replaced")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    return parser.parse_args(words)


# One row.


def attempts(promise: Promise, scale: float) -> int:
    """Number of attempts at a scale, at least one."""
    return max(1, math.ceil(promise.wanted * scale))


def run_row(promise: Promise, scale: float, seconds_left: float) -> Row:
    """Run a promise in a new process and return its row; a crash of that process is a failed attempt."""
    seconds = max(1, round(min(promise.limit * patience(), seconds_left)))
    start = time.monotonic()
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="soak-", dir=shared, ignore_cleanup_errors=True) as folder:
        answer = Path(folder) / "answer.json"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("QUATSPHERE_")}
        environment |= {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": f"{folder}/cache", "SOAK_SECONDS": str(seconds)}
        environment |= {name: os.environ[name] for name in ("QUATSPHERE_DATA",) if name in os.environ}
        command = [sys.executable, "-m", "tests.soak", "--only", promise.name, "--scale", str(scale)]
        with open(Path(folder) / "log", "w+") as log:
            process = subprocess.Popen(
                [*command, "--inside", str(answer)],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                process.wait(seconds + GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
            end = log.read()
        row = json.loads(answer.read_text()) if answer.exists() else _crashed(process.returncode, end)
    facts = {"wanted": promise.wanted, "seconds": round(time.monotonic() - start), "load": round(os.getloadavg()[0], 1)}
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {**row, **facts, "date": date, "machine": machine()}


def _crashed(code: int | None, log: str) -> Row:
    failure = f"the process of the promise ended with {code}: {log}"
    return {"tried": 1, "survived": 0, "why": "", "cpu": 0, "failures": [failure]}


def run_inside(promise: Promise, scale: float, answer: Path) -> int:
    """Run a promise in this process and write its counts, also when the time is over."""

    def stop(*_: object) -> None:
        raise OutOfTime

    (answer.parent / "work").mkdir(exist_ok=True)
    trials = Trials(attempts(promise, scale), answer.parent / "work", scale >= 1)
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(int(os.environ.get("SOAK_SECONDS", "600")))
    why = ""
    try:
        promise.check(trials)
    except OutOfTime:
        why = "the time was over"
    except pytest.skip.Exception as skipped:
        why = str(skipped)
    except Exception as error:
        trials.add(1, 0, f"{type(error).__name__}: {error}")
    signal.alarm(0)
    row = {"tried": trials.tried, "survived": trials.survived, "failures": trials.failures, "why": why}
    row["cpu"] = round(sum(os.times()[:4]))
    answer.with_suffix(".tmp").write_text(json.dumps(row))
    answer.with_suffix(".tmp").replace(answer)
    return 0


# State, table and page.


def read_rows(state: Path) -> dict[str, Row]:
    """Rows of earlier starts; of any commit, so that the table can show them."""
    return json.loads(state.read_text())["rows"] if state.is_file() else {}


def store_rows(state: Path, rows: dict[str, Row]) -> None:
    """Write the state file atomically."""
    ordered = {name: rows[name] for name in PROMISES if name in rows}
    temporary = state.with_name(f".{state.name}.tmp")
    temporary.write_text(json.dumps({"rows": ordered}, indent=1) + "\n")
    temporary.replace(state)


def is_finished(row: Row | None, promise: Promise, commit: str, scale: float) -> bool:
    """True if a row of this commit has all its attempts; a failed attempt does not make it run again."""
    return row is not None and row["commit"] == commit and row["tried"] >= attempts(promise, scale)


def is_kept(row: Row | None, promise: Promise, scale: float) -> bool:
    """True if all attempts were made and survived."""
    return row is not None and row["survived"] == row["tried"] >= attempts(promise, scale)


def current_commit() -> str:
    """Commit of the tree, with `+changes` if the package differs."""
    from quatsphere.train.provenance import commit

    return commit() or "unknown"


def machine() -> str:
    """Kind of machine: processor, cores, system, versions."""
    import torch

    from quatsphere.train.provenance import processor

    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{processor()}, {os.cpu_count()} cores, {platform.system()}, {versions}"


def tried_text(row: Row) -> str:
    """`200`, or `120 of 200` for a row that is short."""
    return f"{row['tried']:,}" if row["tried"] >= row["wanted"] else f"{row['tried']:,} of {row['wanted']:,}"


def as_table(rows: dict[str, Row]) -> str:
    """Return the table as text, with the reasons of failed and missing attempts below it."""
    width = max(map(len, ["promise", *rows]))
    lines = [f"{'promise':{width}} | tried | survived"]
    lines += [f"{name:{width}} | {tried_text(row)} | {row['survived']:,}" for name, row in rows.items()]
    return "\n".join([*lines, *(f"{name}: {reason}" for name, reason in reasons(rows))])


def reasons(rows: dict[str, Row]) -> list[tuple[str, str]]:
    """(name, reason) of every row that is short or has failures."""
    found = [(name, reason) for name, row in rows.items() for reason in row["failures"]]
    short = {name: row for name, row in rows.items() if row["tried"] < row["wanted"]}
    return found + [
        (name, f"{tried_text(row)} attempts; {row['why'] or 'a part was left out'}") for name, row in short.items()
    ]


def write_page(page: Path, rows: dict[str, Row]) -> None:
    """Replace the text between the marks of a page by the table."""
    head, _, rest = page.read_text(encoding="utf-8").partition(TABLE[0])
    tail = rest.partition(TABLE[1])[2]
    shown = {name: rows[name] for name in PROMISES if name in rows}
    missing = [name for name in PROMISES if name not in rows]
    lines = [f"Run on: {kind}." for kind in dict.fromkeys(row["machine"] for row in shown.values())]
    lines += ["", "| promise | tried | survived | processor seconds | commit | date |", "|---|---|---|---|---|---|"]
    for name, row in shown.items():
        commit = row["commit"][:9] + row["commit"][40:]
        cells = [PROMISES[name].text, tried_text(row), f"{row['survived']:,}", row["cpu"], commit, row["date"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines.append("")
    for name, reason in reasons(shown):
        lines.append(f"- {PROMISES[name].text}: {' '.join(reason.split())[:300]}")
    lines += [f"- {PROMISES[name].text}: not run." for name in missing]
    page.write_text(f"{head}{TABLE[0]}\n" + "\n".join(lines).strip() + f"\n{TABLE[1]}{tail}", encoding="utf-8")
