"""What a report shows of a run that only its model can tell: predictions, samples, settings beside the paper's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from rich.table import Table as TerminalTable
from rich.text import Text
from torch import Tensor

from quatsphere.cli import diagnosis
from quatsphere.cli.console import note
from quatsphere.cli.figure_data import run_figures
from quatsphere.cli.looks import sampled, shell_positions
from quatsphere.cli.settings import group_types
from quatsphere.cli.trained import Trained, data_of, open_run, stored_config
from quatsphere.config import RunConfig
from quatsphere.data import Dataset
from quatsphere.data.augment import normalize
from quatsphere.errors import CheckpointError, ConfigError, DataError
from quatsphere.report import pictures
from quatsphere.report.images import patch_sheet, picture_of, png_uri
from quatsphere.report.page import Card, Picture, Table, draw, write_report
from quatsphere.report.run_files import RunFiles, read_run_files
from quatsphere.report.run_page import Looks, run_report
from quatsphere.train.evaluation import predict_logits

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
