"""Output of a run, on a terminal and in a log file."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from quatsphere.cli import console
from quatsphere.cli.console import Forecast, LiveReporter, Ticker, counted, evaluation_table
from quatsphere.train.reporting import Progress

FACTS: dict[str, Any] = {
    "model": "qsv", "parameters": 1234567, "data": "digits", "fingerprint": "f" * 64, "device": "cpu", "threads": 1,
    "images": {"train": 12345, "val": 2, "test": 3}, "backend": "factored", "epochs": 2, "steps": 6, "run": "runs/[x]",
}  # fmt: skip
RECORD = {
    "epoch": 1, "train": {"loss": 2.0, "accuracy": 0.25}, "val_accuracy": 0.5, "best_val_accuracy": 0.5,
    "images_per_second": 99.6,
}  # fmt: skip


def watch(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> str:
    stream = io.StringIO()

    def make(**options: Any) -> Console:
        return Console(file=stream, force_terminal=terminal, width=100, soft_wrap=options.get("soft_wrap", False))

    monkeypatch.setattr(console, "Console", make)
    reporter = LiveReporter()
    reporter.start(FACTS)
    progress = Progress(step=3, step_in_epoch=3)
    progress.add({"loss": 20.0, "accuracy": 2.5, "images": 10.0})
    reporter.step(progress, 3, 2, 100.0)
    reporter.note("something [to] know")
    reporter.epoch(RECORD)
    reporter.close()
    return stream.getvalue()


def test_a_log_file_has_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = watch(monkeypatch, terminal=False).splitlines()
    assert lines == [
        "qsv with 1,234,567 parameters on digits (12,345 train, 2 val, 3 test images; fingerprint ffffffffffff)",
        "cpu, 1 thread, kernel factored; run folder runs/[x]",
        "quatsphere: note: something [to] know",
        "epoch   1  loss 2.0000  train 0.2500  val 0.5000  best 0.5000  100 img/s",
    ]


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    text = watch(monkeypatch, terminal=True)
    for word in ("epoch 1/2", "50%", "loss 2.000", "acc 0.250", "100 img/s", "eta"):
        assert word in text


def test_a_log_file_gets_a_line_every_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "QUIET_SECONDS", 0.0)
    assert "epoch 1/2, step 3/3  loss 2.000  acc 0.250  100 img/s" in watch(monkeypatch, terminal=False).splitlines()


def steps_of(count: int, seconds: float, start: int = 0) -> list[Progress]:
    """Progress after each of `count` steps; the first one takes a minute."""
    return [Progress(step=start + i + 1, step_in_epoch=i + 1, seconds=60 + i * seconds) for i in range(count)]


@pytest.mark.parametrize(
    ("seconds", "start", "line"),
    [
        (0.1, 0, "about 10 s for 1 epoch"),
        (6.0, 0, "about 10 min for 1 epoch"),
        (90.0, 0, "about 2.5 h for 1 epoch"),
        (3600.0, 0, "about 4.2 days for 1 epoch"),
        (0.1, 50, "about 4 s for 1 epoch left"),
    ],
)
def test_a_forecast_is_one_line_from_the_first_steps(seconds: float, start: int, line: str) -> None:
    forecast = Forecast(100, {"train": 1000, "val": 0})
    said = [forecast.line(progress, 100) for progress in steps_of(20, seconds, start)]
    assert [text for text in said if text is not None] == [line]
    assert said.index(line) == (5 if seconds < 2 else 2 if seconds < 10 else 1)


def test_training_prints_its_estimated_duration(tiny: list[str], command: Any) -> None:
    ended = command("train", *tiny, "--run-dir=run", "--train.epochs=5")
    assert ended.code == 0, ended.err
    lines = [line for line in ended.err.splitlines() if line.startswith("about ")]
    assert len(lines) == 1
    assert re.fullmatch(r"about \d+ (s|min) for 5 epochs", lines[0])


def test_a_closed_terminal_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (BrokenPipeError(), OSError(5, "Input/output error")):
        for terminal in (True, False):

            class Gone(io.StringIO):
                def write(self, text: str, error: OSError = error) -> int:
                    raise error

                def isatty(self, terminal: bool = terminal) -> bool:
                    return terminal

            monkeypatch.setattr("sys.stderr", Gone())
            reporter = LiveReporter()
            reporter.start(FACTS)
            reporter.epoch(RECORD)
            reporter.note("x")
            reporter.close()


@pytest.mark.slow
def test_a_real_pipe_that_closes_does_not_end_the_run(tiny: list[str], tmp_path: Path) -> None:
    code = "from quatsphere.cli import main; raise SystemExit(main())"
    words = [sys.executable, "-c", code, "train", *tiny, "--run-dir", "run", "--json"]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=alone)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stderr.close()
    result = json.loads(process.stdout.read())
    assert process.wait() == 0
    assert result["steps"] == 2


def test_a_ticker_prints_nothing_in_a_log_file(capsys: pytest.CaptureFixture[str]) -> None:
    with Ticker("reading") as ticker:
        ticker(1, 2)
    assert capsys.readouterr().err == ""


def test_tables() -> None:
    stream = io.StringIO()
    report = {"per_class": {"[red]a": 0.5, "b": None}, "confusion": [[1, 1], [0, 0]], "accuracy": 0.5, "images": 2}
    Console(file=stream, width=60).print(evaluation_table(report, "title"))
    text = stream.getvalue()
    assert "[red]a" in text
    assert "0.5000" in text
    assert " - " in text
    assert counted(1, "thread") == "1 thread"
    assert counted(2000, "thread") == "2,000 threads"
    assert json.dumps(report)
