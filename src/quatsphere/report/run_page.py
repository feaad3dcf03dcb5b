"""The report of one run, from its files; what needs the model comes in ready: cards, pictures, tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.figure import Figure

from quatsphere.report import pictures
from quatsphere.report.page import Card, Picture, Report, Section, Table, Tile, draw
from quatsphere.report.run_files import RunFiles, read_object

CAPTIONS = {
    "classes": ("Results", "Accuracy by class", "Test images, easiest class first."),
    "training": ("Training", "Loss and accuracy", "By epoch."),
    "inside": ("Training", "What the inside did meanwhile", "Measured on validation images after every epoch."),
    "temperature": ("Training", "Inverse temperature β", "Of the cross-shell steps, by epoch."),
    "routing": ("Diagnostics", "Routing weights", "As multiples of 1/k: at 1 every neighbour counts the same."),
    "transport": ("Diagnostics", "Transport switched off", "At test time, head by head and step by step."),
    "coverage": ("Diagnostics", "Vertices", "Where they are on the map of each shell, and where they began."),
    "receptive": ("Diagnostics", "Receptive field", "The pixels that predictions lean on."),
    "cost": ("Diagnostics", "Cost", "Where parameters and time go."),
}
"""figure -> (section, title, sentence), in the order of the page."""


@dataclass(frozen=True)
class Looks:
    """What others computed or drew; cards and samples are missing without data and weights, and `missing` says why."""

    figures: Mapping[str, Figure] = field(default_factory=dict)
    cards: Sequence[Card] = ()
    samples: Sequence[Picture] = ()
    diagnostics: Sequence[Table] = ()
    settings: Sequence[Table] = ()
    images: Mapping[str, int] = field(default_factory=dict)
    missing: str = ""


def run_report(run: RunFiles, looks: Looks, links: Sequence[tuple[str, str]] = ()) -> Report:
    """The whole report of a run, finished or not."""
    sections = [
        *_predictions(looks),
        *_results(run, looks),
        *_way_in(looks),
        *_training(looks),
        _diagnostics(run, looks),
    ]
    sections.append(
        Section("Settings", "Every setting; those that differ from the default are marked.", looks.settings)
    )
    model, data = run.config["model"]["name"], run.config["data"]["name"]
    told = f"{model} on {data}" + ("" if run.result else "; not finished: numbers so far")
    return Report(f"Run {run.name}", told, tiles(run), facts(run, looks), sections, links)


def tiles(run: RunFiles) -> list[Tile]:
    """The numbers to see first."""
    result = run.result
    if result is None:
        best = max((record["val_accuracy"] for record in run.metrics), default=None)
        done = f"of {run.config['train']['epochs']}"
        shown = "-" if best is None else f"{best:.4f}"
        return [Tile("best validation accuracy", shown), Tile("epochs", str(len(run.metrics)), done)]
    return [
        Tile("test accuracy", f"{result['test_accuracy']:.4f}", f"{result['test']['images']:,} images, one run"),
        Tile("validation accuracy", f"{result['val_accuracy']:.4f}", f"best, after epoch {result['best_epoch']}"),
        Tile("parameters", f"{result['parameters']:,}", result["model"]),
        Tile("epochs", f"{result['epochs']}", f"{result['steps']:,} steps, {time_text(result['seconds'])}"),
        Tile("calibration", f"{result['test']['ece']:.3f}", f"expected error, NLL {result['test']['nll']:.3f}"),
    ]


def time_text(seconds: float) -> str:
    """`42 s`, `7 min`, `2 h 5 min`."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def facts(run: RunFiles, looks: Looks) -> list[tuple[str, str]]:
    """What identifies the numbers."""
    result = run.result or {}
    about = read_object(run.path / "environment.json") or {}
    versions = result.get("versions") or about.get("versions") or {}
    found = {
        "run folder": run.name,
        "model": run.config["model"]["name"],
        "data": run.config["data"]["name"],
        "images": ", ".join(f"{count:,} {split}" for split, count in looks.images.items()),
        "data fingerprint": result.get("fingerprint"),
        "seed": run.config["train"].get("seed"),
        "commit": result.get("commit") or about.get("commit"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "machine": about.get("processor"),
        "device": about.get("device"),
        "threads, processes": f"{about['threads']}, {about['processes']}" if "threads" in about else None,
        "command": " ".join(map(str, about.get("command", []))),
        "n": "one run, one seed: no claim about the spread between seeds",
    }
    return [(name, str(value)) for name, value in found.items() if value not in (None, "")]


def _results(run: RunFiles, looks: Looks) -> Iterator[Section]:
    if run.result is None:
        return
    test = run.result["test"]
    counts = [sum(row) for row in test["confusion"]]
    ranked = sorted(zip(test["per_class"].items(), counts, strict=True), key=lambda item: -(item[0][1] or 0.0))
    rows = [(name, "-" if share is None else f"{share:.3f}", f"{count:,}") for (name, share), count in ranked]
    matrix = pictures.confusion(np.array(test["confusion"]), list(test["per_class"]))
    confusion = draw("Confusion", "Rows: what it is. Columns: what the model says. Number of test images.", matrix)
    yield Section(
        "Results",
        "Test images, at the checkpoint with the best validation accuracy.",
        [Table("Accuracy by class", ("class", "accuracy", "images"), rows, folded=len(rows) > 20)],
        [*_pictures(looks, "Results"), confusion],
    )


def _predictions(looks: Looks) -> Iterator[Section]:
    if looks.missing:
        yield Section("Predictions", f"Left out: {looks.missing}")
    if looks.cards:
        text = "Test images, wrong answers first; beside each the patches that the first shell samples of it."
        plain = "Test images, wrong answers first."
        yield Section("Predictions", text if looks.cards[0].patches else plain, cards=looks.cards)


def _way_in(looks: Looks) -> Iterator[Section]:
    if looks.samples:
        yield Section("What the model sees", "One test image on its way in.", pictures=looks.samples)


def _pictures(looks: Looks, section: str) -> list[Picture]:
    """The figures of one section, in the order of the captions."""
    return [
        draw(title, text, looks.figures[name])
        for name, (place, title, text) in CAPTIONS.items()
        if place == section and name in looks.figures
    ]


def _training(looks: Looks) -> Iterator[Section]:
    if shown := _pictures(looks, "Training"):
        yield Section("Training", pictures=shown)


def _diagnostics(run: RunFiles, looks: Looks) -> Section:
    about = run.diagnostics
    if about is None:
        hint = "None yet: 'quatsphere diagnose RUN' measures routing, field, vertices and cost and leaves them here."
        return Section("Diagnostics", hint)
    text = f"{about['images']:,} {about['split']} images traced, checkpoint of step {about['step']:,}."
    return Section("Diagnostics", text, looks.diagnostics, _pictures(looks, "Diagnostics"))
