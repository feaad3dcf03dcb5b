"""The README: its Python runs, its tree and commands exist, its figures and verdicts are those of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quatsphere.cli.main import VERBS
from quatsphere.config.presets import PRESETS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]


def section(name: str) -> str:
    return README.split(f"<!-- {name}:begin -->")[1].split(f"<!-- {name}:end -->")[0].strip()


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def tree_paths() -> list[str]:
    """Paths of the annotated tree: two spaces of indentation per level, folders end with a slash."""
    tree = next(code for _, code in BLOCKS if code.startswith("src/quatsphere/"))
    paths: list[str] = []
    above: list[str] = []
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        above = [*above[:depth], line.split()[0]]
        paths.append("".join(above))
    return paths


def test_at_most_200_lines() -> None:
    assert len(README.splitlines()) <= 200


def test_the_example_is_short() -> None:
    assert len([line for line in PYTHON[0].splitlines() if line.strip()]) <= 12


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.full((16, 16), 128, np.uint8)).save("digit.png")
    exec(compile(PYTHON[number], f"README.md, example {number + 1}", "exec"), {"__name__": "__main__"})
    assert {path.name for path in tmp_path.iterdir()} <= {"digit.png", "digits-run"}


@pytest.mark.parametrize("path", tree_paths())
def test_the_tree_exists(path: str) -> None:
    assert (ROOT / path).exists(), f"{path} is in the README's tree but not in the repository"


def test_the_tree_has_every_package() -> None:
    packages = {p.name for p in (ROOT / "src/quatsphere").iterdir() if (p / "__init__.py").is_file()}
    assert {f"src/quatsphere/{name}/" for name in packages} <= set(tree_paths())


def test_links_and_pictures_exist() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_commands_exist() -> None:
    """Every `make` target, `quatsphere` command and preset that the README names."""
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`)make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert set(re.findall(r"`quatsphere (\w+)", README)) == set(VERBS)
    assert set(re.findall(r"--preset ([\w-]+)", README)) <= set(PRESETS)


def test_results_are_those_of_the_results_page() -> None:
    """Every line of the table, and the headline with scale, accuracy and floor, is one of docs/results.md."""
    lines = [line for line in section("results").splitlines() if line]
    assert len(lines) == 1 + 2 + 5
    assert set(lines) <= set(page("results.md").splitlines()), "run: make results"


def test_results_begin_with_their_scale() -> None:
    """Length, parameters, seeds, accuracy and floor come before any verdict."""
    first = section("results").splitlines()[0]
    pattern = r"After [\d,]+ training images QSV with 43,111 parameters reaches [\d.]+ % .*\(\d seeds\); softmax"
    assert re.match(pattern, first)
    assert "No accuracy of the paper has been reproduced." in first
    assert re.search(r"\d+ of 190 planned runs are finished", first)


def test_speed_is_that_of_the_performance_page() -> None:
    """Best time and peak memory of the four rows, and the throughput of both models, as in docs/performance.md."""
    text = page("performance.md")
    rows = [line for line in section("bench").splitlines() if re.match(r"\| [^|]+ \| [\d.]+ \| [\d.]+ \|", line)]
    found = [tuple(cell.strip() for cell in row.strip("|").split("|")[1:]) for row in rows]
    names = (
        "per edge \\(`reference`\\)",
        "`factored`",
        "`factored`.*\n\\| `numba_cpu`",
        "dot-product.*\n\\| `numba_cpu`",
    )
    for name, (milliseconds, megabytes) in zip(names, found, strict=True):
        match = re.search(rf"{name} \| ([\d.]+) / [\d.]+ \| ([\d.]+) \|", text)
        assert match, name
        assert match.groups() == (milliseconds, megabytes), name
    for name in ("QSV 0.64M, fused", "attention 0.57M, fused"):
        throughput = re.search(rf"{name} \| [\d.]+ / [\d.]+ \| ([\d.]+) \|", text)
        assert throughput
        assert throughput[1] in section("bench")


def test_the_limits_are_stated() -> None:
    limits = README.split("## Status and limits")[1].split("\n## ")[0]
    for words in ("No accuracy of the paper has been reproduced", "No GPU has run", "slower than attention"):
        assert words in limits
