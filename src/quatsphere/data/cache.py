"""Cache of decoded image folders (a file of arrays and a file with its hash), and the folders searched for data."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from quatsphere.errors import DataError, ResourceError, printable
from quatsphere.storage import atomic
from quatsphere.storage.atomic import sha256_bytes

CACHE_FORMAT = 2
"""Increased when the decoding rule or the layout of a cache file changes."""

ArrayDict = dict[str, np.ndarray]


def cache_root() -> Path:
    """Return `$XDG_CACHE_HOME/quatsphere`, or `~/.cache/quatsphere`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "quatsphere"


def load_or_build(
    folder: Path | None, key: str, identity: list[object], build: Callable[[], tuple[ArrayDict, Any]]
) -> tuple[ArrayDict, Any, tuple[str, ...]]:
    """Return arrays and facts from the cache, or from `build()` if the entry is absent or damaged, and notes.

    `key` names the entry; an entry with another `identity` (the state of the source) is replaced.
    """
    folder = (cache_root() if folder is None else folder) / "decoded"
    stem = folder / sha256_bytes(key.encode("utf-8", "surrogateescape"))[:32]
    identity = [CACHE_FORMAT, *identity]
    stored = _read(stem, identity)
    if isinstance(stored, tuple):
        return (*stored, ())
    arrays, facts = build()
    notes = ("damaged cache noticed and rebuilt",) if stored == "damaged" else ()
    return arrays, facts, notes + _write(stem, identity, arrays, facts)


def _read(stem: Path, identity: list[object]) -> tuple[ArrayDict, Any] | str:
    """Return the stored entry, or `damaged` or `absent`; the JSON file is written last and makes an entry valid."""
    header, file = stem.with_suffix(".json"), stem.with_suffix(".npz")
    try:
        if not header.is_file():
            return "absent"
        written = json.loads(header.read_text(encoding="utf-8"))
        if written["identity"] != identity:
            return "absent"
        data = file.read_bytes()
        if sha256_bytes(data) != written["sha256"]:
            return "damaged"
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return dict(arrays), written["facts"]
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return "damaged"


def _write(stem: Path, identity: list[object], arrays: ArrayDict, facts: object) -> tuple[str, ...]:
    """Store an entry; failing to do so costs only time at the next start, so it is a note and not an error."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    data = buffer.getvalue()
    header = {"identity": identity, "sha256": sha256_bytes(data), "facts": facts}
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        atomic.remove_leftovers(stem.parent)
        stem.with_suffix(".json").unlink(missing_ok=True)
        atomic.write_bytes(stem.with_suffix(".npz"), data)
        atomic.write_json(stem.with_suffix(".json"), header)
    except (OSError, ResourceError) as error:
        return (f"cache not written: {printable(str(error))}; images are decoded again at the next start",)
    return ()


def download_folder() -> Path:
    """Return the folder that `quatsphere data get` downloads to."""
    return cache_root() / "downloads"


def search_paths(root: Path | None) -> list[Path]:
    """Return the folders (or the one file) to search, in this order."""
    if root is not None:
        return [root.expanduser()]
    folder = os.environ.get("QUATSPHERE_DATA")
    return [*([Path(folder).expanduser()] if folder else []), download_folder()]


def require_root(root: Path | None, what: str) -> Path:
    """Return a path that the user must give, or raise DataError if it is missing or does not exist."""
    if root is None:
        raise DataError(f"{what} have no default place; pass --data.root")
    path = root.expanduser()
    if not path.exists():
        raise DataError(f"no such file or folder: {printable(path)}; check --data.root")
    return path
