"""Figures of runs, benchmarks and studies: compute the values and pass them to the drawing functions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quatsphere.diagnostics.paper_model import kernel_parameters, paper_qsv
from quatsphere.errors import ConfigError
from quatsphere.geometry.sphere import shell_sizes
from quatsphere.report import figures as draw
from quatsphere.report.run_files import RunFiles, read_json_object
from quatsphere.study.claims.evidence import CELL_METRICS, collect
from quatsphere.study.claims.rules import difference
from quatsphere.study.length_contrasts import curves
from quatsphere.study.paper_tables import paper_numbers
from quatsphere.study.results import CellRecord, at_one_length, read_records
from quatsphere.study.statistics import estimate_contrast, mean
from quatsphere.study.variants import VARIANTS, dataset_title

Drawing = tuple[str, Any]
"""Name of the file without its suffix, and the figure."""
_SIZES = {"vertices": int, "seconds?": (float, None), "peak_mb?": (float, None)}
BENCH_SHAPE = {"throughput?": [{"title": str, "images_per_second": float}], "scaling?": [_SIZES]}
"""Fields of a file of `quatsphere bench --json` that are drawn."""
EDGE_LONGITUDES = (2.6, 0.3, -0.9, 2.2, -2.3)
"""Longitudes near which the figure draws the edges of one vertex."""


def schematics(costs: Mapping[str, float], source: str) -> Iterator[Drawing]:
    """Yield the two figures of the paper that need no training; the shells are those of the model."""
    yield "kernel", draw.kernel_comparison(*kernel_parameters())
    qsv = paper_qsv()
    positions = [shell.positions.detach().double().numpy() for shell in qsv.layout.shells]
    caption = f"Drawn: the paper's geometry, {qsv_size(qsv.config.base_vertices, qsv.config.shells)}.\n{source}"
    yield "qsv", draw.qsv_in_one_view(positions, list(_example_edges(qsv.layout, positions)), costs, caption)


def _example_edges(layout: Any, positions: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield one target and its sources for the step within the first shell and for every cross-shell step."""
    graphs, sources = (layout.within, *layout.cross), (positions[0], *positions)
    for graph, inner, outer, longitude in zip(graphs, positions, sources, EDGE_LONGITUDES, strict=False):
        target = _equator_vertex(inner, longitude)
        yield inner[target], outer[graph.neighbours[target].numpy()]


def _equator_vertex(positions: Any, longitude: float) -> int:
    """Return the vertex nearest to a longitude among those near the equator."""
    angle = np.angle(np.exp(1j * (np.arctan2(positions[:, 0], positions[:, 2]) - longitude)))
    return int(np.argmin(np.abs(angle) + 10 * np.abs(positions[:, 1]) / np.linalg.norm(positions[0])))


def qsv_size(base_vertices: int, shells: int) -> str:
    """Return a size such as `3 shells of 48 to 96 vertices`."""
    counts = shell_sizes(base_vertices, shells)
    return f"{shells} shells of {counts[0]} to {counts[-1]} vertices"


def run_figures(runs: Sequence[RunFiles], note: Callable[[str], None]) -> Iterator[Drawing]:
    """Yield the figures that compare runs, and the figures of each run's metrics and diagnostics."""
    trained = {run.name: run.metrics for run in runs if run.metrics}
    if trained:
        yield "training", draw.training_curves(trained)
    classes = {run.name: run.result["test"]["per_class"] for run in runs if run.result}
    if classes:
        yield "classes", draw.per_class_bars(classes)
    if len(trained) > 1:
        speeds = {run.name: [s for line in run.metrics if (s := line["images_per_second"]) is not None] for run in runs}
        medians = {name: statistics.median(values) for name, values in speeds.items() if values}
        yield (
            "throughput",
            draw.throughput_bars(medians, "as logged while training; comparable on an idle machine only"),
        )
    curves = [curve for run in runs if (curve := run_beta_curve(run)) is not None]
    if curves:
        data = ", ".join(dict.fromkeys(dataset_title(run.config["data"]["name"]) for run in runs))
        yield "temperature", draw.temperature_probe(curves, data)
    for run in runs:
        prefix = "" if len(runs) == 1 else f"{run.name}-"
        yield from ((f"{prefix}{name}", figure) for name, figure in _single_run_figures(run, note))


def _single_run_figures(run: RunFiles, note: Callable[[str], None]) -> Iterator[Drawing]:
    shells = run.config["model"].get("shells", 0)
    if any(record.get("routing_entropy") for record in run.metrics):
        yield "inside", draw.inside_over_training(run.metrics, run.step_names, shells)
    if run.diagnostics is None:
        note(f"run '{run.name}' has no diagnostics.json; 'quatsphere diagnose {run.path}' makes it, for more figures")
        return
    if routing := run.section("routing"):
        yield "routing", draw.routing_histograms(routing, run.step_names)
    if coverage := run.section("coverage"):
        yield "coverage", draw.coverage_map(coverage["shells"], run.diagnostics["layout"] == "sphere")
    if transport := run.section("transport"):
        yield "transport", draw.transport_bars(transport, run.step_names)
    if receptive := run.section("receptive"):
        yield "receptive", draw.receptive_map(receptive)
    if parts := run.section("parts"):
        yield "cost", draw.cost_bars(parts)


def run_beta_curve(run: RunFiles) -> draw.BetaCurve | None:
    """Return β over training, or None if it was not logged or there is no cross-shell step."""
    model = run.config["model"]
    shells = model.get("shells", 0)
    logged = [
        record for record in run.metrics if len(record.get("beta") or ()) >= shells and None not in record["beta"]
    ]
    means = [record["beta"] for record in logged]
    if not means or shells < 2:
        return None
    heads = [
        steps
        for record in logged
        if len(steps := record.get("beta_heads") or ()) == len(record["beta"])
        and all(s and None not in s for s in steps)
    ]
    low, high = ([[pick(step) for step in epoch] for epoch in heads] for pick in (min, max))
    start = model.get("beta_start")
    label = f"{run.name}: {beta_label(start, model.get('beta_frozen', False))}"
    return draw.beta_curve(label, means, (low, high) if len(heads) == len(means) else None, model["shells"], start)


def beta_label(start: float | None, frozen: bool) -> str:
    """Describe the treatment of β: `learned`, `starts at 5` or `frozen at 5`."""
    if start is None:
        return "learned"
    return f"frozen at {start:g}" if frozen else f"starts at {start:g}"


def bench_figures(path: str) -> Iterator[Drawing]:
    """Yield the figures of a file of `quatsphere bench --json FILE`: its lists `throughput` and `scaling`."""
    content = read_json_object(Path(path), BENCH_SHAPE) or {}
    if not content.get("scaling") and not content.get("throughput"):
        raise ConfigError(
            f"no scaling and no throughput in {path}; make it with 'quatsphere bench scaling --json FILE'"
        )
    if content.get("throughput"):
        speeds = {row["title"]: row["images_per_second"] for row in content["throughput"]}
        yield "throughput", draw.throughput_bars(speeds)
    if content.get("scaling"):
        yield "scaling", draw.scaling_plot(content["scaling"])


# Studies.

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
