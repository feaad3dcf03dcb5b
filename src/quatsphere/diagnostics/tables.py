"""Tables of a diagnosis, with the paper's values beside ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

Diagnosed = dict[str, Any]


def print_diagnosis(found: Diagnosed, console: Console) -> None:
    """Print every table that applies, the remarks, and the sections that do not apply."""
    head = (
        f"{found['model']} on {found['data']}, step {found['step']}, {found['images']} {found['split']} images traced"
    )
    console.print(head, highlight=False, markup=False)
    for table in diagnosis_tables(found):
        console.print(table)
    for line in (*remark_lines(found), *absent_lines(found)):
        console.print(line, highlight=False, markup=False)
    if found["paper"]:
        console.print("paper: QSV on CIFAR-10 at full size, where it reports a value", highlight=False)


def diagnosis_tables(found: Diagnosed) -> list[Table]:
    """Return every table that applies."""
    tables = [make(found) for section, make in DIAGNOSIS_TABLES.items() if has_section(found, section)]
    return [table for table in tables if table.rows]


def has_section(found: Diagnosed, section: str) -> bool:
    """Return whether a section was computed and applies."""
    return section in found and "absent" not in found[section]


def absent_lines(found: Diagnosed) -> list[str]:
    """Return one line per reason, with the sections that do not apply."""
    reasons: dict[str, list[str]] = {}
    for name, section in found.items():
        if isinstance(section, dict) and "absent" in section:
            reasons.setdefault(section["absent"], []).append(name)
    return [f"does not apply ({why}): {', '.join(names)}" for why, names in reasons.items()]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(columns[0])
    for column in columns[1:]:
        table.add_column(column, justify="right")
    return table


def format_number(value: float | None, form: str = ".3f") -> str:
    """Format a number; a dash for None."""
    return "-" if value is None else format(value, form)


def format_range(of: dict[str, float] | None) -> str:
    """Format a mean with its 5 % and 95 % quantiles."""
    return "-" if of is None else f"{of['mean']:.2f} ({of['q05']:.2f}-{of['q95']:.2f})"


def format_degrees(radians: float | None) -> str:
    """Format an angle given in radians."""
    return "-" if radians is None else f"{math.degrees(radians):.1f}"


def fingerprint_table(found: Sequence[Diagnosed], title: str) -> Table:
    """Return the paper's diagnostics, our values by step or shell, and the verdicts."""
    table = _table(title, "diagnostic", "paper", "ours", "verdict")
    for row in found:
        table.add_row(row["name"], row["paper"], ", ".join(f"{value:.3g}" for value in row["ours"]), row["verdict"])
    return table


def _accuracy(found: Diagnosed) -> Table:
    """Accuracy on unaugmented training images and on held-out images; easiest and hardest classes."""
    section, paper = found["accuracy"], found["paper"]
    held, train = section["held_out"], section["train"]
    rows = [
        ("training, clean", f"{train['accuracy']:.4f}", f"{train['images']:,}", paper.get("accuracy.train")),
        (section["split"], f"{held['accuracy']:.4f}", f"{held['images']:,}", paper.get("accuracy.held_out")),
        ("generalisation gap", f"{section['gap']:+.4f}", "", paper.get("accuracy.gap")),
    ]
    ranked = sorted(((a, name) for name, a in held["per_class"].items() if a is not None), reverse=True)
    for title, few in (("easiest", ranked[:3]), ("hardest", ranked[-3:])):
        listed = ", ".join(f"{escape(name)} {a:.2f}" for a, name in few)
        reported = [part for part in paper.get("accuracy.per_class", "").split("; ") if title in part]
        rows.append((f"{title}: {listed}", "", "", "".join(reported)))
    return _with_paper(found, _table("accuracy", "images", "accuracy", "number"), rows)


def _with_paper(found: Diagnosed, table: Table, rows: Sequence[Sequence[str | None]]) -> Table:
    """Add rows whose last cell is the paper's value; the column is left out where the data are not the paper's."""
    if found["paper"]:
        table.add_column("paper", justify="right")
    for row in rows:
        table.add_row(*(row if found["paper"] else row[:-1]))
    return table


def _by_step(found: Diagnosed) -> Table:
    """Routing, spread and β of every application of the kernel."""
    columns: list[tuple[str, str, Sequence[float]]] = [
        ("entropy", "routing.entropy", found["routing"]["entropy"]),
        ("peak", "routing.peak", found["routing"]["peak"]),
    ]
    if has_section(found, "spread"):
        columns += [
            ("angle, rad", "spread.orientation", found["spread"]["orientation"]),
            ("score sd", "spread.score", found["spread"]["score"]),
            ("beta", "beta.mean", found["beta"]["mean"]),
        ]
    table = _table(
        "by step: entropy / log k, peak x k, angle to neighbours", "step", "shells", *(c[0] for c in columns)
    )
    for index, step in enumerate(found["steps"]):
        cells = [format_number(values[index]) for _, _, values in columns]
        table.add_row(step["name"], f"{step['source']} > {step['target']}", *cells)
    if found["paper"]:
        table.add_section()
        table.add_row("paper", "", *(found["paper"][key] for _, key, _ in columns))
    return table


