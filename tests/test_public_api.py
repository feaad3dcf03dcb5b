"""The public names and their signatures are those of tests/public_api.txt: a change of the interface shows in a diff.

After an intended change, write the file again with `python tests/test_public_api.py`.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import quatsphere

LISTED = Path(__file__).with_name("public_api.txt")


def signatures() -> str:
    """One line per public name, sorted, with its signature."""
    public = {name: getattr(quatsphere, name) for name in sorted(quatsphere.__all__) if name != "__version__"}
    lines = [
        f"{'class ' if inspect.isclass(member) else ''}{name}{inspect.signature(member)}\n"
        for name, member in public.items()
    ]
    return re.sub(r"<(\w+)[^<>]* at 0x\w+>", r"<\1>", "".join(lines))


def test_public_names_and_signatures() -> None:
    assert signatures() == LISTED.read_text()


def test_public_names_are_listed_and_documented() -> None:
    assert dir(quatsphere) == sorted(quatsphere.__all__)
    assert set(quatsphere._HOME) == set(quatsphere.__all__) - {"__version__"}
    assert all(getattr(quatsphere, name).__doc__ for name in quatsphere._HOME)
    with pytest.raises(AttributeError, match="module 'quatsphere' has no attribute 'nothing'"):
        _ = quatsphere.nothing  # type: ignore[attr-defined]


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, quatsphere; quatsphere.load_preset('lite'); raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


if __name__ == "__main__":
    LISTED.write_text(signatures())
