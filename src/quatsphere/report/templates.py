"""One HTML file from a template and its assets: every name escaped, nothing from the network, only our script runs."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from quatsphere.files.atomic import write_text

ASSETS = Path(__file__).with_name("assets")


def asset(*names: str) -> str:
    """The text of asset files, one after the other."""
    return "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in names)


def inline_script(*names: str) -> tuple[Markup, str]:
    """(script for the page, its hash for the policy): the files as one function, so that no name leaks."""
    text = f"'use strict';\n(() => {{\n{asset(*names)}\n}})();\n"
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(text), f"'sha256-{digest}'"


def policy(scripts: str = "'none'") -> str:
    """Content-Security-Policy: inline style and pictures, this script and no other, no connection at all."""
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {scripts}"


def render(template: str, styles: tuple[str, ...], **facts: Any) -> str:
    """The page of a template in `assets`."""
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(style=Markup(asset(*styles)), **facts)


def write_page(path: Path, template: str, styles: tuple[str, ...], **facts: Any) -> None:
    """Write the page atomically; what is no Unicode in a file's name is shown escaped."""
    text = render(template, styles, **facts)
    write_text(path, text.encode("utf-8", "backslashreplace").decode())
