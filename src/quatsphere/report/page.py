"""One self-contained HTML page: text escaped, pictures inside, no script, no network."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quatsphere.files.atomic import write_text

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:980px;margin:2em auto;padding:0 1em;color:#222}"
    "img{max-width:100%;height:auto}h2{margin-top:2em;border-bottom:1px solid #ccc}"
    "table{border-collapse:collapse}td{padding:.15em 1em .15em 0;vertical-align:top}td:first-child{color:#666}"
)


@dataclass(frozen=True)
class Section:
    """A heading, a sentence, a picture."""

    title: str
    text: str
    png: bytes


def write_page(path: Path, title: str, facts: Mapping[str, object], sections: Sequence[Section]) -> None:
    """Write the page atomically; every word in it is shown as text, whatever it contains."""
    rows = "".join(
        f"<tr><td>{html.escape(str(name))}</td><td>{html.escape(str(value))}</td></tr>" for name, value in facts.items()
    )
    body = "".join(
        f"<h2>{html.escape(s.title)}</h2><p>{html.escape(s.text)}</p>"
        f'<img alt="{html.escape(s.title)}" src="data:image/png;base64,{base64.b64encode(s.png).decode()}">'
        for s in sections
    )
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    write_text(
        path,
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{STYLE}</style></head>'
        f"<body><h1>{html.escape(title)}</h1><table>{rows}</table>{body}</body></html>\n",
    )
