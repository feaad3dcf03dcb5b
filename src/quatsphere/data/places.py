"""Where data may lie: what the user names, else the folder in QUATSPHERE_DATA, else what was downloaded."""

from __future__ import annotations

import os
from pathlib import Path

from quatsphere.data.cache import cache_root
from quatsphere.errors import DataError
from quatsphere.files.archives import shown


def download_folder() -> Path:
    """Where `quatsphere data get` puts archives."""
    return cache_root() / "downloads"


def places(root: Path | None) -> list[Path]:
    """Folders (or the one file) to look in, in this order."""
    if root is not None:
        return [root.expanduser()]
    named = os.environ.get("QUATSPHERE_DATA")
    return [*([Path(named).expanduser()] if named else []), download_folder()]


def require_root(root: Path | None, what: str) -> Path:
    """The path the user must give where there is no default; an error where it leads nowhere."""
    if root is None:
        raise DataError(f"{what} have no default place; pass --data.root")
    path = root.expanduser()
    if not path.exists():
        raise DataError(f"no such file or folder: {shown(path)}; check --data.root")
    return path
