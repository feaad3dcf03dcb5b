"""quatsphere diagnose RUN: routing, field, vertices, accuracy and cost of a trained run, beside the paper's values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from quatsphere.cli.parser import Parser, add_data_root, add_json, add_run, at_least

FILE = "diagnostics.json"
"""Name of the result in the run folder; the report and the figures read it."""


def run(words: list[str]) -> int:
    """Measure a run, save the numbers and print them."""
    parser = Parser(prog="quatsphere diagnose", description=__doc__)
    add = parser.add_argument
    add_run(parser)
    add("--split", choices=("val", "test", "train"), default="val", help="split to measure [val]")
    add("--images", type=at_least(1), metavar="N", default=256, help="number of images to trace [256]")
    add("--accuracy-images", type=at_least(1), metavar="N", help="number of images of the split to classify [all]")
    add_data_root(parser)
    add("--no-save", action="store_true", help=f"do not write {FILE} into the run folder")
    add("--fingerprint", action="store_true", help="only the values that the paper reports, beside ours")
    add_json(parser)
    options = parser.parse_args(words)
    from quatsphere.cli.console import read_dataset_of
    from quatsphere.diagnostics.tables import print_diagnosis
    from quatsphere.storage.atomic import finite
    from quatsphere.train.load import load

    trained = load(options.run, options.checkpoint)
    sizes = {name: getattr(options, name) for name in ("split", "images", "accuracy_images")}
    if options.fingerprint:
        return show_fingerprint(trained, options, sizes)
    dataset = read_dataset_of(trained, options.data_root)
    found = diagnose_with_bar(trained, dataset, **sizes)
    saved = None if options.no_save else save_diagnosis(trained, found)
    if options.json:
        print(json.dumps(finite(found)))
        return 0
    print_diagnosis(found, Console())
    if saved is not None:
        print(f"numbers: {saved}")
    return 0


def show_fingerprint(trained: Any, options: Any, sizes: dict[str, Any]) -> int:
    """Print the paper's diagnostics beside ours, with a verdict for each."""
    from quatsphere.cli.console import read_dataset_of
    from quatsphere.diagnostics.fingerprint import REQUIRED_SECTIONS, fingerprint
    from quatsphere.diagnostics.tables import fingerprint_table
    from quatsphere.diagnostics.traced_model import has_field
    from quatsphere.errors import ConfigError

    if not has_field(trained.model):
        raise ConfigError(f"run '{trained.run.name}' has a model without quaternions; name a run of QSV")
    dataset = read_dataset_of(trained, options.data_root)
    found = fingerprint(diagnose_with_bar(trained, dataset, **sizes, only=REQUIRED_SECTIONS))
    if options.json:
        print(json.dumps(found))
        return 0
    title = f"{trained.run.name}, step {trained.step}: compared with the paper's converged run at full size"
    Console().print(fingerprint_table(found, title))
    return 0


def diagnose_with_bar(trained: Any, dataset: Any, **options: Any) -> dict[str, Any]:
    """Diagnose a run on the data it was trained on; `options` as in `quatsphere.diagnostics.diagnose`."""
    from quatsphere.cli.console import Ticker

    with Ticker("diagnosing") as ticker:
        found = trained.diagnose(dataset, progress=lambda section, done, total: ticker(done, total), **options)
    return {"run": trained.run.name, "step": trained.step, **found}


def save_diagnosis(trained: Any, found: dict[str, Any]) -> Path:
    """Write a diagnosis into the folder of its run, or the current one for a model folder, and return its path."""
    from quatsphere.storage.sealed_json import write_sealed

    path: Path = trained.output_folder / FILE
    write_sealed(path, found)
    return path
