"""A diagnosis for people: tables with the paper's values beside."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

Found = dict[str, Any]


class Paper(dict[str, str]):
    """The paper's values; nothing where it has none."""

    def __missing__(self, key: str) -> str:
        return ""


def show(found: Found, console: Console) -> None:
    """Every table that applies, then what does not."""
    head = (
        f"{found['model']} on {found['data']}, step {found['step']}, {found['images']} {found['split']} images traced"
    )
    console.print(head, highlight=False, markup=False)
    for table in tables_of(found):
        console.print(table)
    for line in (*remarks(found), *absences(found)):
        console.print(line, highlight=False, markup=False)
    if found["paper"]:
        console.print("paper: QSV on CIFAR-10 at full size, where it reports a value", highlight=False)


def tables_of(found: Found) -> list[Table]:
    """Every table that applies."""
    makers = (accuracy, by_step, field_by_shell, vertices_by_shell, over_training, parts, without_transport)
    return [table for make in makers if (table := make(found)) is not None]


def has(found: Found, section: str) -> bool:
    """Whether a section was computed and applies."""
    return section in found and "absent" not in found[section]


def absences(found: Found) -> list[str]:
    """What does not apply, and why."""
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


def number(value: float | None, form: str = ".3f") -> str:
    """A number, or a dash."""
    return "-" if value is None else format(value, form)


def ranged(of: dict[str, float] | None, form: str = ".2f") -> str:
    """Mean with its 5 % and 95 % quantiles."""
    return "-" if of is None else f"{of['mean']:{form}} ({of['q05']:{form}}-{of['q95']:{form}})"


def degrees(radians: float | None) -> str:
    """An angle of vertices."""
    return "-" if radians is None else f"{math.degrees(radians):.1f}"


def fingerprint_table(found: Sequence[Found], title: str) -> Table:
    """The paper's diagnostics, ours by step or shell, and the verdicts."""
    table = _table(title, "diagnostic", "paper", "ours", "verdict")
    for mark in found:
        table.add_row(mark["name"], mark["paper"], ", ".join(f"{value:.3g}" for value in mark["ours"]), mark["verdict"])
    return table


def accuracy(found: Found) -> Table | None:
    """Clean training images against held-out ones, and the ends of the classes."""
    if not has(found, "accuracy"):
        return None
    section, paper = found["accuracy"], Paper(found["paper"])
    table = _table("accuracy", "images", "accuracy", "number", "paper")
    held = section["held_out"]
    train = section["train"]
    table.add_row("training, clean", f"{train['accuracy']:.4f}", f"{train['images']:,}", paper["accuracy.train"])
    table.add_row(section["split"], f"{held['accuracy']:.4f}", f"{held['images']:,}", paper["accuracy.held_out"])
    table.add_row("generalisation gap", f"{section['gap']:+.4f}", "", paper["accuracy.gap"])
    ranked = sorted(((a, name) for name, a in held["per_class"].items() if a is not None), reverse=True)
    for title, few in (("easiest", ranked[:3]), ("hardest", ranked[-3:])):
        told = ", ".join(f"{escape(name)} {a:.2f}" for a, name in few)
        said = [part for part in paper["accuracy.per_class"].split("; ") if title in part]
        table.add_row(f"{title}: {told}", "", "", "".join(said))
    return table


def by_step(found: Found) -> Table | None:
    """Routing, spread and β of every application of the kernel."""
    if not has(found, "routing"):
        return None
    columns: list[tuple[str, str, Sequence[float]]] = [
        ("entropy", "routing.entropy", found["routing"]["entropy"]),
        ("peak", "routing.peak", found["routing"]["peak"]),
    ]
    if has(found, "spread"):
        columns += [
            ("angle, rad", "spread.orientation", found["spread"]["orientation"]),
            ("score sd", "spread.score", found["spread"]["score"]),
            ("beta", "beta.mean", found["beta"]["mean"]),
        ]
    table = _table(
        "by step: entropy / log k, peak x k, angle to neighbours", "step", "shells", *(c[0] for c in columns)
    )
    for index, step in enumerate(found["steps"]):
        cells = [number(values[index]) for _, _, values in columns]
        table.add_row(step["name"], f"{step['source']} > {step['target']}", *cells)
    if found["paper"]:
        table.add_section()
        table.add_row("paper", "", *(found["paper"][key] for _, key, _ in columns))
    return table


