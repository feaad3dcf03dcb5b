"""Tables of strings, their Markdown, LaTeX and CSV forms, and the text of numbers and verdicts in them."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quatsphere.study.statistics import Estimate

NONE = "-"
"""Text of a missing value."""
LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "->": r"$\to$", "|": r"$|$"}


@dataclass(frozen=True)
class Table:
    """Rows of strings under column headings; the first column names the row."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    name: str = ""
    """Name for `--table` and LaTeX's label."""
    text: str = ""
    """Explanation below it on a page."""
    marked: frozenset[int] = frozenset()
    """Rows that a page highlights."""
    folded: bool = False
    """True if a page shows its title alone at first."""


def markdown(table: Table) -> str:
    """GitHub table under its title, if it has one."""
    heading = [f"### {table.title}", ""] if table.title else []
    lines = (table.columns, ["---"] * len(table.columns), *table.rows)
    return "\n".join([*heading, *map(_markdown_row, lines)]) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def latex(table: Table) -> str:
    """Booktabs table."""
    alignment = "l" + "c" * (len(table.columns) - 1)
    body = "\n".join([_latex_row(table.columns), r"\midrule", *(_latex_row(row) for row in table.rows)])
    caption = _escape(table.title)
    return (
        f"\\begin{{table}}[t]\n\\centering\n\\begin{{tabular}}{{{alignment}}}\n\\toprule\n{body}\n\\bottomrule\n"
        f"\\end{{tabular}}\n\\caption{{{caption}}}\n\\label{{tab:{table.name}}}\n\\end{{table}}\n"
    )


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(_escape(cell) for cell in cells) + r" \\"


def _escape(text: str) -> str:
    for plain, escaped in LATEX.items():
        text = text.replace(plain, escaped)
    return text


def comma_separated(table: Table) -> str:
    """RFC 4180."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([table.columns, *table.rows])
    return buffer.getvalue()


TABLE_FORMATS: dict[str, Callable[[Table], str]] = {"markdown": markdown, "latex": latex, "csv": comma_separated}


def format_value(value: Any) -> str:
    """Text of a number with four digits, of a range (two numbers) or of a list."""
    if value is None:
        return NONE
    if isinstance(value, tuple | list):
        return (" to " if len(value) == 2 else ", ").join(map(format_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_estimate(found: Estimate | None, factor: float = 1.0) -> str:
    """`-3.10 [-3.60, -2.50]`: a multiple of the value and of its interval."""
    if found is None:
        return NONE
    interval = found.interval()
    ends = f" [{interval[0] * factor:+.2f}, {interval[1] * factor:+.2f}]" if interval else ""
    return f"{found.value * factor:+.2f}{ends}"


def format_ours(claim: Mapping[str, Any]) -> str:
    """Our value of a decided claim with its interval."""
    text, interval = format_value(claim["ours"]), claim["interval"]
    return f"{text} [{format_value(interval[0])}, {format_value(interval[1])}]" if interval else text


def format_verdict(claim: Mapping[str, Any]) -> str:
    """Verdict of a decided claim with its reason or remark in brackets."""
    return f"{claim['verdict']} ({claim['why']})" if claim["why"] else str(claim["verdict"])


def claims_table(title: str, claims: Sequence[Mapping[str, Any]]) -> Table:
    """Decided claims with their verdicts."""
    rows = [(c["id"], format_value(c["paper"]), format_ours(c), str(c["n"]), format_verdict(c)) for c in claims]
    return Table(("claim", "paper", "ours", "n", "verdict"), rows, title)


def status_table(title: str, status: Mapping[str, Any]) -> Table:
    """Number of cells of every plan by state, from `Results.status`."""
    columns = ("cells", "finished", "diverged", "begun", "missing")
    rows = [(plan, *(str(len(cells[key])) for key in columns)) for plan, cells in status["plans"].items()]
    return Table(("plan", *columns), rows, title)
