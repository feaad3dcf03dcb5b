"""quatsphere report RUN_OR_RESULTS: write one self-contained HTML page about a run, or about all runs of a study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from quatsphere.cli.parser import Parser, add_data_root, add_json, add_open, add_run, open_page

if TYPE_CHECKING:
    from quatsphere.data import Dataset


def run(words: list[str]) -> int:
    """Write the report."""
    parser = Parser(prog="quatsphere report", description=__doc__)
    add_run(parser, "run_or_results", "folder of a run, or results folder of a study")
    parser.add_argument("-o", "--output", metavar="PAGE", help="page to write (default: report.html in the folder)")
    add_data_root(parser)
    add_json(parser, "print the path as JSON")
    add_open(parser)
    options = parser.parse_args(words)
    from quatsphere.errors import ConfigError
    from quatsphere.report import require_report

    require_report()
    from quatsphere.report.page import page_path

    folder = Path(options.run_or_results)
    is_run = (folder / "config.yaml").is_file()
    if not is_run and not (folder / "cells").is_dir():
        raise ConfigError(
            f"neither a run nor results in {folder} (looked for config.yaml and cells/); name one of them"
        )
    if not is_run and options.checkpoint != "best":
        raise ConfigError(f"--checkpoint is for runs, and {folder} holds the results of a study; leave it out")
    page = page_path(options.output, folder / "report.html")
    if is_run:
        from quatsphere.cli.console import note, read_dataset_of
        from quatsphere.report.run_report import write_run_report
        from quatsphere.train.load import TrainedModel, load

        def load_with_data() -> tuple[TrainedModel, Dataset]:
            trained = load(str(folder), options.checkpoint)
            return trained, read_dataset_of(trained, options.data_root)

        write_run_report(folder, page, load_with_data, note)
    else:
        from quatsphere.report.study_report import write_study_report

        write_study_report(folder, page)
    print(json.dumps({"report": str(page)}) if options.json else f"report: {page}")
    if options.open:
        open_page(page)
    return 0
