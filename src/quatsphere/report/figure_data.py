"""From run folders, a results folder and a benchmark file to what the figure functions take."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quatsphere.errors import ConfigError
from quatsphere.geometry.sphere import shell_sizes
from quatsphere.report import figures as draw
from quatsphere.report.run_files import RunFiles, read_object
from quatsphere.study.claims.rules import difference
from quatsphere.study.curve import PAPER_IMAGES, Curve, at_one_length, curves
from quatsphere.study.datasets import title_of
from quatsphere.study.results import Results
from quatsphere.study.statistics import Estimate, contrast, mean
from quatsphere.study.tables import paper_changes, paper_values
from quatsphere.study.variants import VARIANTS

Drawing = tuple[str, Any]
"""Name of the file without its ending, figure."""
Record = dict[str, Any]
EDGE_PLACES = (2.6, 0.3, -0.9, 2.2, -2.3)
"""Longitudes, seen along the polar axis, near which the figure draws one vertex's edges."""
COST_TITLES = dict(zip(draw.COSTS, ("uniform", "identity", "both", "frozen"), strict=True))
"""Variant -> its name in the caption of the costs."""


def schematics(costs: Mapping[str, float], source: str) -> Iterator[Drawing]:
    """The two figures of the paper that need no training; the shells are the real ones."""
    from quatsphere.models import QSV, AttentionNet, create_model

    qsv, wide = create_model("qsv"), create_model("attention", dim=256)
    assert isinstance(qsv, QSV)
    assert isinstance(wide, AttentionNet)
    parts = qsv.parameter_parts()
    steps = len(qsv.cross) + len(qsv.rounds) + 1
    shared = len(wide.cross) + 1  # the steps the baseline has a counterpart of
    kernel, perturbation = parts["field"] + parts["post"] * shared // steps, parts["perturbation"] * shared // steps
    yield "kernel", draw.kernel_comparison(wide.parameter_parts()["projections"], kernel, perturbation)
    positions = [shell.positions.detach().double().numpy() for shell in qsv.layout.shells]
    caption = f"Drawn: the paper's geometry, {qsv_size(qsv.config.base_vertices, qsv.config.shells)}.\n{source}"
    yield "qsv", draw.qsv_in_one_view(positions, list(edges_of(qsv.layout, positions)), costs, caption)


