"""Class folders of images, on disk or in a zip, decoded once and cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from quatsphere.data.cache import Arrays, remember
from quatsphere.data.contents import Contents, Part, Progress
from quatsphere.data.decoder import ImageFile, decode_files
from quatsphere.data.images import FORMATS
from quatsphere.data.layout import organise
from quatsphere.data.trees import Tree, open_tree
from quatsphere.errors import DataError
from quatsphere.files.archives import shown

BadFiles = list[list[str]]
"""[name, reason] of every file that is no usable image."""


@dataclass(frozen=True)
class Reading:
    """How to read, as far as it is not the data set's own affair."""

    skip_bad: int = 0
    fit: str = "crop"
    cache: Path | None = None
    progress: Progress | None = None


def read_folder(path: Path, size: int, how: Reading, classes: tuple[str, ...] | None = None) -> Contents:
    """Decode a tree of class folders to `size` x `size`; `classes` demands these and fixes their order."""
    tree = open_tree(path)
    place = f"{size} {how.fit} {'given' if classes else 'found'} classes {path.resolve()}"
    identity = [*tree.identity, classes and list(classes)]
    arrays, facts, cache_notes = remember(how.cache, place, identity, lambda: _decode(tree, size, how, classes))
    _allow(facts["bad"], how.skip_bad)
    every = Part(arrays["images"], arrays["labels"], arrays["digests"])
    train, test = every.take(slice(facts["train"])), every.take(slice(facts["train"], None))
    notes = (*facts["notes"], *cache_notes, *_notes(arrays, facts["bad"], how.fit))
    lossy = int((arrays["formats"] == FORMATS.index("JPEG")).sum())
    return Contents(tuple(facts["classes"]), train, test if len(test) else None, notes, lossy)


def _decode(tree: Tree, size: int, how: Reading, classes: tuple[str, ...] | None) -> tuple[Arrays, dict[str, Any]]:
    """The arrays of all good images, training part first, and what else the cache must remember."""
    layout = organise(tree, classes)
    files = [ImageFile(name, partial(tree.read, name)) for name in layout.names]
    decoded = decode_files(files, size, how.fit, progress=how.progress)
    bad = [[shown(files[index].name), reason] for index, reason in sorted(decoded.bad.items())]
    _allow(bad, how.skip_bad)
    good = np.setdiff1d(np.arange(len(files)), list(decoded.bad))
    arrays = {name: getattr(decoded, name)[good] for name in ("images", "digests", "resized", "square", "formats")}
    arrays["labels"] = np.array(layout.labels, np.int64)[good]
    train = int((~np.array(layout.in_test, np.bool_)[good]).sum())
    return arrays, {"classes": layout.classes, "notes": layout.notes, "bad": bad, "train": train}


def _allow(bad: BadFiles, most: int) -> None:
    """Bad images are an error unless the user allowed that many."""
    if len(bad) <= most:
        return
    name, reason = bad[0]
    more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    raise DataError(
        f"bad image {name} ({reason}){more}; repair or remove it, or pass --data.skip_bad {len(bad)} (now {most})"
    )


def _notes(arrays: Arrays, bad: Sequence[Sequence[str]], fit: str) -> tuple[str, ...]:
    notes: tuple[str, ...] = ()
    if bad:
        listed = ", ".join(f"{name} ({reason})" for name, reason in bad[:10])
        notes += (f"{len(bad)} images skipped: {listed}{', ...' if len(bad) > 10 else ''}",)
    if resized := int(arrays["resized"].sum()):
        size = arrays["images"].shape[-1]
        notes += (f"{resized} of {len(arrays['labels'])} images resized to {size} x {size}{_fitted(arrays, fit)}",)
    return notes


def _fitted(arrays: Arrays, fit: str) -> str:
    """What became of the images that are not square."""
    count = int((~arrays["square"]).sum())
    if not count:
        return ""
    if fit == "squash":
        return f", {count} of them squashed to a square"
    return f", {count} of them cropped to the centre square (--data.fit squash keeps the edges)"
