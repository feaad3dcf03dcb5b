"""The results page of a plan with several lengths of training (docs/results.md), generated from a results folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quatsphere.study.document import GENERATED, cells_link, describe_setting, reading
from quatsphere.study.length_contrasts import (
    LOG_THREE,
    PAPER_IMAGES,
    curves,
    length_tables,
    point_text,
    rows_by_length,
)
from quatsphere.study.paper_tables import paper_numbers
from quatsphere.study.plan import READING_ROWS
from quatsphere.study.results import CellRecord, Results
from quatsphere.study.statistics import MIN_SEEDS
from quatsphere.study.table_formats import NONE, Table, format_estimate, markdown
from quatsphere.study.variants import VARIANTS

FIGURE = "pictures/contrasts.svg"
"""The figure of the page, relative to it."""
FINGERPRINTS = "fingerprints.jsonl"
"""Output of benchmarks/fingerprint_grid.py, in the results folder."""
PAPER_SIZE = "paper_size.jsonl"
"""Output of benchmarks/paper_size.py, in the results folder."""


def length_document(results: Results, page: Path) -> str:
    """Text of the page; it depends only on the results folder, and on `page` for relative links."""
    records = results.finished()
    accuracy, contrasts, exploratory = length_tables(records)
    readings = {VARIANTS[name].title for name in READING_ROWS}
    parts = [
        "# Results\n",
        GENERATED.format(results.path.name),
        headline(results) + "\n",
        f"![Contrasts of test accuracy against the number of training images]({FIGURE})\n",
        "## The paper's main statements\n",
        statements_table(records),
        "Differences of test accuracy in points on CIFAR-10, with 95 % intervals over seeds and test images, at the "
        "greatest length that has at least three seeds. Verdicts follow the [protocol](protocol.md), which was written "
        "before the runs; its rules were amended once, with at most two seeds of a contrast known. A statement holds "
        "if it does at the two greatest lengths (Holm's adjustment over eight contrasts) and its slope does not "
        "contradict it.\n",
        *reading(results),
        "## By length\n",
        markdown(accuracy),
        markdown(contrasts),
        "## Fingerprints\n",
        _fingerprints(results.path / FINGERPRINTS),
        "## Sensitivity to our readings of the paper\n",
        _rows_of(exploratory, readings, inside=True),
        "## Paper size\n",
        _paper_size(results.path / PAPER_SIZE),
        "## Other rows\n",
        _rows_of(exploratory, readings, inside=False),
        "## What was run\n",
        describe_setting(records),
        f"{cells_link(results, page)}. `quatsphere study verify CELL` trains one of "
        "them again and compares weights and predictions; `quatsphere study check` recomputes the stored numbers.\n",
        "An earlier study of 578 shorter runs (40,000 images), with verdicts on 98 statements of the paper: "
        "[results of plan `lite`](results-lite.md).\n",
    ]
    return "\n".join(parts)


def has_lengths(records: Sequence[CellRecord]) -> bool:
    """Return True if cells of several lengths have their predictions."""
    return len(rows_by_length(records)) > 1


def headline(results: Results) -> str:
    """Accuracy of QSV and of a linear classifier with their scale, the paper's, and the number of finished cells."""
    records = results.finished()
    lengths = {
        images: rows for images, rows in rows_by_length(records).items() if len(rows.get("full", {})) >= MIN_SEEDS
    }
    if not lengths:
        return f"No length has {MIN_SEEDS} seeds of the full model yet."
    images = max(lengths)
    rows = {
        name: [float(correct.mean()) for correct in lengths[images].get(name, {}).values()]
        for name in ("full", "linear")
    }
    means = {name: sum(values) / len(values) for name, values in rows.items() if values}
    linear = f"; softmax regression on the same samples reaches {means['linear']:.1f} %" if "linear" in means else ""
    (parameters,) = {record["parameters"] for record in records if record["variant"] == "full"}
    status = results.status()["plans"]
    cells, done = (sum(len(plan[key]) for plan in status.values()) for key in ("cells", "finished"))
    return (
        f"After {images:,} training images QSV with {parameters:,} parameters reaches {means['full']:.1f} % test "
        f"accuracy on CIFAR-10 ({len(rows['full'])} seeds){linear}. The paper reports {_paper_accuracy()} % with 0.64M "
        f"parameters and up to {PAPER_IMAGES:,} images. No accuracy of the paper has been reproduced. {done} of "
        f"{cells} planned runs are finished."
    )


