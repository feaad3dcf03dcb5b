"""quatsphere demo: train QSV on the embedded digits, diagnose it, and write four pages about it.

report.html, view.html (the shells in 3-D), live.html (draw a digit; the page runs the trained model) and photo.html (a
model trained on CIFAR-10 classifies a photograph, or pictures of yours).
"""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from quatsphere.cli.parser import SettingsParser, add_json, add_open, open_page

PHOTO_MODEL = "cifar10-qsv"
"""Bundled model that classifies a photograph."""
DIAGNOSED = 64
"""Number of validation images that the demo traces for its diagnosis."""


def run(words: list[str]) -> int:
    """Train the demo preset and write its pages."""
    parser = SettingsParser(
        prog="quatsphere demo",
        usage="quatsphere demo [--run-dir DIR] [--open] [--GROUP.FIELD X]",
        description=__doc__,
        epilog="Any --GROUP.FIELD VALUE of 'quatsphere train' can be added.",
        preset="demo",
    )
    parser.add_argument(
        "--run-dir", metavar="DIR", default="runs/demo", help="default: runs/demo, then runs/demo-2, ..."
    )
    add_json(parser, "print the result as JSON")
    add_open(parser)
    options = parser.parse_config(words)
    from quatsphere.cli.console import LiveReporter, evaluation_table
    from quatsphere.report import require_report
    from quatsphere.storage.run_folder import free_folder
    from quatsphere.train import train

    require_report()
    folder = free_folder(options.run_dir)
    result = train(options.config, folder, reporter=LiveReporter())
    pages = write_pages(Path(folder))
    if options.json:
        print(json.dumps({**result, **pages}))
    else:
        Console().print(evaluation_table(result["test"], f"{result['data']}: {result['parameters']:,} parameters"))
        print(f"test accuracy {result['test_accuracy']:.3f}")
        for name, path in pages.items():
            print(f"{name}: {path}")
    if options.open:
        open_page(pages["report"])
    return 0


def write_pages(folder: Path) -> dict[str, str]:
    """Diagnose the run, write the pages that its model allows, and the report, which links to them."""
    from quatsphere.cli.console import note, read_dataset_of
    from quatsphere.cli.diagnose import diagnose_with_bar, save_diagnosis
    from quatsphere.diagnostics.view_trace import example_images
    from quatsphere.export.live import live_obstacle, photo_example, write_live_page
    from quatsphere.report.run_report import write_run_report
    from quatsphere.report.view import write_view
    from quatsphere.train.load import load

    trained = load(str(folder))
    dataset = read_dataset_of(trained)
    save_diagnosis(trained, diagnose_with_bar(trained, dataset, images=DIAGNOSED))
    pages = {"report": str(folder / "report.html")}
    if hasattr(trained.model, "layout"):
        pages["view"] = str(folder / "view.html")
        write_view(folder / "view.html", trained, example_images(dataset))
    if live_obstacle(trained) is None:
        photo = load(PHOTO_MODEL)
        example = photo_example(photo)
        pages |= {name: str(folder / f"{name}.html") for name in ("live", "photo")}
        write_live_page(Path(pages["live"]), trained, dataset.test.images, f"{len(dataset.test)} test images")
        write_live_page(Path(pages["photo"]), photo, example.pixels[None], "one photograph", [example])
    write_run_report(folder, folder / "report.html", lambda: (trained, dataset), note)
    return pages
