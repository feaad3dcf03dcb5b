"""The report page of a run: results, predictions, samples, training curves, diagnostics, settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.text import Text
from torch import Tensor

from quatsphere.config import RunConfig
from quatsphere.data import Dataset
from quatsphere.data.augment import normalize
from quatsphere.diagnostics.tables import absent_lines, diagnosis_tables, format_number, remark_lines
from quatsphere.diagnostics.view_trace import first_shell_samples, shell_positions
from quatsphere.errors import CheckpointError, ConfigError, DataError
from quatsphere.report.explanations import INTRODUCTIONS, NORMAL_SOURCE, RUN_PICTURES, TILES, table_text, words_of
from quatsphere.report.figure_data import run_figures
from quatsphere.report.figures import confusion_matrix, phone_layout, sampling_preview, shell_values
from quatsphere.report.page import (
    Card,
    Picture,
    Report,
    Section,
    Tile,
    patch_sheet,
    png_uri,
    rgb_pixels,
    to_picture,
    write_report,
)
from quatsphere.report.run_files import ENVIRONMENT_SHAPE, RunFiles, read_json_object, read_run_files
from quatsphere.study.table_formats import Table
from quatsphere.study.time_estimate import format_seconds
from quatsphere.train.evaluation import predict_logits
from quatsphere.train.load import TrainedModel, stored_config

LINKED_PAGES = {
    "view.html": "Open the 3-D view of the shells",
    "live.html": "Draw a digit and watch the model",
    "photo.html": "Show a model a photograph",
}
"""Pages beside a report that it links, if they exist, and the texts of the links."""
RUN_SECTIONS = {
    "Results": ("classes", "confusion"),
    "What the model sees": ("samples", "shells"),
    "Training": ("training", "inside", "temperature"),
    "Diagnostics": ("routing", "transport", "coverage", "receptive", "cost"),
}
"""Section -> figures, in the order of the page."""
MAX_PREDICTED, MAX_CARDS = 512, 24
"""Largest number of test images to classify, and to show."""


@dataclass(frozen=True)
class RunReportInputs:
    """Computed parts of the page; without data or weights there are no cards and samples, and `missing` says why."""

    figures: Mapping[str, Figure] = field(default_factory=dict)
    phone_figures: Mapping[str, Figure] = field(default_factory=dict)
    cards: Sequence[Card] = ()
    diagnostics: Sequence[Table] = ()
    settings: Sequence[Table] = ()
    images: Mapping[str, int] = field(default_factory=dict)
    missing: str = ""


def write_run_report(
    folder: Path, page: Path, load: Callable[[], tuple[TrainedModel, Dataset]], note: Callable[[str], None]
) -> None:
    """Write the report of a run.

    Args:
        folder: folder of the run.
        page: path of the page; the pages of `LINKED_PAGES` beside it are linked.
        load: returns the trained model and its data; if it fails, the page has no predictions and says why.
        note: called with a line for the user.
    """
    run = read_run_files(folder)
    inputs = RunReportInputs(
        *draw_twice(lambda: _file_figures(run)),
        diagnostics=diagnostic_tables(run),
        settings=settings_tables(stored_config(run.path / "config.yaml")),
    )
    try:
        inputs = with_predictions(inputs, *load())
    except (DataError, CheckpointError, ConfigError) as error:
        note(f"predictions are left out: {error}")
        inputs = dataclasses.replace(inputs, missing=str(error))
    links = [(quote(name), text) for name, text in LINKED_PAGES.items() if page.with_name(name).is_file()]
    write_report(page, run_report(run, inputs, links))


def run_report(run: RunFiles, inputs: RunReportInputs, links: Sequence[tuple[str, str]] = ()) -> Report:
    """Return the report of a finished or unfinished run."""
    sections = [*_predictions(inputs), *_results(run, inputs)]
    for title, text in (("What the model sees", "One test image and its tokens."), ("Training", NORMAL_SOURCE)):
        if pictures := _pictures(inputs, title):
            sections.append(Section(title, text, pictures=pictures))
    settings = Section("Settings", "All settings; those that differ from the default are marked.", inputs.settings)
    sections += [_diagnostics(run, inputs), settings]
    model, data = run.config["model"]["name"], run.config["data"]["name"]
    subtitle = f"{model} on {data}" + ("" if run.result else "; not finished: numbers so far")
    tiles, facts = _tiles(run), _facts(run, inputs)
    introduction = INTRODUCTIONS.get(model, "")
    return Report(f"Run {run.name}", subtitle, tiles, facts, sections, links, introduction, words_of(model))


def draw_twice(draw: Callable[[], dict[str, Figure]]) -> tuple[dict[str, Figure], dict[str, Figure]]:
    """Return figures for a page and for a phone."""
    page = draw()
    with phone_layout():
        return page, draw()


def _file_figures(run: RunFiles) -> dict[str, Figure]:
    """Return the figures of the metrics, the diagnostics and the result."""
    figures = dict(run_figures([run], lambda message: None))
    if run.result is not None:
        test = run.result["test"]
        figures["confusion"] = confusion_matrix(np.array(test["confusion"]), list(test["per_class"]))
    return figures


def _tiles(run: RunFiles) -> list[Tile]:
    result = run.result
    chance = 0.0
    if result is None:
        best = max((line["val_accuracy"] for line in run.metrics if line["val_accuracy"] is not None), default=None)
        tiles = [
            Tile("best validation accuracy", format_number(best, ".4f")),
            Tile("epochs", str(len(run.metrics)), f"of {run.config['train']['epochs']}"),
        ]
    else:
        test, chance = result["test"], 1 / max(1, len(result["test"]["per_class"]))
        tiles = [
            Tile("test accuracy", f"{result['test_accuracy']:.4f}", f"{test['images']:,} images, one run"),
            Tile("validation accuracy", f"{result['val_accuracy']:.4f}", f"best, after epoch {result['best_epoch']}"),
            Tile("parameters", f"{result['parameters']:,}", result["model"]),
            Tile("epochs", f"{result['epochs']}", f"{result['steps']:,} steps, {format_seconds(result['seconds'])}"),
            Tile("calibration error", f"{test['ece']:.3f}", f"expected; NLL {format_number(test['nll'])}"),
        ]
    return [dataclasses.replace(tile, meaning=TILES[tile.label].format(chance=chance)) for tile in tiles]


def _facts(run: RunFiles, inputs: RunReportInputs) -> list[tuple[str, str]]:
    """Return everything that identifies the run."""
    result = run.result or {}
    environment = read_json_object(run.path / "environment.json", ENVIRONMENT_SHAPE) or {}
    versions = result.get("versions") or environment.get("versions") or {}
    threads = f"{environment['threads']}, {environment.get('processes')}" if "threads" in environment else None
    found = {
        "run folder": run.name,
        "model": run.config["model"]["name"],
        "data": run.config["data"]["name"],
        "images": ", ".join(f"{count:,} {split}" for split, count in inputs.images.items()),
        "data fingerprint": result.get("fingerprint"),
        "seed": run.config["train"].get("seed"),
        "commit": result.get("commit") or environment.get("commit"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "machine": environment.get("processor"),
        "device": environment.get("device"),
        "threads, processes": threads,
        "command": " ".join(map(str, environment.get("command", []))),
        "n": "one run with one seed; the spread between seeds is unknown",
    }
    return [(name, str(value)) for name, value in found.items() if value not in (None, "")]


def _predictions(inputs: RunReportInputs) -> Iterator[Section]:
    if inputs.missing:
        yield Section("Predictions", f"Left out: {inputs.missing}")
    if inputs.cards:
        patches = "; beside each image the patches that the first shell samples" if inputs.cards[0].patches else ""
        shown = f"Test images, wrong predictions first{patches}; the bar is the model's confidence."
        yield Section("Predictions", f"{shown} Normal: mistakes have shorter bars.", cards=inputs.cards)


def _results(run: RunFiles, inputs: RunReportInputs) -> Iterator[Section]:
    if run.result is None:
        return
    test = run.result["test"]
    counts = [sum(row) for row in test["confusion"]]
    ranked = sorted(zip(test["per_class"].items(), counts, strict=True), key=lambda item: -(item[0][1] or 0.0))
    rows = [(name, format_number(share), f"{count:,}") for (name, share), count in ranked]
    table = Table(("class", "accuracy", "images"), rows, "Accuracy by class as a table", folded=True)
    text = "Test images, at the checkpoint with the best validation accuracy."
    yield Section("Results", text, [table], _pictures(inputs, "Results"))


def _pictures(inputs: RunReportInputs, section: str) -> list[Picture]:
    """Return the figures of one section."""
    return [
        to_picture(title, shows, inputs.figures[name], normal, inputs.phone_figures.get(name))
        for name in RUN_SECTIONS[section]
        if name in inputs.figures
        for title, shows, normal in [RUN_PICTURES[name]]
    ]


def _diagnostics(run: RunFiles, inputs: RunReportInputs) -> Section:
    found = run.diagnostics
    if found is None:
        hint = "None yet. Run 'quatsphere diagnose RUN' to measure routing, field, vertices and cost."
        return Section("Diagnostics", hint)
    text = f"{found['images']:,} {found['split']} images traced, checkpoint at step {found['step']:,}. {NORMAL_SOURCE}"
    return Section("Diagnostics", text, inputs.diagnostics, _pictures(inputs, "Diagnostics"))


# Parts that need the model and its data


def with_predictions(inputs: RunReportInputs, trained: TrainedModel, dataset: Dataset) -> RunReportInputs:
    """Return the inputs with predictions on test images, and the samples and tokens of one of them."""
    test = dataset.test
    indices = _evenly_spaced(torch.arange(len(test)), MAX_PREDICTED)
    logits = predict_logits(trained.model, dataset, test.images[indices])
    chosen = choose_examples(logits.argmax(1) == test.labels[indices])
    example = int(indices[chosen[0]])
    on_shells = hasattr(trained.model, "layout")
    page, phone = ({}, {}) if not on_shells else draw_twice(lambda: _sample_figures(trained.model, dataset, example))
    return dataclasses.replace(
        inputs,
        figures={**inputs.figures, **page},
        phone_figures={**inputs.phone_figures, **phone},
        cards=[_card(trained.model, dataset, int(indices[i]), logits[i], on_shells) for i in chosen.tolist()],
        images={split: len(getattr(dataset, split)) for split in ("train", "val", "test")},
    )


def choose_examples(correct: Tensor) -> Tensor:
    """Return indices of wrong predictions, at most a third, then of correct ones, both evenly spaced."""
    wrong = _evenly_spaced((~correct).nonzero().flatten(), MAX_CARDS // 3)
    return torch.cat((wrong, _evenly_spaced(correct.nonzero().flatten(), MAX_CARDS - len(wrong))))


def _evenly_spaced(items: Tensor, count: int) -> Tensor:
    return items[torch.linspace(0, len(items) - 1, min(count, len(items))).long()] if len(items) else items


def _card(model: Any, dataset: Dataset, index: int, logits: Tensor, on_shells: bool) -> Card:
    image = dataset.test.images[index]
    probability, predicted = logits.softmax(0).max(0)
    patches = png_uri(patch_sheet(*first_shell_samples(model, image.float() / 255))) if on_shells else None
    truth = dataset.classes[dataset.test.labels[index]]
    picture = png_uri(rgb_pixels(image.numpy()))
    return Card(f"test image {index}", picture, patches, dataset.classes[int(predicted)], float(probability), truth)


def _sample_figures(model: Any, dataset: Dataset, index: int) -> dict[str, Figure]:
    """Return figures of the first shell's samples of one image and of its tokens' norms on every shell."""
    image = dataset.test.images[index]
    points, samples = first_shell_samples(model, image.float() / 255)
    positions = shell_positions(model)
    name = f"{dataset.classes[dataset.test.labels[index]]} (test image {index})"
    preview = sampling_preview(image.numpy() / 255, points, samples, positions[0], name)
    with torch.no_grad():
        _, trace = model(normalize(image.unsqueeze(0), dataset.mean, dataset.std), return_trace=True)
    tokens = (*trace["hidden"][: len(positions) - 1], trace["hidden"][-1])  # after the last step that updates a shell
    norms = [hidden[0].norm(dim=-1).numpy() for hidden in tokens]
    return {"samples": preview, "shells": shell_values(positions, norms, "token norm")}


# Tables


def settings_tables(config: RunConfig) -> list[Table]:
    """Return one table per group of settings, with the defaults, which are the paper's."""
    tables = []
    for group in (part.name for part in dataclasses.fields(config)):
        values = getattr(config, group)
        defaults = type(values)()
        names = [setting.name for setting in dataclasses.fields(values)]
        rows = [(name, str(getattr(values, name)), str(getattr(defaults, name))) for name in names]
        marked = frozenset(index for index, (_, value, default) in enumerate(rows) if value != default)
        tables.append(Table(("setting", "value", "default"), rows, group, marked=marked, folded=True))
    return tables


def diagnostic_tables(run: RunFiles) -> list[Table]:
    """Return the tables of `quatsphere diagnose`, from diagnostics.json."""
    found = run.diagnostics
    if found is None:
        return []
    tables = []
    for table in diagnosis_tables(found):
        texts = [[Text.from_markup(str(cell)).plain for cell in (c.header, *c.cells)] for c in table.columns]
        headings, *rows = zip(*texts, strict=True)
        tables.append(Table(headings, rows, str(table.title), text=table_text(str(table.title))))
    lines = [(line,) for line in (*remark_lines(found), *absent_lines(found))]
    return [*tables, Table(("remark",), lines, "Remarks")] if lines else tables
