"""The 3-D view: one page that carries its trace and draws it, without a server or a network."""

from __future__ import annotations

import base64
from pathlib import Path

from markupsafe import Markup

from quatsphere.report.templates import inline_script, policy, write_page
from quatsphere.report.trace import parse, read_bytes

SCRIPTS = ("trace", "algebra", "colours", "stage", "insets", "details", "main")


def write_view(page: Path, trace: Path) -> None:
    """Draw the trace file as a page."""
    data = read_bytes(trace)
    meta, _ = parse(data, str(trace))
    script, digest = inline_script(*(f"view/{name}.js" for name in SCRIPTS))
    write_page(
        page,
        "view.html.j2",
        ("base.css", "view.css"),
        meta=meta,
        script=script,
        policy=policy(digest),
        trace=Markup(base64.b64encode(data).decode()),
    )
