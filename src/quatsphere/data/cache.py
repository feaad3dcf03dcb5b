"""Decoded image folders, kept so that the second start takes a second: one file of arrays and one with its hash."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from quatsphere.data.archives import shown
from quatsphere.errors import DataError, ResourceError
from quatsphere.storage import atomic
from quatsphere.storage.atomic import sha256_bytes

FORMAT = 2
"""Raised whenever the decoding rule or the layout of a cache file changes."""

Arrays = dict[str, np.ndarray]


def cache_root() -> Path:
    """`$XDG_CACHE_HOME/quatsphere`, or `~/.cache/quatsphere`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "quatsphere"


def remember(
    folder: Path | None, place: str, identity: list[object], make: Callable[[], tuple[Arrays, Any]]
) -> tuple[Arrays, Any, tuple[str, ...]]:
    """The arrays and facts of `make()`, from the cache where it holds them intact; notes say what went wrong.

    `place` names the entry, `identity` is what the result depends on: when the source changes, its entry is replaced.
    """
    folder = (cache_root() if folder is None else folder) / "decoded"
    stem = folder / sha256_bytes(place.encode("utf-8", "surrogateescape"))[:32]
    identity = [FORMAT, *identity]
    stored = _read(stem, identity)
    if isinstance(stored, tuple):
        return (*stored, ())
    arrays, facts = make()
    notes = ("damaged cache noticed and rebuilt",) if stored == "damaged" else ()
    return arrays, facts, notes + _write(stem, identity, arrays, facts)


def _read(stem: Path, identity: list[object]) -> tuple[Arrays, Any] | str:
    """What is stored, or `damaged`, or `absent`. The note is written last, so without it there is nothing."""
    note, file = stem.with_suffix(".json"), stem.with_suffix(".npz")
    try:
        if not note.is_file():
            return "absent"
        written = json.loads(note.read_text(encoding="utf-8"))
        if written["identity"] != identity:
            return "absent"
        data = file.read_bytes()
        if sha256_bytes(data) != written["sha256"]:
            return "damaged"
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return dict(arrays), written["facts"]
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return "damaged"


def _write(stem: Path, identity: list[object], arrays: Arrays, facts: object) -> tuple[str, ...]:
    """Store; a cache that cannot be written costs time at the next start and nothing else, so it is only noted."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    data = buffer.getvalue()
    note = {"identity": identity, "sha256": sha256_bytes(data), "facts": facts}
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        atomic.remove_leftovers(stem.parent)
        stem.with_suffix(".json").unlink(missing_ok=True)
        atomic.write_bytes(stem.with_suffix(".npz"), data)
        atomic.write_json(stem.with_suffix(".json"), note)
    except (OSError, ResourceError) as error:
        return (f"cache not written: {shown(str(error))}; images are decoded again at the next start",)
    return ()


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
