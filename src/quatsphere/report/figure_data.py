"""Figures of runs and benchmarks: read their files and pass the values to the drawing functions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quatsphere.errors import ConfigError
from quatsphere.geometry.sphere import shell_sizes
from quatsphere.report import figures as draw
from quatsphere.report.run_files import RunFiles, read_json_object
from quatsphere.study.variants import dataset_title

Drawing = tuple[str, Any]
"""Name of the file without its suffix, and the figure."""
_SIZES = {"vertices": int, "seconds?": (float, None), "peak_mb?": (float, None)}
BENCH_SHAPE = {"throughput?": [{"title": str, "images_per_second": float}], "scaling?": [_SIZES]}
"""Fields of a file of `quatsphere bench --json` that are drawn."""
EDGE_LONGITUDES = (2.6, 0.3, -0.9, 2.2, -2.3)
"""Longitudes near which the figure draws the edges of one vertex."""


def schematics(costs: Mapping[str, float], source: str) -> Iterator[Drawing]:
    """Yield the two figures of the paper that need no training; the shells are those of the model."""
    from quatsphere.diagnostics.initial_model import kernel_parameters, paper_qsv

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
