"""Promises: functions that try something many times and count how often it survived.

A promise takes its `Trials`, makes about `trials.count` attempts inside `with trials.one():`, and returns. The runner
calls each in a separate process.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
FAILURES_KEPT = 5


class OutOfTime(BaseException):
    """Raised by the runner's alarm; a BaseException, so that no attempt counts it as its own failure."""


@dataclass
class Batch:
    """Attempts that survive or fail together."""

    number: int = 1


@dataclass
class Trials:
    """Attempts of one promise: how many are wanted, how many were made, how many survived."""

    count: int
    """Number of attempts to make."""
    folder: Path
    """Empty folder for files."""
    full: bool = True
    """False if fewer attempts than promised are to be made."""
    tried: int = 0
    survived: int = 0
    failures: list[str] = field(default_factory=list)
    """Reasons of the first failures."""

    @contextlib.contextmanager
    def one(self, what: object = "") -> Iterator[None]:
        """Count the block as one attempt, which fails by any exception."""
        with self.several(what):
            yield

    @contextlib.contextmanager
    def several(self, what: object = "") -> Iterator[Batch]:
        """Count the block as `batch.number` attempts."""
        batch = Batch()
        try:
            yield batch
        except (Exception, pytest.fail.Exception) as error:
            self.add(batch.number, 0, f"{what}: {type(error).__name__}: {error}")
        else:
            self.add(batch.number, batch.number)

    def add(self, tried: int, survived: int, failure: str = "") -> None:
        """Add attempts that were counted elsewhere."""
        self.tried += tried
        self.survived += survived
        if survived < tried and len(self.failures) < FAILURES_KEPT:
            self.failures.append(failure[:2000])

    def tests(self, *words: str, each: int = 1) -> None:
        """Count tests of the suite, selected by words of pytest, as `each` attempts; skipped ones are not attempts.

        The suite's own options are left out: slow tests are included, and no shapes are checked, which doubles times.
        """
        report = self.folder / "tests.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=--benchmark-disable", "-p", "no:cacheprovider"]
        if not self.full:
            listed = subprocess.run([*command, "--collect-only", *words], cwd=ROOT, capture_output=True, text=True)
            ids = [line for line in listed.stdout.splitlines() if "::" in line]
            words = tuple(ids[:: math.ceil(len(ids) / max(1, self.count // each))])
        subprocess.run([*command, *words, f"--junitxml={report}"], cwd=ROOT, stdout=sys.stderr)
        for case in ElementTree.parse(report).iter("testcase"):
            if case.find("skipped") is None:
                bad = next((part for kind in ("failure", "error") if (part := case.find(kind)) is not None), None)
                reason = "" if bad is None else f"{case.get('name')}: {bad.get('message')}"
                self.add(each, each if bad is None else 0, reason)


@dataclass(frozen=True)
class Promise:
    """A promise and its number of attempts."""

    name: str
    text: str
    """The promise in plain words."""
    wanted: int
    seconds: float
    """Processor time of all attempts, measured or estimated from a part; the longest are started first."""
    check: Callable[[Trials], None]

    @property
    def limit(self) -> float:
        """Limit of time in seconds; a promise that reaches it is short of attempts."""
        return 60 + 4 * self.seconds


PROMISES: dict[str, Promise] = {}


def promise(text: str, wanted: int, seconds: float = 60) -> Callable[[Callable[[Trials], None]], Any]:
    """Decorator that adds a function to the promises under its name."""

    def add(check: Callable[[Trials], None]) -> Callable[[Trials], None]:
        name = check.__name__.replace("_", "-")
        PROMISES[name] = Promise(name, text, wanted, seconds, check)
        return check

    return add


def patience() -> float:
    """Factor for limits of time: the number of processes that wait per core, at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer than `seconds`, times `patience`."""
    start, factor = time.monotonic(), patience()
    yield
    taken, limit = time.monotonic() - start, seconds * max(factor, patience())
    assert taken <= limit, f"took {taken:.2f} s, limit {limit:.2f} s"
