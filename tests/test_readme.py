"""The README keeps its word: its Python runs, its tree exists, its commands are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quatsphere.cli.main import VERBS
from quatsphere.config.presets import PRESETS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]


def tree_paths() -> list[str]:
    """Paths of the annotated tree: two spaces of indentation per level, folders end with a slash."""
    tree = next(code for _, code in BLOCKS if code.startswith("src/quatsphere/"))
    paths: list[str] = []
    above: list[str] = []
    for line in tree.splitlines():
        name = line.split()[0]
        if set(name) <= {".", "…"}:
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        above = [*above[:depth], name]
        paths.append("".join(above))
    return paths


def test_the_example_is_short() -> None:
    assert len([line for line in PYTHON[0].splitlines() if line.strip()]) <= 12


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(PYTHON[number], f"README.md, example {number + 1}", "exec"), {"__name__": "__main__"})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", tree_paths())
def test_the_tree_exists(path: str) -> None:
    assert list(ROOT.glob(path)), f"{path} is in the README's tree but not in the repository"


def test_the_tree_leaves_no_room_out() -> None:
    rooms = {f"src/quatsphere/{p.name}/" for p in (ROOT / "src/quatsphere").iterdir() if (p / "__init__.py").is_file()}
    assert rooms <= set(tree_paths())


def test_links_and_pictures_exist() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_commands_exist() -> None:
    """Every `make` target, `quatsphere` verb, preset and benchmark that the README names."""
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`)make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert set(re.findall(r"`quatsphere (\w+)", README)) <= set(VERBS)
    assert set(re.findall(r"--preset ([\w-]+)", README)) <= set(PRESETS)


def test_results_are_those_of_the_page() -> None:
    """The verdicts shown are the first ones of docs/results.md, word for word."""
    shown = README.split("<!-- results:begin -->")[1].split("<!-- results:end -->")[0].strip()
    assert shown
    assert shown in (ROOT / "docs" / "results.md").read_text()


def test_results_begin_with_what_they_are_worth() -> None:
    """Length, accuracy and floor before any verdict; of runs this short neither `holds` nor `fails`."""
    first, *rest = README.split("<!-- results:begin -->")[1].split("<!-- results:end -->")[0].strip().splitlines()
    for words in ("40,000 images", "41.6 %", "38.8 %", "No accuracy of the paper has been reproduced yet"):
        assert words in first
    verdicts = [line for line in rest if line.startswith("- ")]
    assert verdicts
    assert not any(re.match(r"- \*\*(holds|fails)", line) for line in verdicts)


def test_speed_is_that_of_the_page() -> None:
    """The fused kernel stands beside the fused dot product over the same neighbours, with the figures of the page."""
    page = (ROOT / "docs" / "performance.md").read_text()
    ours, other = (
        re.search(rf"{name}.*\n\| `numba_cpu` \| ([\d.]+)", page) for name in ("`factored` \\|", "dot-product")
    )
    assert ours
    assert other
    assert f"`numba_cpu`, fused | {ours[1]} |" in README
    assert f"the same 16 neighbours: `numba_cpu`, fused | {other[1]} |" in README
