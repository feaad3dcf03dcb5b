"""What a report shows of a run that only its model can tell: predictions, samples, settings beside the paper's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.table import Table as TerminalTable
from rich.text import Text
from torch import Tensor

from quatsphere.cli.console import note
from quatsphere.config import RunConfig
from quatsphere.config.resolve import group_types
from quatsphere.data import Dataset
from quatsphere.data.augment import normalize
from quatsphere.diagnostics import tables as diagnosis
from quatsphere.errors import CheckpointError, ConfigError, DataError
from quatsphere.report import pictures
from quatsphere.report.figure_data import run_figures
from quatsphere.report.page import Card, Picture, Report, Section, Table, Tile, draw, write_report
from quatsphere.report.pictures import patch_sheet, picture_of, png_uri
from quatsphere.report.run_files import RunFiles, read_object, read_run_files
from quatsphere.report.run_pictures import sampled, shell_positions
from quatsphere.train.evaluation import predict_logits
from quatsphere.train.load import Trained, data_of, open_run, stored_config

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


ASKED, SHOWN = 512, 24
"""Test images that the model is asked about, spread over the test set, and how many of them the page shows."""


def write_run_report(folder: Path, page: Path, root: str | None = None, checkpoint: str = "best") -> None:
    """The report of a run; without its data or weights it says so and shows the rest."""
    run = read_run_files(folder)
    looks = Looks(
        figures=dict(run_figures([run], lambda message: None)),
        diagnostics=diagnostic_tables(run),
        settings=settings_tables(stored_config(run.path / "config.yaml")),
    )
    try:
        trained = open_run(str(folder), checkpoint)
        looks = look(trained, data_of(trained, root), looks)
    except (DataError, CheckpointError, ConfigError) as error:
        note(f"predictions are left out: {error}")
        looks = dataclasses.replace(looks, missing=str(error))
    view = page.with_name("view.html")
    links = [(quote(view.name), "Turn the shells: open the 3-D view")] if view.is_file() else []
    write_report(page, run_report(run, looks, links))


def look(trained: Trained, dataset: Dataset, looks: Looks) -> Looks:
    """Predictions on test images, and one image on its way in."""
    test = dataset.test
    asked = _spread(torch.arange(len(test)), ASKED)
    logits = predict_logits(trained.model, dataset, test.images[asked])
    chosen = choose(logits.argmax(1) == test.labels[asked])
    on_shells = hasattr(trained.model, "layout")
    return dataclasses.replace(
        looks,
        cards=[card(trained.model, dataset, int(asked[i]), logits[i], on_shells) for i in chosen.tolist()],
        samples=way_in(trained.model, dataset, int(asked[chosen[0]])) if on_shells else (),
        images={split: len(getattr(dataset, split)) for split in ("train", "val", "test")},
    )


def choose(right: Tensor, count: int = SHOWN) -> Tensor:
    """Up to a third wrong answers, then right ones, both spread over the images asked about."""
    wrong = _spread((~right).nonzero().flatten(), count // 3)
    return torch.cat((wrong, _spread(right.nonzero().flatten(), count - len(wrong))))


def _spread(items: Tensor, count: int) -> Tensor:
    """At most `count` of the items, evenly spaced."""
    return items[torch.linspace(0, len(items) - 1, min(count, len(items))).long()] if len(items) else items


def card(model: Any, dataset: Dataset, index: int, logits: Tensor, on_shells: bool) -> Card:
    """One test image with what the model samples of it and says to it."""
    image = dataset.test.images[index]
    sure, said = logits.softmax(0).max(0)
    patches = png_uri(patch_sheet(*sampled(model, image.float() / 255))) if on_shells else None
    truth = dataset.classes[dataset.test.labels[index]]
    shown = png_uri(picture_of(image.numpy()))
    return Card(f"test image {index}", shown, patches, dataset.classes[int(said)], float(sure), truth)


def way_in(model: Any, dataset: Dataset, index: int) -> list[Picture]:
    """Where the vertices look in one image, and the norm of its tokens on every shell."""
    image = dataset.test.images[index]
    places, samples = sampled(model, image.float() / 255)
    positions = shell_positions(model)
    name = f"{dataset.classes[dataset.test.labels[index]]} (test image {index})"
    view = pictures.preview(image.numpy() / 255, places, samples, positions[0], name)
    norms = pictures.shells(positions, token_norms(model, dataset, image), "token norm")
    text = "A test image, the 25 samples of every first-shell vertex, and the shell they paint"
    text += " (its far side small and pale)." if positions[0].shape[1] == 3 else "."
    return [
        draw("What the first shell samples", text, view),
        draw("Shells", "Norm of the token at every vertex for the same image, outer shell first.", norms),
    ]


def token_norms(model: Any, dataset: Dataset, image: Tensor) -> list[Any]:
    """Norm of the tokens on every shell, after the last step that writes there."""
    with torch.no_grad():
        _, trace = model(normalize(image.unsqueeze(0), dataset.mean, dataset.std), return_trace=True)
    first = trace["hidden"][: len(model.layout.shells) - 1]
    return [hidden[0].norm(dim=-1).numpy() for hidden in (*first, trace["hidden"][-1])]


def settings_tables(config: RunConfig) -> list[Table]:
    """Every setting of every group beside its default, which is the paper's."""
    tables = []
    for group, kind in group_types(config.model.name).items():
        here, default = getattr(config, group), kind()
        names = [field.name for field in dataclasses.fields(kind)]
        rows = [(name, str(getattr(here, name)), str(getattr(default, name))) for name in names]
        marked = frozenset(index for index, (_, value, usual) in enumerate(rows) if value != usual)
        tables.append(Table(group, ("setting", "here", "default"), rows, marked=marked, folded=True))
    return tables


def diagnostic_tables(run: RunFiles) -> list[Table]:
    """The tables of `quatsphere diagnose`, from the file it left."""
    found = run.diagnostics
    if found is None:
        return []
    lines = [*diagnosis.remarks(found), *diagnosis.absences(found)]
    tables = [plain_table(table) for table in diagnosis.tables_of(found)]
    return [*tables, Table("Remarks", ("remark",), [(line,) for line in lines])] if lines else tables


def plain_table(table: TerminalTable) -> Table:
    """A terminal table as text."""
    columns = [[Text.from_markup(str(cell)).plain for cell in column.cells] for column in table.columns]
    headings = [Text.from_markup(str(column.header)).plain for column in table.columns]
    return Table(str(table.title), headings, list(zip(*columns, strict=True)))