def edges_of(layout: Any, positions: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """One target and its sources of the first step, within the first shell, and of every cross-shell step."""
    graphs, sources = (layout.within, *layout.cross), (positions[0], *positions)
    for graph, inner, outer, longitude in zip(graphs, positions, sources, EDGE_PLACES, strict=False):
        target = _near(inner, longitude)
        yield inner[target], outer[graph.neighbours[target].numpy()]


def qsv_size(base_vertices: int, shells: int) -> str:
    """`3 shells of 48 to 96 vertices`."""
    counts = shell_sizes(base_vertices, shells)
    return f"{shells} shells of {counts[0]} to {counts[-1]} vertices"


def _near(positions: Any, longitude: float) -> int:
    """The vertex nearest to a longitude among those near the equator."""
    turn = np.angle(np.exp(1j * (np.arctan2(positions[:, 0], positions[:, 2]) - longitude)))
    return int(np.argmin(np.abs(turn) + 10 * np.abs(positions[:, 1]) / np.linalg.norm(positions[0])))


def run_figures(runs: Sequence[RunFiles], note: Callable[[str], None]) -> Iterator[Drawing]:
    """Curves and classes of all runs together, and the inside of each."""
    trained = {run.name: run.metrics for run in runs if run.metrics}
    if trained:
        yield "training", draw.training_curves(trained)
    classes = {run.name: run.result["test"]["per_class"] for run in runs if run.result}
    if classes:
        yield "classes", draw.per_class_bars(classes)
    speeds = [(run.name, [record["images_per_second"] for record in run.metrics]) for run in runs if run.metrics]
    if len(speeds) > 1:
        rows = [draw.Throughput(name, statistics.median(values)) for name, values in speeds]
        yield "throughput", draw.throughput_bars(rows, "as logged while training; comparable on an idle machine only")
    curves = [curve for run in runs if (curve := curve_of_run(run)) is not None]
    if curves:
        data = ", ".join(dict.fromkeys(title_of(run.config["data"]["name"]) for run in runs))
        yield "temperature", draw.temperature_probe(curves, data)
    for run in runs:
        prefix = "" if len(runs) == 1 else f"{run.name}-"
        yield from ((f"{prefix}{name}", figure) for name, figure in inside_figures(run, note))


def inside_figures(run: RunFiles, note: Callable[[str], None]) -> Iterator[Drawing]:
    """What one run's metrics and diagnostics show of its inside."""
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
        yield "cost", draw.cost_shares(parts)


def curve_of_run(run: RunFiles) -> draw.BetaCurve | None:
    """β over training, where there is one."""
    means = [record["beta"] for record in run.metrics if record.get("beta")]
    model = run.config["model"]
    if not means or model.get("shells", 0) < 2:
        return None
    heads = [record["beta_heads"] for record in run.metrics if record.get("beta_heads")]
    low, high = ([[pick(step) for step in epoch] for epoch in heads] for pick in (min, max))
    start = model.get("beta_start")
    label = f"{run.name}: {beta_label(start, model.get('beta_frozen', False))}"
    return draw.beta_curve(label, means, (low, high) if len(heads) == len(means) else None, model["shells"], start)


def beta_label(start: float | None, frozen: bool) -> str:
    """What was done to β."""
    if start is None:
        return "learned"
    return f"frozen at {start:g}" if frozen else f"starts at {start:g}"


def read_results(folder: str) -> list[Record]:
    """The finished cells of a study."""
    results = Results(folder)
    results.require()
    return [record for record in results.finished() if record.get("status") == "finished"]


def length_figures(records: Sequence[Record]) -> Iterator[Drawing]:
    """Contrasts against images seen, where cells of several lengths have their predictions."""
    found = curves(records)
    if any(len(curve.points) > 1 for curve in found.values()):
        panels = [length_curve(curve) for curve in found.values()]
        caption = "CIFAR-10; dots: seeds; bars: 95 % intervals over seeds and test images; diamonds: the paper"
        yield "lengths", draw.contrast_curves(panels, PAPER_IMAGES, caption)


def length_curve(curve: Curve) -> draw.LengthCurve:
    """A contrast as the figure takes it."""
    points = []
    for p in curve.points:
        low, high = p.estimate.interval() or (None, None)
        points.append(draw.LengthPoint(p.images, p.estimate.value, low, high, list(p.by_seed.values())))
    return draw.LengthCurve(curve.contrast.title, points, curve.contrast.paper, f"in trend: {curve.trend}")


def result_figures(records: Sequence[Record]) -> Iterator[Drawing]:
    """The ablation table and the probe of β, a figure for each data set, and contrasts against length."""
    yield from length_figures(records)
    records = at_one_length(records)
    datasets = list(dict.fromkeys(record["dataset"] for record in records))
    for dataset in datasets:
        cells = [record for record in records if record["dataset"] == dataset]
        suffix = "" if len(datasets) == 1 else f"-{dataset}"
        if rows := ablation_rows(cells, dataset):
            yield f"ablation{suffix}", draw.ablation_bars(rows, "95 % interval", title_of(dataset))
        if curves := probe_curves(cells):
            caption = f"{title_of(dataset)}, mean test accuracy in %"
            yield f"temperature{suffix}", draw.temperature_probe(curves, caption)


def accuracies(records: Sequence[Record]) -> dict[str, dict[int, float]]:
    """variant -> seed -> test accuracy in percent."""
    found: dict[str, dict[int, float]] = {}
    for record in records:
        found.setdefault(record["variant"], {})[record["seed"]] = 100 * record["test_accuracy"]
    return found


def ablation_rows(records: Sequence[Record], dataset: str) -> list[draw.AblationRow]:
    """Every variant of one data set in the ledger's order, with its change from its reference, paired by seed."""
    found, quoted, changes = accuracies(records), paper_values(), paper_changes()
    rows = []
    for name, variant in VARIANTS.items():
        seeds = found.get(name, {})
        own, alone = mean(seeds), name == variant.reference
        if own is not None:
            change = None if alone else contrast(found, difference(name, variant.reference))
            told = None if change is None else measured(change)
            paper = quoted.get((dataset, name)), changes.get((dataset, name))
            rows.append(draw.AblationRow(variant.title, list(seeds.values()), measured(own), told, *paper))
    return rows


def measured(found: Estimate) -> draw.Measured:
    """An estimate with its 95 % t-interval, where there is one."""
    return draw.Measured(found.value, *(found.interval() or (None, None)))


def costs_of(records: Sequence[Record]) -> tuple[dict[str, float], str]:
    """Changes from the full kernel in points for the labels of the figure, and from which runs they are."""
    cells = [record for record in records if record["dataset"] == "cifar10"]
    found = accuracies(cells)
    ours = {name: contrast(found, difference(name, "full")) for name in draw.COSTS if {name, "full"} <= found.keys()}
    known = {name: change for name, change in ours.items() if change is not None}
    what = "Costs: change of CIFAR-10 test accuracy in points"
    if known:
        seeds = ", ".join(f"{change.n} ({COST_TITLES[name]})" for name, change in known.items())
        own = f"{what}, means paired by seed, of our own runs with\n{size_of(cells)}; n = {seeds}."
        return {name: change.value for name, change in known.items()}, own
    paper = paper_changes()
    return {name: paper["cifar10", name] for name in draw.COSTS}, f"{what}; the paper's values, at this size."


def size_of(records: Sequence[Record]) -> str:
    """Size and length of the full model's runs, every value that occurs."""
    full = [record for record in records if record["variant"] == "full"]
    models = {qsv_size(cell["config"]["model.base_vertices"], cell["config"]["model.shells"]) for cell in full}
    parameters = {f"{cell['parameters']:,}" for cell in full}
    images = {f"{cell['steps'] * cell['config']['train.batch_size']:,}" for cell in full}
    sizes, counts, seen = (" or ".join(sorted(values)) for values in (models, parameters, images))
    return f"{sizes}, {counts} parameters, {seen} images seen"


def probe_curves(records: Sequence[Record]) -> list[draw.BetaCurve]:
    """β of the full kernel and of both probes, seeds merged, with their accuracies; of cells of one data set."""
    curves = []
    for variant in ("full", "beta_warm", "beta_frozen"):
        cells = [record for record in records if record["variant"] == variant and any(record["trajectory"]["beta"])]
        if cells and cells[0]["config"]["model.shells"] > 1:
            settings = cells[0]["config"]
            done = beta_label(settings.get("model.beta_start"), settings.get("model.beta_frozen", False))
            accuracy = statistics.mean(100 * cell["test_accuracy"] for cell in cells)
            label = f"{done}: {accuracy:.1f} (n = {len(cells)})"
            curves.append(draw.merge_curves(label, [curve_of_cell(label, cell) for cell in cells]))
    return curves


def curve_of_cell(label: str, record: Record) -> draw.BetaCurve:
    """β over the training of one cell."""
    logged, settings = record["trajectory"], record["config"]
    low, high = logged.get("beta_min") or [], logged.get("beta_max") or []
    band = (low, high) if low and all(low) else None
    return draw.beta_curve(label, logged["beta"], band, settings["model.shells"], settings.get("model.beta_start"))


def bench_figures(path: str) -> Iterator[Drawing]:
    """Speed, from a file of 'quatsphere bench --json FILE': its lists `throughput` and `scaling`."""
    content = read_object(Path(path)) or {}
    if not content.get("scaling") and not content.get("throughput"):
        raise ConfigError(
            f"no scaling and no throughput in {path}; make it with 'quatsphere bench scaling --json FILE'"
        )
    if content.get("throughput"):
        rows = [draw.Throughput(row["title"], row["images_per_second"]) for row in content["throughput"]]
        yield "throughput", draw.throughput_bars(rows)
    if content.get("scaling"):
        yield "scaling", draw.scaling_plot(content["scaling"])