def field_by_shell(found: Found) -> Table | None:
    """Base quaternions and perturbation of every shell."""
    if not has(found, "heads"):
        return None
    columns: list[tuple[str, Callable[[int], str]]] = []
    if has(found, "bound"):
        bounds = found["bound"]["shells"]
        columns += [
            ("bound", lambda i: number(bounds[i]["value"])),
            ("|omega| / bound (5-95 %)", lambda i: ranged(bounds[i]["used"])),
        ]
    columns += [("heads alike", lambda i: number(found["heads"]["similarity"][i]))]
    if has(found, "drift"):
        columns += [("drift, rad", lambda i: number(found["drift"]["angle"][i]))]
    motion = found["training"]["field_motion"][-1] if has(found, "training") else None
    if motion:
        columns += [("last epoch, rad", lambda i: number(motion[i]))]
    return _rows("field by shell", columns, len(found["shells"]))


def vertices_by_shell(found: Found) -> Table | None:
    """How vertices lie on every shell, and how far they moved."""
    if not has(found, "coverage"):
        return None
    shells = found["coverage"]["shells"]
    sphere = found["layout"] == "sphere"
    unit: Callable[[float | None], str] = degrees if sphere else number
    columns: list[tuple[str, Callable[[int], str]]] = [
        ("V", lambda i: str(found["shells"][i]["vertices"])),
        ("nearest, deg" if sphere else "nearest", lambda i: unit(shells[i]["nearest"]["mean"])),
        ("at start", lambda i: unit((shells[i]["start"] or {"nearest": {"mean": None}})["nearest"]["mean"])),
    ]
    if sphere:
        columns += [
            ("pole density", lambda i: number(shells[i]["pole_density"], ".2f")),
            ("energy", lambda i: number(shells[i]["energy"])),
            ("at start", lambda i: number((shells[i]["start"] or {}).get("energy"))),
            ("moved, deg", lambda i: degrees((shells[i]["displacement"] or {}).get("mean"))),
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


def over_training(found: Found) -> Table | None:
    """First and last epoch of what is logged, mean over steps or shells."""
    if not has(found, "training"):
        return None
    training, paper = found["training"], Paper(found["paper"])
    table = _table("over training", "mean over steps or shells", "first", "last", "least", "most", "paper")
    for title, name, said in (
        ("entropy / log k", "routing_entropy", paper["routing.entropy"]),
        ("peak x k", "routing_peak", paper["routing.peak"]),
        ("beta", "beta", paper["beta.training"]),
        ("bound", "bound", paper["bound.value"]),
        ("field motion, rad/epoch", "field_motion", ""),
    ):
        means = [sum(row) / len(row) for row in training[name] if row]
        if means:
            table.add_row(title, *(number(value) for value in (means[0], means[-1], min(means), max(means))), said)
    return table if table.rows else None


def parts(found: Found) -> Table | None:
    """Where parameters and time are."""
    if not has(found, "parts"):
        return None
    section = found["parts"]
    counts, time = section["parameters"], section["time_share"]
    note = section.get("note")
    title = f"parts (time {note})" if note else "parts"
    table = _table(title, "part", "parameters", "share", "time of a forward pass")
    for name in (*counts, *(name for name in time if name not in counts)):
        count, share = counts.get(name), section["parameter_share"].get(name)
        cells = ("-" if count is None else f"{count:,}", number(share, ".1%"), number(time.get(name), ".1%"))
        table.add_row(name, *cells)
    table.add_section()
    table.add_row("all", f"{section['total']:,}", "", f"{section['images_per_second']:.0f} images/s")
    return table


def without_transport(found: Found) -> Table | None:
    """What a head's rotation is worth once trained."""
    if not has(found, "transport"):
        return None
    section = found["transport"]
    table = _table("transport off at test time", "where", "accuracy", "nll")
    rows = {f"head {i}": effect for i, effect in enumerate(section["heads"], start=1)}
    rows |= {step["name"]: effect for step, effect in zip(found["steps"], section["steps"], strict=True)}
    table.add_row("nowhere", f"{section['accuracy']:.3f}", f"{section['nll']:.3f}")
    for name, effect in {**rows, "everywhere": section["all"]}.items():
        table.add_row(name, f"{effect['accuracy']:+.3f}", f"{effect['nll']:+.3f}")
    return table


def remarks(found: Found) -> list[str]:
    """What one line can say."""
    lines = []
    if has(found, "graphs"):
        least = min(min(row.values()) for row in found["graphs"]["agreement"])
        lines.append(f"Euclidean, geodesic and cosine neighbours are the same for {least:.2%} of targets (paper: all)")
    if has(found, "holonomy"):
        flat = found["holonomy"]
        lines.append(
            f"holonomy of {flat['triangles']} triangles ({flat['step']}): at most {flat['angle']:.1e} rad; "
            f"carried round by the kernel, features change by {flat['carried']:.1e}"
        )
    if has(found, "receptive"):
        share = found["receptive"]["effective_share"]
        lines.append(
            f"a prediction leans on {share:.0%} of the pixels (gradient of its logit, {found['images']} images)"
        )
    return lines
