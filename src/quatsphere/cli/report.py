"""quatsphere report RUN_OR_RESULTS: one HTML page about a run, or about all runs of a study, with everything inside."""

from __future__ import annotations

import json
from pathlib import Path

from quatsphere.cli.parser import Parser, add_data_root, add_json, add_run


def run(words: list[str]) -> int:
    """Write the report."""
    parser = Parser(prog="quatsphere report", description=__doc__)
    add_run(parser, "run_or_results", "folder of a run, or results folder of a study")
    parser.add_argument("-o", "--output", metavar="PAGE", help="page to write (default: report.html in the folder)")
    add_data_root(parser)
    add_json(parser, "print the path as JSON")
    asked = parser.parse_args(words)
    from quatsphere.errors import ConfigError
    from quatsphere.report.run_pictures import need_report, page_path

    need_report()
    folder = Path(asked.run_or_results)
    is_run = (folder / "config.yaml").is_file()
    if not is_run and not (folder / "cells").is_dir():
        raise ConfigError(
            f"neither a run nor results in {folder} (looked for config.yaml and cells/); name one of them"
        )
    if not is_run and asked.checkpoint != "best":
        raise ConfigError(f"--checkpoint is for runs, and {folder} holds the results of a study; leave it out")
    page = page_path(asked.output, folder / "report.html")
    if is_run:
        from quatsphere.report.run_report import write_run_report

        write_run_report(folder, page, asked.data_root, asked.checkpoint)
    else:
        from quatsphere.report.study_report import write_study_report

        write_study_report(folder, page)
    print(json.dumps({"report": str(page)}) if asked.json else f"report: {page}")
    return 0
