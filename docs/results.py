"""Regenerate the results pages, their figure and the README's table from results/: python docs/results.py."""

from __future__ import annotations

from pathlib import Path

from quatsphere.cli.main import main
from quatsphere.study.length_document import headline, statements_table
from quatsphere.study.results import Results

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- results:begin -->\n", "<!-- results:end -->"
README_ROWS = 5


def readme_table(results: Results) -> str:
    """Headline and the first statements of docs/results.md."""
    return f"{headline(results)}\n\n{statements_table(results.finished(), README_ROWS)}"


def update() -> None:
    """Write docs/results.md, docs/results-lite.md, the figure and the README's table."""
    for name, page in (("curve", "results.md"), ("lite", "results-lite.md")):
        main(["study", "document", "--results", str(ROOT / "results" / name), "-o", str(ROOT / "docs" / page)])
    readme = ROOT / "README.md"
    before, rest = readme.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    readme.write_text(
        before + BEGIN + readme_table(Results(ROOT / "results" / "curve")) + END + after, encoding="utf-8"
    )


if __name__ == "__main__":
    update()
