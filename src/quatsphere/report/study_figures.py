"""Figures of a study: compute contrasts and curves from result records and pass them to the drawing functions."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from quatsphere.report import figures as draw
from quatsphere.report.figure_data import Drawing, beta_label, qsv_size
from quatsphere.study.claims.evidence import CELL_METRICS, collect
from quatsphere.study.claims.rules import difference
from quatsphere.study.curve import curves
from quatsphere.study.paper_tables import paper_numbers
from quatsphere.study.results import CellRecord, at_one_length, read_records
from quatsphere.study.statistics import estimate_contrast, mean
from quatsphere.study.variants import VARIANTS, dataset_title

COST_TITLES = dict(zip(draw.COSTS, ("uniform", "identity", "both", "frozen"), strict=True))
"""Variant -> short name in the caption of the costs."""


def read_results(folder: str) -> list[CellRecord]:
    """Finished cells of a results folder."""
    return [record for record in read_records(folder) if record["status"] == "finished"]


def length_figures(records: Sequence[CellRecord]) -> Iterator[Drawing]:
    """Contrasts against images seen, where cells of several lengths have their predictions."""
    found = curves(records)
    if any(len(curve.points) > 1 for curve in found.values()):
        caption = "CIFAR-10; dots: seeds; bars: 95 % intervals over seeds and test images; diamonds: the paper"
        yield "lengths", draw.contrast_curves(list(found.values()), caption)


def write_length_figure(records: Sequence[CellRecord], path: Path) -> None:
    """Write the figure of the contrasts against images seen."""
    ((_, figure),) = length_figures(records)
    draw.save(figure, path)


def result_figures(records: Sequence[CellRecord]) -> Iterator[Drawing]:
    """Contrasts against length, then for each data set the ablation table and the probe of β."""
    yield from length_figures(records)
    records = at_one_length(records)
    datasets = list(dict.fromkeys(record["dataset"] for record in records))
    for dataset in datasets:
        cells = [record for record in records if record["dataset"] == dataset]
        suffix = "" if len(datasets) == 1 else f"-{dataset}"
        if rows := ablation_rows(cells, dataset):
            yield f"ablation{suffix}", draw.ablation_bars(rows, "95 % interval", dataset_title(dataset))
        if curves := probe_curves(cells):
            caption = f"{dataset_title(dataset)}, mean test accuracy in %"
            yield f"temperature{suffix}", draw.temperature_probe(curves, caption)


def ablation_rows(records: Sequence[CellRecord], dataset: str) -> list[draw.AblationRow]:
    """Every variant with cells on a data set, with its change from its reference, paired by seed."""
    found, (quoted, changes) = collect(records, CELL_METRICS["test"]), paper_numbers()
    rows = []
    for name, variant in VARIANTS.items():
        seeds = found.get(name, {})
        own, is_reference = mean(seeds), name == variant.reference
        if own is not None:
            change = None if is_reference else estimate_contrast(found, difference(name, variant.reference))
            paper = quoted.get((dataset, name)), changes.get((dataset, name))
            rows.append(draw.AblationRow(variant.title, list(seeds.values()), own, change, *paper))
    return rows


def costs_of(records: Sequence[CellRecord]) -> tuple[dict[str, float], str]:
    """Changes from the full kernel in points, for the labels of the schematic, and a caption that names their source.

    Without cells of our own the values are the paper's.
    """
    cells = [record for record in records if record["dataset"] == "cifar10"]
    found = collect(cells, CELL_METRICS["test"])
    ours = {
        name: estimate_contrast(found, difference(name, "full"))
        for name in draw.COSTS
        if {name, "full"} <= found.keys()
    }
    known = {name: change for name, change in ours.items() if change is not None}
    what = "Costs: change of CIFAR-10 test accuracy in points"
    if known:
        seeds = ", ".join(f"{change.n} ({COST_TITLES[name]})" for name, change in known.items())
        own = f"{what}, means paired by seed, of our own runs with\n{size_of(cells)}; n = {seeds}."
        return {name: change.value for name, change in known.items()}, own
    _, paper = paper_numbers()
    return {name: paper["cifar10", name] for name in draw.COSTS}, f"{what}; the paper's values, at this size."


def size_of(records: Sequence[CellRecord]) -> str:
    """Size and length of the full model's runs; every value that occurs."""
    full = [record for record in records if record["variant"] == "full"]
    models = {qsv_size(cell["config"]["model.base_vertices"], cell["config"]["model.shells"]) for cell in full}
    parameters = {f"{cell['parameters']:,}" for cell in full}
    images = {f"{cell['steps'] * cell['config']['train.batch_size']:,}" for cell in full}
    sizes, counts, seen = (" or ".join(sorted(values)) for values in (models, parameters, images))
    return f"{sizes}, {counts} parameters, {seen} images seen"


def probe_curves(records: Sequence[CellRecord]) -> list[draw.BetaCurve]:
    """β of the full kernel and of both probes on one data set, averaged over seeds, labelled with their accuracies."""
    curves = []
    for variant in ("full", "beta_warm", "beta_frozen"):
        cells = [record for record in records if record["variant"] == variant and any(record["trajectory"]["beta"])]
        if cells and cells[0]["config"]["model.shells"] > 1:
            settings = cells[0]["config"]
            treatment = beta_label(settings.get("model.beta_start"), settings.get("model.beta_frozen", False))
            accuracy = statistics.mean(100 * cell["test_accuracy"] for cell in cells)
            label = f"{treatment}: {accuracy:.1f} (n = {len(cells)})"
            found = []
            for logged in (cell["trajectory"] for cell in cells):
                low, high = logged.get("beta_min") or [], logged.get("beta_max") or []
                band, start = (low, high) if low and all(low) else None, settings.get("model.beta_start")
                found.append(draw.beta_curve(label, logged["beta"], band, settings["model.shells"], start))
            curves.append(draw.merge_curves(label, found))
    return curves
