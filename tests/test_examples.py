"""Every file in examples/ runs, and the benchmark of point clouds on a few of them."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()
    assert len(path.read_text().splitlines()) <= 30


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path) -> None:
    """Code cells run in order, in a shortened training; no output is stored."""
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for cell in cells:
        exec("".join(cell["source"]).replace("epochs=60", "epochs=2"), namespace)


def test_benchmark_of_point_clouds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every model trains; those with local frames are invariant to rotation."""
    program = ROOT / "benchmarks" / "point_clouds.py"
    monkeypatch.setattr(sys, "argv", [str(program), "--seeds", "0", "--epochs", "1", "--clouds", "75"])
    runpy.run_path(str(program), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(lines) == 6
    for line in lines[3:]:
        aligned, rotated = line.split(" | ")[2:]
        assert aligned == rotated.removesuffix(" |"), line