def _field_by_shell(found: Diagnosed) -> Table:
    """Base quaternions and perturbation of every shell."""
    columns: list[tuple[str, Callable[[int], str]]] = []
    if has_section(found, "bound"):
        bounds = found["bound"]["shells"]
        columns += [
            ("bound", lambda i: format_number(bounds[i]["value"])),
            ("|omega| / bound (5-95 %)", lambda i: format_range(bounds[i]["used"])),
        ]
    columns += [("head similarity", lambda i: format_number(found["heads"]["similarity"][i]))]
    if has_section(found, "drift"):
        columns += [("drift, rad", lambda i: format_number(found["drift"]["angle"][i]))]
    motion = found["training"]["field_motion"][-1] if has_section(found, "training") else None
    if motion:
        columns += [("last epoch, rad", lambda i: format_number(motion[i]))]
    return _rows("field by shell", columns, len(found["shells"]))


def _vertices_by_shell(found: Diagnosed) -> Table:
    """Spacing and displacement of the vertices of every shell."""
    shells = found["coverage"]["shells"]
    sphere = found["layout"] == "sphere"
    unit: Callable[[float | None], str] = format_degrees if sphere else format_number
    columns: list[tuple[str, Callable[[int], str]]] = [
        ("V", lambda i: str(found["shells"][i]["vertices"])),
        ("nearest, deg" if sphere else "nearest", lambda i: unit(shells[i]["nearest"]["mean"])),
        ("at start", lambda i: unit((shells[i]["start"] or {"nearest": {"mean": None}})["nearest"]["mean"])),
    ]
    if sphere:
        columns += [
            ("pole density", lambda i: format_number(shells[i]["pole_density"], ".2f")),
            ("energy", lambda i: format_number(shells[i]["energy"])),
            ("at start", lambda i: format_number((shells[i]["start"] or {}).get("energy"))),
            ("moved, deg", lambda i: format_degrees((shells[i]["displacement"] or {}).get("mean"))),
        ]
    table = _rows("vertices by shell", columns, len(shells))
    if sphere and found["paper"]:
        table.add_section()
        table.add_row("paper", *[""] * (len(columns) - 1), found["paper"]["coverage.displacement"])
    return table


def _rows(title: str, columns: Sequence[tuple[str, Callable[[int], str]]], shells: int) -> Table:
    table = _table(title, "shell", *(heading for heading, _ in columns))
    for index in range(shells):
        table.add_row(str(index + 1), *(cell(index) for _, cell in columns))
    return table


def _over_training(found: Diagnosed) -> Table:
    """First, last, smallest and largest value of the logged measures, mean over steps or shells."""
    rows = []
    for title, name, reported in (
        ("entropy / log k", "routing_entropy", "routing.entropy"),
        ("peak x k", "routing_peak", "routing.peak"),
        ("beta", "beta", "beta.training"),
        ("bound", "bound", "bound.value"),
        ("field motion, rad/epoch", "field_motion", ""),
    ):
        means = [sum(row) / len(row) for row in found["training"][name] if row]
        if means:
            values = map(format_number, (means[0], means[-1], min(means), max(means)))
            rows.append((title, *values, found["paper"].get(reported, "")))
    table = _table("over training", "mean over steps or shells", "first", "last", "min", "max")
    return _with_paper(found, table, rows)


def _parts(found: Diagnosed) -> Table:
    """Parameters and forward time by part."""
    section = found["parts"]
    counts, time = section["parameters"], section["time_share"]
    note = section.get("note")
    title = f"parts (time {note})" if note else "parts"
    table = _table(title, "part", "parameters", "share", "time of a forward pass")
    for name in (*counts, *(name for name in time if name not in counts)):
        shares = section["parameter_share"].get(name), time.get(name)
        table.add_row(name, format_number(counts.get(name), ","), *(format_number(share, ".1%") for share in shares))
    table.add_section()
    table.add_row("all", f"{section['total']:,}", "", f"{section['images_per_second']:.0f} images/s")
    return table


def _without_transport(found: Diagnosed) -> Table:
    """Accuracy and likelihood without the transport of each head and step."""
    section = found["transport"]
    table = _table("transport off at test time", "where", "accuracy", "nll")
    rows = {f"head {i}": effect for i, effect in enumerate(section["heads"], start=1)}
    rows |= {step["name"]: effect for step, effect in zip(found["steps"], section["steps"], strict=True)}
    table.add_row("nowhere", f"{section['accuracy']:.3f}", f"{section['nll']:.3f}")
    for name, effect in {**rows, "everywhere": section["all"]}.items():
        table.add_row(name, f"{effect['accuracy']:+.3f}", f"{effect['nll']:+.3f}")
    return table


DIAGNOSIS_TABLES: dict[str, Callable[[Diagnosed], Table]] = {
    "accuracy": _accuracy,
    "routing": _by_step,
    "heads": _field_by_shell,
    "coverage": _vertices_by_shell,
    "training": _over_training,
    "parts": _parts,
    "transport": _without_transport,
}
"""Section that a table needs -> table."""


def remark_lines(found: Diagnosed) -> list[str]:
    """Return the results that fit in one line each."""
    lines = []
    if has_section(found, "graphs"):
        least = min(min(row.values()) for row in found["graphs"]["agreement"])
        beside = " (paper: all)" if found["paper"] else ""
        lines.append(f"Euclidean, geodesic and cosine neighbours are the same for {least:.2%} of targets{beside}")
    if has_section(found, "holonomy"):
        holonomy = found["holonomy"]
        lines.append(
            f"holonomy of {holonomy['triangles']} triangles ({holonomy['step']}): at most {holonomy['angle']:.1e} rad; "
            f"transported around them by the kernel, features change by {holonomy['carried']:.1e}"
        )
    if has_section(found, "receptive"):
        share = found["receptive"]["effective_share"]
        lines.append(
            f"predictions depend effectively on {share:.0%} of the pixels "
            f"(gradient of the predicted logit, {found['images']} images)"
        )
    return lines
