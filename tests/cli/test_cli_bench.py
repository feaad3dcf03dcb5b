"""quatsphere bench: output, files and errors, at sizes that take seconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quatsphere.bench import kernel, measure, timing

Command = Callable[..., Any]


@pytest.fixture
def one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the Hamilton block, whose candidates take milliseconds."""
    chosen = {name: make for name, make in kernel.candidates().items() if name.startswith("Hamilton")}
    monkeypatch.setattr(kernel, "candidates", lambda: chosen)
    monkeypatch.setattr(timing, "GEMM_SIZE", 64)


@pytest.mark.usefixtures("one_operator")
def test_results_are_printed_saved_and_compared(command: Command) -> None:
    words = ["bench", "kernel", "--batch", "1", "--rounds", "1", "--no-memory"]
    first = command(*words, "--json", "before.json")
    assert first.code == 0, first.err
    record = json.loads(Path("before.json").read_text())
    assert record["format"] == measure.BENCH_FORMAT
    assert set(record) == {"sha256", "format", "machine", "settings", "kernel"}
    assert {"processor", "threads", "versions", "backend", "backend_reason"} <= set(record["machine"])
    for row in record["kernel"]:
        assert row["variant"] in first.out
        assert 0 < row["best_ms"] <= row["median_ms"]
    second = command(*words, "--compare", "before.json")
    assert second.code == 0, second.err
    assert "before and after" in second.out
    assert second.out.count("kernel Hamilton: ") == len(record["kernel"])
    Path("before.json").write_text(Path("before.json").read_text().replace('"batch": 1', '"batch": 3', 1))
    third = command(*words, "--compare", "before.json")
    assert third.code == 4
    assert "cannot read before.json (sha256 differs)" in third.err


@pytest.mark.slow
def test_scaling_is_drawn(command: Command) -> None:
    words = ["--vertices", "320", "640", "--dim", "64", "--rounds", "1", "--threads", "1"]
    ended = command("bench", "scaling", *words, "--json", "s.json", "--picture", "s.svg")
    assert ended.code == 0, ended.err
    points = json.loads(Path("s.json").read_text())["scaling"]
    assert [point["vertices"] for point in points] == [320, 640]
    assert all(point["seconds"] > 0 and point["peak_mb"] >= 0 for point in points)
    assert "time ~ V^" in ended.out
    assert Path("s.svg").read_text().lstrip().startswith("<?xml")
    assert command("figures", "--bench", "s.json", "-o", "drawn").code == 0


def test_invalid_options_are_one_line_errors(fails: Callable[..., str]) -> None:
    fails(2, "invalid choice: 'speed'", "bench", "speed")
    fails(2, "--rounds must be a whole number >= 1: got '0'", "bench", "kernel", "--rounds", "0")
    fails(2, "no saved measurements in nowhere.json", "bench", "kernel", "--compare", "nowhere.json")
    fails(2, "no folder 'far' for far/a.json", "bench", "--json", "far/a.json")
    fails(2, "160 vertices or more.*got 50", "bench", "scaling", "--vertices", "1280", "50")
    fails(2, r"dim must equal 4 \* heads", "bench", "scaling", "--dim", "100")
    Path("other.json").write_text("[]")
    fails(4, "no JSON object", "bench", "kernel", "--compare", "other.json")
