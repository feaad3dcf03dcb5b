"""quatsphere figures [RUN...]: draw the paper's figures and others from runs, results and benchmarks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from quatsphere.cli.parser import Parser, add_json
from quatsphere.errors import ConfigError

_EPILOG = """\
Without RUN or --results only the paper's schematic figures are drawn, with the paper's costs as labels. Figures of the
inside of a RUN need its diagnostics.json, which 'quatsphere diagnose RUN' writes."""


def run(words: list[str]) -> int:
    """Draw every figure that the named files allow."""
    parser = Parser(prog="quatsphere figures", description=__doc__, epilog=_EPILOG)
    parser.add_argument("runs", metavar="RUN", nargs="*", help="folders of runs")
    parser.add_argument("--results", metavar="DIR", help="folder of a study: ablations, costs, the probe of beta")
    parser.add_argument("--bench", metavar="FILE", help="JSON of 'quatsphere bench': throughput, scaling")
    parser.add_argument("-o", "--output", metavar="DIR", default="figures", help="folder for the figures [figures]")
    parser.add_argument("--format", choices=("svg", "pdf", "png"), default="svg", help="kind of file [svg]")
    add_json(parser, "print the paths as JSON")
    options = parser.parse_args(words)
    written: list[Path] = []
    for name, figure in drawings(options):
        from quatsphere.report.figures import save

        path = free_path(name, options, written)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot use folder ({path.parent}: {error.strerror}); use another -o") from error
        save(figure, path)
        written.append(path)
    if options.json:
        print(json.dumps([str(path) for path in written]))
    else:
        print("\n".join(map(str, written)))
    return 0


def drawings(options: Any) -> Iterator[tuple[str, Any]]:
    """Return names and figures, drawn one by one; all files are read before the first figure is written."""
    from quatsphere.report import require_report

    require_report()
    from quatsphere.cli.console import note
    from quatsphere.report import figure_data as data
    from quatsphere.report.run_files import read_run_files

    runs = [read_run_files(path) for path in options.runs]
    records = data.read_results(options.results) if options.results else []
    benched = list(data.bench_figures(options.bench)) if options.bench else []
    return chain(
        data.schematics(*data.costs_of(records)), data.run_figures(runs, note), data.result_figures(records), benched
    )


def free_path(name: str, options: Any, taken: list[Path]) -> Path:
    """Return an unused path for a figure; characters that are unsafe in file names are replaced."""
    clean = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:120]
    candidates = (
        Path(options.output) / f"{clean}{number}.{options.format}" for number in ("", *map("-{}".format, range(2, 999)))
    )
    return next(path for path in candidates if path not in taken)
