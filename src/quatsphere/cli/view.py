"""quatsphere view RUN: write a page with a 3-D view of the shells of a trained model and of every vertex.

The command computes a trace of one or two images and writes it beside the page. The page contains a copy of the trace
and opens from disk without a server. --live writes a page that runs the model itself: draw a digit or show it a picture
(the same as 'quatsphere export RUN --to html').
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quatsphere.cli.parser import Parser, add_data_root, add_json, add_open, add_run, open_page


def run(words: list[str]) -> int:
    """Compute the trace and write the page."""
    parser = Parser(prog="quatsphere view", description=__doc__)
    add_run(parser)
    parser.add_argument(
        "--image", metavar="FILE", nargs="+", default=[], help="one or two PNG, JPEG or WebP (default: two test images)"
    )
    parser.add_argument("-o", "--output", metavar="PAGE", help="page to write (default: view.html in the run's folder)")
    parser.add_argument("--live", action="store_true", help="a page that runs the model (default name: live.html)")
    add_data_root(parser)
    add_json(parser, "print the paths as JSON")
    add_open(parser)
    options = parser.parse_args(words)
    from quatsphere.cli.console import note, read_dataset_of
    from quatsphere.report import require_report

    require_report()
    from quatsphere.diagnostics.view_trace import MAX_IMAGES, example_images
    from quatsphere.report.page import page_path
    from quatsphere.report.view import write_view
    from quatsphere.train.load import load

    trained = load(options.run, options.checkpoint)
    page = page_path(options.output, trained.output_folder / ("live.html" if options.live else "view.html"))
    if options.live:
        from quatsphere.cli.export import write_live

        write_live(trained, page, options.image or None, options.data_root)
        print(json.dumps({"live": str(page)}) if options.json else f"live: {page}")
    else:
        if len(options.image) > MAX_IMAGES:
            note(f"{MAX_IMAGES} images are shown; the other {len(options.image) - MAX_IMAGES} left out")
        files = options.image[:MAX_IMAGES]
        images = read_files(trained, files) if files else example_images(read_dataset_of(trained, options.data_root))
        paths = {"view": str(page), "trace": str(write_view(page, trained, images))}
        print(json.dumps(paths) if options.json else f"view: {paths['view']}  (trace: {paths['trace']})")
    if options.open:
        open_page(page)
    return 0


def read_files(trained: Any, names: list[str]) -> list[Any]:
    """Read image files as the model reads them, without a class."""
    from quatsphere.diagnostics.view_trace import ViewImage
    from quatsphere.train.predict import image_pixels

    return [ViewImage(Path(name).name, image_pixels(name, trained.config), None) for name in names]
