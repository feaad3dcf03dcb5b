"""quatsphere demo: train QSV on the embedded digits, print a table, and leave a report and a 3-D view."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from quatsphere.cli.options import Options


def run(words: list[str]) -> int:
    """Train the demo preset and show it."""
    parser = Options(
        prog="quatsphere demo", description=__doc__, epilog="any --GROUP.FIELD VALUE of 'quatsphere train' works too"
    )
    parser.add_argument(
        "--run-dir", metavar="DIR", default="runs/demo", help="default: runs/demo, then runs/demo-2, ..."
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    asked, rest = parser.parse_known_args(words)
    from quatsphere.cli.parser import resolve

    config = resolve("demo", ["--preset", "demo", *rest]).config
    from quatsphere.cli.console import LiveReporter, evaluation_table
    from quatsphere.report import require_report
    from quatsphere.train import train

    require_report()
    folder = free_folder(asked.run_dir)
    result = train(config, folder, reporter=LiveReporter())
    pages = write_pages(Path(folder))
    if asked.json:
        print(json.dumps({**result, **pages}))
        return 0
    Console().print(evaluation_table(result["test"], f"{result['data']}: {result['parameters']:,} parameters"))
    print(f"test accuracy {result['test_accuracy']:.3f}")
    for name, path in pages.items():
        print(f"{name}: {path}")
    return 0


def write_pages(folder: Path) -> dict[str, str]:
    """The view, where the model has shells, and the report, which links to it."""
    from quatsphere.cli.console import note
    from quatsphere.report.run_report import write_run_report
    from quatsphere.report.view import example_images, write_view
    from quatsphere.train.load import data_of, open_run

    trained = open_run(str(folder))
    dataset = data_of(trained)
    pages = {"report": str(folder / "report.html")}
    if hasattr(trained.model, "layout"):
        pages["view"] = str(folder / "view.html")
        write_view(folder / "view.html", trained, example_images(dataset))
    write_run_report(folder, folder / "report.html", lambda: (trained, dataset), note)
    return pages


def free_folder(wanted: str) -> str:
    """The wanted folder, or with a number where one exists already: a demo never asks and never overwrites."""
    from quatsphere.errors import ConfigError

    try:
        Path(wanted).absolute().parent.mkdir(parents=True, exist_ok=True)
        candidates = [wanted, *(f"{wanted}-{number}" for number in range(2, 10_000))]
        return next(name for name in candidates if not Path(name).exists())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"cannot use run folder ({wanted!r:.120}: {reason}); use another --run-dir") from error
