"""Tables as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

from quatsphere.study.tables import Table

LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "->": r"$\to$", "|": r"$|$"}


def markdown(table: Table) -> str:
    """A GitHub table under its title."""
    lines = [f"### {table.title}", "", _row(table.head), _row(["---"] * len(table.head))]
    return "\n".join([*lines, *(_row(row) for row in table.rows)]) + "\n"


def _row(cells: object) -> str:
    assert isinstance(cells, list | tuple)
    return "| " + " | ".join(str(cell).replace("|", r"\|") for cell in cells) + " |"


def latex(table: Table) -> str:
    """A booktabs table."""
    columns = "l" + "c" * (len(table.head) - 1)
    lines = [_latex_row(table.head), r"\midrule", *(_latex_row(row) for row in table.rows)]
    body = "\n".join(lines)
    caption = _escape(table.title)
    return (
        f"\\begin{{table}}[t]\n\\centering\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n{body}\n\\bottomrule\n"
        f"\\end{{tabular}}\n\\caption{{{caption}}}\n\\label{{tab:{table.name}}}\n\\end{{table}}\n"
    )


def _latex_row(cells: tuple[str, ...]) -> str:
    return " & ".join(_escape(cell) for cell in cells) + r" \\"


def _escape(text: str) -> str:
    for plain, written in LATEX.items():
        text = text.replace(plain, written)
    return text


def comma_separated(table: Table) -> str:
    """RFC 4180."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([table.head, *table.rows])
    return buffer.getvalue()


FORMATS: dict[str, Callable[[Table], str]] = {"markdown": markdown, "latex": latex, "csv": comma_separated}