def _paper_accuracy() -> float:
    return paper_numbers()[0]["cifar10", "full"]


def statements_table(records: Sequence[CellRecord], count: int | None = None) -> str:
    """The paper's statements with its value, ours at the greatest length with three seeds, slope and verdict."""
    columns = ("the paper's statement", "paper", "ours [95 %], seeds, images", "change per tripling", "verdict")
    rows = []
    for ours in list(curves(records).values())[:count]:
        points = [point for point in ours.points if point.estimate.n >= MIN_SEEDS]
        value = f"{point_text(points[-1])}, {points[-1].images:,}" if points else NONE
        verdict = format_estimate(ours.slope, LOG_THREE), f"**{ours.trend}**"
        rows.append((ours.contrast.statement, f"{ours.contrast.paper:+.1f}", value, *verdict))
    return markdown(Table(columns, rows))


def _rows_of(table: Table, titles: set[str], *, inside: bool) -> str:
    rows = [row for row in table.rows if (row[0] in titles) == inside]
    if not rows:
        return "Not run yet.\n"
    return f"{table.title}; no verdicts.\n\n" + markdown(Table(table.columns, rows))


def _read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def _fingerprints(path: Path) -> str:
    """Diagnostics of the paper's model and of short runs at its size, one row per choice of the open scales."""
    runs = _read_lines(path)
    if not runs:
        return "Not run yet: [fingerprints.md](fingerprints.md) has what is known.\n"
    return (
        f"{len(runs)} of 12 runs of preset `paper-cifar10`, one seed each, {runs[0]['images']:,} images; ranges over "
        "the steps or shells of a model. A row is named by head diversity, first repulsion step and start of the "
        "field. The choice and what remains open: [fingerprints.md](fingerprints.md).\n\n" + _fingerprint_table(runs)
    )


def _fingerprint_table(runs: Sequence[Mapping[str, Any]]) -> str:
    paper = runs[0]["fingerprint"]
    columns = ("run", *(entry["name"] for entry in paper), "test accuracy")
    rows: list[Sequence[str]] = [("the paper", *(entry["paper"] for entry in paper), f"{_paper_accuracy()}")]
    for run in runs:
        ranges = [f"{min(e['ours']):.3g}-{max(e['ours']):.3g}" if e["ours"] else NONE for e in run["fingerprint"]]
        verdicts = [f"{text} {e['verdict']}" for text, e in zip(ranges, run["fingerprint"], strict=True)]
        rows.append((run["run"], *verdicts, f"{100 * run['test_accuracy']:.1f}"))
    return markdown(Table(columns, rows))


def _paper_size(path: Path) -> str:
    """Runs at the paper's size: length, accuracy in all, by class and by epoch, fingerprint."""
    runs = _read_lines(path)
    if not runs:
        return "Not run yet.\n"
    classes = list(runs[0]["by_class"])
    columns = ("run", "parameters", "epochs", "images", "test accuracy", *classes)
    rows, curves = [], []
    for run in runs:
        sizes = f"{run['parameters']:,}", str(run["epochs"]), f"{run['images']:,}"
        accuracy = f"{100 * run['test_accuracy']:.1f} (n = {run['test_images']:,})"
        rows.append((run["run"], *sizes, accuracy, *(f"{100 * run['by_class'][name]:.0f}" for name in classes)))
        by_epoch = ", ".join(f"{100 * value:.1f}" for value in run["validation"])
        curves.append(f"Validation accuracy of `{run['run']}` after each epoch: {by_epoch}.\n")
    fitted = [run for run in runs if run["fingerprint"]]
    described = "Presets `paper-*`, one seed each, one-cycle over the epochs given: described, not tested.\n"
    tables = [_fingerprint_table(fitted)] if fitted else []
    return "\n".join([described, markdown(Table(columns, rows)), *curves, *tables])
