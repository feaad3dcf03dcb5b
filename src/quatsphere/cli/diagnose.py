"""quatsphere diagnose RUN: routing, field, vertices, accuracy and cost of a trained run, beside the paper's values."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from quatsphere.cli.parser import Parser, add_data_root, add_json, add_run, at_least

FILE = "diagnostics.json"
"""Name of the result in the run folder; the report and the figures read it."""


def run(words: list[str]) -> int:
    """Measure a run, save the numbers and print them."""
    parser = Parser(prog="quatsphere diagnose", description=__doc__)
    add_run(parser)
    parser.add_argument("--split", choices=("val", "test", "train"), default="val", help="split to measure [val]")
    parser.add_argument("--images", type=at_least(1), metavar="N", default=256, help="number of images to trace [256]")
    parser.add_argument(
        "--accuracy-images", type=at_least(1), metavar="N", help="number of images of the split to classify [all]"
    )
    add_data_root(parser)
    parser.add_argument("--no-save", action="store_true", help=f"do not write {FILE} into the run folder")
    parser.add_argument(
        "--fingerprint", action="store_true", help="only the values that the paper reports, beside ours"
    )
    add_json(parser)
    options = parser.parse_args(words)
    from quatsphere.cli.console import read_dataset_of
    from quatsphere.diagnostics.tables import print_diagnosis
    from quatsphere.storage.atomic import finite
    from quatsphere.train.load import load

    trained = load(options.run, options.checkpoint)
    if options.fingerprint:
        return show_fingerprint(trained, options)
    dataset = read_dataset_of(trained, options.data_root)
    found = diagnose_split(trained, dataset, options.split, options.images, options.accuracy_images)
    saved = None if options.no_save else save_diagnosis(trained, found)
    if options.json:
        print(json.dumps(finite(found)))
        return 0
    print_diagnosis(found, Console())
    if saved is not None:
        print(f"numbers: {saved}")
    return 0


def show_fingerprint(trained: Any, options: Any) -> int:
    """Print the paper's diagnostics beside ours, with a verdict for each."""
    from quatsphere.cli.console import read_dataset_of
    from quatsphere.diagnostics.fingerprint import REQUIRED_SECTIONS, fingerprint
    from quatsphere.diagnostics.tables import fingerprint_table
    from quatsphere.diagnostics.traced_model import has_field
    from quatsphere.errors import ConfigError

    if not has_field(trained.model):
        raise ConfigError(f"run '{trained.run.name}' has a model without quaternions; name a run of QSV")
    dataset = read_dataset_of(trained, options.data_root)
    sizes = options.split, options.images, options.accuracy_images
    found = fingerprint(diagnose_split(trained, dataset, *sizes, only=REQUIRED_SECTIONS))
    if options.json:
        print(json.dumps(found))
        return 0
    title = f"{trained.run.name}, step {trained.step}: compared with the paper's converged run at full size"
    Console().print(fingerprint_table(found, title))
    return 0


def diagnose_split(
    trained: Any,
    dataset: Any,
    split: Literal["train", "val", "test"] = "val",
    images: int = 256,
    accuracy_images: int | None = None,
    only: Collection[str] | None = None,
) -> dict[str, Any]:
    """Diagnose a run on the data it was trained on, with a bar; `only` names the sections, by default all."""
    from quatsphere.cli.console import Ticker
    from quatsphere.diagnostics import diagnose
    from quatsphere.diagnostics.diagnose import SECTIONS

    with Ticker("diagnosing") as ticker:
        found = diagnose(
            trained.model,
            dataset,
            split=split,
            images=images,
            accuracy_images=accuracy_images,
            seed=trained.config.train.seed,
            metrics=trained.run.read_metrics(),
            only=tuple(SECTIONS) if only is None else only,
            progress=lambda section, done, total: ticker(done, total),
        )
    return {"run": trained.run.name, "step": trained.step, **found}


def save_diagnosis(trained: Any, found: dict[str, Any]) -> Path:
    """Write a diagnosis into the folder of its run, or the current one for a model folder, and return its path."""
    from quatsphere.storage.atomic import write_json

    path: Path = trained.output_folder / FILE
    write_json(path, found)
    return path
