"""quatsphere diagnose RUN: routing, field, vertices, accuracy and cost of a trained run, beside the paper's values."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

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
    asked = parser.parse_args(words)
    from quatsphere.diagnostics.tables import print_diagnosis
    from quatsphere.storage.atomic import finite, write_json
    from quatsphere.train.load import load

    trained = load(asked.run, asked.checkpoint)
    if asked.fingerprint:
        return show_fingerprint(trained, asked)
    found = {"run": trained.run.name, "step": trained.step, **diagnose_split(trained, asked)}
    if not asked.no_save:
        write_json(trained.run.path / FILE, found)
    if asked.json:
        print(json.dumps(finite(found)))
        return 0
    print_diagnosis(found, Console())
    if not asked.no_save:
        print(f"numbers: {trained.run.path / FILE}")
    return 0


def show_fingerprint(trained: Any, asked: Any) -> int:
    """Print the paper's diagnostics beside ours, with a verdict for each."""
    from quatsphere.diagnostics.fingerprint import REQUIRED_SECTIONS, fingerprint
    from quatsphere.diagnostics.tables import fingerprint_table
    from quatsphere.diagnostics.traced_model import has_field
    from quatsphere.errors import ConfigError

    if not has_field(trained.model):
        raise ConfigError(f"run '{trained.run.name}' has a model without quaternions; name a run of QSV")
    found = fingerprint(diagnose_split(trained, asked, REQUIRED_SECTIONS))
    if asked.json:
        print(json.dumps(found))
        return 0
    title = f"{trained.run.name}, step {trained.step}: compared with the paper's converged run at full size"
    Console().print(fingerprint_table(found, title))
    return 0


def diagnose_split(trained: Any, asked: Any, only: Collection[str] | None = None) -> dict[str, Any]:
    """Diagnose a run on the data it was trained on; `only` names the sections, by default all."""
    from quatsphere.cli.console import Ticker, read_dataset_of
    from quatsphere.diagnostics import diagnose
    from quatsphere.diagnostics.sections import SECTIONS

    dataset = read_dataset_of(trained, asked.data_root)
    with Ticker("diagnosing") as ticker:
        return diagnose(
            trained.model,
            dataset,
            split=asked.split,
            images=asked.images,
            accuracy_images=asked.accuracy_images,
            seed=trained.config.train.seed,
            metrics=trained.run.read_metrics(),
            only=tuple(SECTIONS) if only is None else only,
            progress=lambda section, done, total: ticker(done, total),
        )
