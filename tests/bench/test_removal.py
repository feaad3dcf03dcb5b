"""Benchmark by removal: its table of replacements follows the source."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_trick_is_found_in_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`remove` ends with an error if a text to replace is not in its file exactly once."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import removal

    whole = removal.remove("", tmp_path / "whole")
    for number, (trick, replacements) in enumerate(removal.TRICKS.items()):
        without = removal.remove(trick, tmp_path / str(number))
        for name, _, _ in replacements:
            assert (without / "quatsphere" / name).read_text() != (whole / "quatsphere" / name).read_text(), trick
