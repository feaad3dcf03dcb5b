"""Cache of decoded image folders (a file of arrays and a sealed file of facts), and the folders searched for data."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from quatsphere.errors import DataError, ResourceError, printable
from quatsphere.storage import atomic
from quatsphere.storage.atomic import read_regular, sha256_bytes
from quatsphere.storage.sealed_json import seal, unseal

CACHE_FORMAT = 3
"""Increased when the decoding rule or the layout of a cache file changes."""
MAX_FACTS_BYTES = 1 << 30

ArrayDict = dict[str, np.ndarray]


def cache_root() -> Path | None:
    """Return `$XDG_CACHE_HOME/quatsphere`, or `~/.cache/quatsphere`; None for a user without a home folder."""
    base = expand_home(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache"))
    return None if str(base).startswith("~") else base / "quatsphere"


def expand_home(path: Path) -> Path:
    """Replace a leading `~`; unlike `Path.expanduser`, leave it if there is no such user or home folder."""
    return Path(os.path.expanduser(path))


def load_or_build(
    folder: Path | None, key: str, identity: list[object], build: Callable[[], tuple[ArrayDict, Any]]
) -> tuple[ArrayDict, Any, tuple[str, ...]]:
    """Return arrays and facts from the cache, or from `build()` if the entry is absent or damaged, and notes.

    `key` names the entry; an entry with another `identity` (the state of the source) is replaced.
    """
    folder = cache_root() if folder is None else folder
    if folder is None:
        note = "cache not written: no home folder; set XDG_CACHE_HOME, else images are decoded again at the next start"
        return (*build(), (note,))
    stem = folder / "decoded" / sha256_bytes(f"{CACHE_FORMAT} {key}".encode("utf-8", "surrogateescape"))[:32]
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
        written = unseal(read_regular(header, MAX_FACTS_BYTES))
        if written["identity"] != identity:
            return "absent"
        data = read_regular(file, written["arrays"]["size"])
        if sha256_bytes(data) != written["arrays"]["sha256"]:
            return "damaged"
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return dict(arrays), written["facts"]
    except Exception:  # damaged files raise anything; the images can be decoded again
        return "damaged"


def _write(stem: Path, identity: list[object], arrays: ArrayDict, facts: object) -> tuple[str, ...]:
    """Store an entry; failing to do so costs only time at the next start, so it is a note and not an error."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    data = buffer.getvalue()
    described = {"size": len(data), "sha256": sha256_bytes(data)}
    header = seal({"identity": identity, "arrays": described, "facts": facts})
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        atomic.remove_leftovers(stem.parent)
        stem.with_suffix(".json").unlink(missing_ok=True)
        atomic.write_bytes(stem.with_suffix(".npz"), data)
        atomic.write_bytes(stem.with_suffix(".json"), header)
    except (OSError, ResourceError) as error:
        return (f"cache not written: {printable(str(error))}; images are decoded again at the next start",)
    return ()


CACHED = {"decoded": "images of class folders, decoded; made again when needed", "downloads": "files of 'data get'"}
"""Folder in the cache -> its content."""


def cache_usage() -> dict[str, dict[str, Any]]:
    """`path`, number of `files` and `bytes` of each folder in the cache; {} for a user without a home folder."""
    root = cache_root()
    return {} if root is None else {name: _usage(root / name) for name in CACHED}


def clear_cache(*names: str) -> int:
    """Delete folders of the cache and return the bytes that this freed."""
    usage = cache_usage()
    for name in names:
        path = Path(usage[name]["path"]) if name in usage else None
        if path is not None and path.is_dir():
            atomic.remove_folder(path)
    return sum(usage[name]["bytes"] for name in names if name in usage)


def _usage(folder: Path) -> dict[str, Any]:
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    return {"path": str(folder), "files": len(sizes), "bytes": sum(sizes)}


def download_folder() -> Path:
    """Return the folder that `quatsphere data get` downloads to."""
    root = cache_root()
    if root is None:
        raise DataError("no home folder to download to; pass --output or set XDG_CACHE_HOME")
    return root / "downloads"


def search_paths(root: Path | None) -> list[Path]:
    """Return the folders (or the one file) to search, in this order."""
    if root is not None:
        return [expand_home(root)]
    named, cache = os.environ.get("QUATSPHERE_DATA"), cache_root()
    if not named and cache is None:
        raise DataError("no folder to search for data, because there is no home folder; pass --data.root")
    return [*([expand_home(Path(named))] if named else []), *([download_folder()] if cache else [])]


def require_root(root: Path | None, what: str) -> Path:
    """Return a path that the user must give, or raise DataError if it is missing or does not exist."""
    if root is None:
        raise DataError(f"{what} have no default location; pass --data.root")
    path = expand_home(root)
    if not path.exists():
        raise DataError(f"no such file or folder: {printable(path)}; check --data.root")
    return path
