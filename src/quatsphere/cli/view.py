"""quatsphere view RUN: a page on which one turns the shells of a trained model and looks at every vertex.

The command computes a trace of one or two images and writes it beside the page, which carries a copy and opens from
disk without a server.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quatsphere.cli.parser import Parser, add_data_root, add_json, add_run

SIDE_BY_SIDE = 2


def run(words: list[str]) -> int:
    """Compute the trace, draw the page."""
    parser = Parser(prog="quatsphere view", description=__doc__)
    add_run(parser)
    parser.add_argument(
        "--image", metavar="FILE", nargs="+", default=[], help="one or two PNG, JPEG or WebP (default: two test images)"
    )
    parser.add_argument("-o", "--output", metavar="PAGE", help="page to write (default: view.html in the run's folder)")
    add_data_root(parser)
    add_json(parser, "print the paths as JSON")
    asked = parser.parse_args(words)
    from quatsphere.cli.console import note
    from quatsphere.report.run_pictures import need_report, page_path
    from quatsphere.train.load import open_run

    need_report()
    trained = open_run(asked.run, asked.checkpoint)
    page = page_path(asked.output, trained.run.path / "view.html")
    if len(asked.image) > SIDE_BY_SIDE:
        note(f"{SIDE_BY_SIDE} images stand side by side; the other {len(asked.image) - SIDE_BY_SIDE} left out")
    names = asked.image[:SIDE_BY_SIDE]
    shown = read_files(trained, names) if names else two_test_images(trained, asked.data_root)
    paths = write_view_of(trained, shown, page)
    print(json.dumps(paths) if asked.json else f"view: {paths['view']}  (trace: {paths['trace']})")
    return 0


def write_view_of(trained: Any, shown: list[Any], page: Path) -> dict[str, str]:
    """The trace file and the page beside it."""
    from quatsphere.report.view import write_trace, write_view
    from quatsphere.report.view_trace import compute_trace

    trace = page.with_suffix(".safetensors")
    computed = compute_trace(trained, shown)
    write_trace(trace, computed)
    write_view(page, trace)
    return {"view": str(page), "trace": str(trace)}


def read_files(trained: Any, names: list[str]) -> list[Any]:
    """Image files as the model sees them; what they show is not known."""
    from quatsphere.cli.predict import read_image
    from quatsphere.report.view_trace import Shown

    return [Shown(Path(name).name, read_image(Path(name), trained.config), None) for name in names]


def two_test_images(trained: Any, root: str | None) -> list[Any]:
    """The first test images of two different classes."""
    from quatsphere.report.view_trace import Shown
    from quatsphere.train.load import data_of

    test = data_of(trained, root).test
    others = (test.labels != test.labels[0]).nonzero().flatten()
    chosen = [0, *others[: SIDE_BY_SIDE - 1].tolist()]
    return [Shown(f"test image {index}", test.images[index], int(test.labels[index])) for index in chosen]
