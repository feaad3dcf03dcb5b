"""Class folders of images, on disk or in a zip, decoded once and cached."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from quatsphere.data.archives import SafeZip, shown
from quatsphere.data.cache import Arrays, remember
from quatsphere.data.dataset import Contents, Part, Progress
from quatsphere.data.decode import ImageFile, decode_files
from quatsphere.data.images import FORMATS
from quatsphere.errors import DataError
from quatsphere.storage.atomic import read_regular

MOST_BYTES = 128 << 20
"""Size cap of one image file."""
MOST_FILES = 5_000_000
"""More files than any image set has: somebody pointed us at a whole disk."""


class ZipTree:
    """A zip file, read in place, and opened only when the cache does not know it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        status = path.stat()
        self.identity: list[object] = [status.st_size, status.st_mtime_ns]

    @cached_property
    def _zip(self) -> SafeZip:
        return SafeZip(self.path)

    @property
    def names(self) -> list[str]:
        return self._zip.names

    def read(self, name: str) -> bytes:
        return self._zip.read(name, MOST_BYTES)


class FolderTree:
    """A folder on disk; links are followed, a link that leads back to where we come from is an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        hasher = hashlib.sha256()
        self.names: list[str] = []
        for name, status in _walk(path):
            self.names.append(name)
            if len(self.names) > MOST_FILES:
                raise DataError(
                    f"{shown(path)} holds more than {MOST_FILES} files; pass --data.root of an image folder"
                )
            if status is not None:
                hasher.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
        self.identity: list[object] = [hasher.hexdigest()]

    def read(self, name: str) -> bytes:
        return read_file(self.path / name, MOST_BYTES)


Tree = FolderTree | ZipTree
"""Both have `path`, `names` (relative, with slashes; folders end with one), `identity` and `read(name)`."""


def open_tree(path: Path) -> Tree:
    """The tree under a folder, or inside a zip; any other file is refused."""
    if path.is_dir():
        return FolderTree(path)
    if path.is_file() and not is_zip(path):
        raise DataError(
            f"{shown(path)} is neither a folder nor a zip; pass --data.root of a folder with one subfolder per class, "
            "or of a zip of one"
        )
    return ZipTree(path)


def is_zip(path: Path) -> bool:
    """Whether a file begins as zip files do; a damaged one may."""
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def read_file(path: Path, limit: int) -> bytes:
    """A regular file's bytes, or DataError with the reason."""
    try:
        return read_regular(path, limit)
    except OSError as error:
        raise DataError(f"cannot read {shown(path)} ({error.strerror})") from error


def _walk(root: Path) -> Iterator[tuple[str, os.stat_result | None]]:
    """Names below the root in sorted order, with their status (None for folders and what cannot be looked at)."""
    todo: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    while todo:
        prefix, ancestors = todo.pop()
        here, entries = _look_into(root / prefix)
        if here in ancestors:
            raise DataError(f"symlink loop at {shown(root / prefix)}; remove the link")
        for entry in entries:
            name = prefix + entry.name
            if _is_folder(entry):
                todo.append((name + "/", ancestors | {here}))
                yield name + "/", None
            else:
                yield name, _status(entry)


def _look_into(folder: Path) -> tuple[tuple[int, int], list[os.DirEntry[str]]]:
    """What tells this folder from all others, and its entries."""
    try:
        status = folder.stat()
        with os.scandir(folder) as entries:
            return (status.st_dev, status.st_ino), sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"cannot read folder {shown(folder)} ({error.strerror}); check its permissions") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that points at itself
        return False


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat()
    except OSError:
        return None


SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
JUNK = ("__MACOSX", "Thumbs.db", "desktop.ini")
PARTS = ("train", "test")

Groups = dict[tuple[str, str], list[str]]
"""(part, class) -> names of image files; a pool is all `train`. An empty list is a folder without images."""


@dataclass(frozen=True)
class Layout:
    """Which file is which class of which part, the training part first; class names are printable."""

    classes: tuple[str, ...]
    names: list[str]
    labels: list[int]
    in_test: list[bool]
    notes: tuple[str, ...]


def organise(tree: Tree, classes: tuple[str, ...] | None = None) -> Layout:
    """The layout of a tree; `classes` demands exactly these and fixes their order, else it is alphabetical."""
    names = sorted(name for name in tree.names if not is_junk(name))
    groups = _group(names, _wrapping(names))
    _check(groups, shown(tree.path))
    classes = classes or tuple(sorted({kind for _, kind in groups}))
    _check_expected(groups, classes)
    labels = {kind: label for label, kind in enumerate(classes)}
    rows = [
        (name, labels[kind], part == "test")
        for part, kind in sorted(groups, reverse=True)
        for name in groups[part, kind]
    ]
    used = {row[0] for row in rows}
    ignored = [name for name in names if not name.endswith("/") and name not in used]
    printable = tuple(map(shown, classes))
    return Layout(printable, [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows], _note(ignored))


def is_junk(name: str) -> bool:
    """Whether a file or folder of this path is hidden or a by-product of an operating system."""
    return any(part.startswith(".") or part in JUNK for part in name.split("/"))


def is_image(name: str) -> bool:
    """Whether a name ends as those of PNG, JPEG and WebP files do."""
    return name.lower().endswith(SUFFIXES)


def _wrapping(names: Sequence[str]) -> int:
    """How many leading folders all images share without being a part or a class."""
    paths = [name.split("/") for name in names if is_image(name)]
    depth = 0
    while paths and all(len(path) > depth + 2 for path in paths):
        tops = {path[depth] for path in paths}
        if len(tops) > 1 or tops & set(PARTS):
            break
        depth += 1
    return depth


def _group(names: Sequence[str], depth: int) -> Groups:
    """Sort the images into (part, class); other folders beside `train` and `test` are left out."""
    paths = [(name, name.split("/")[depth:]) for name in names if name.count("/") >= depth]
    split = any(path[0] in PARTS and len(path) > 2 and is_image(name) for name, path in paths)
    groups: Groups = {}
    for name, path in paths:
        path = path if split else ["train", *path]
        if len(path) > 2 and path[0] in PARTS:
            group = groups.setdefault((path[0], path[1]), [])
            group += [name] if is_image(name) else []
    return groups


def _check(groups: Groups, where: str) -> None:
    """Refuse what would train a wrong classifier: empty classes, one class, parts that disagree (FAULTS 9)."""
    if not any(groups.values()):
        raise DataError(
            f"no PNG, JPEG or WebP images in {where} (looked for train/<class>/* and <class>/*); "
            "pass --data.root of a folder or zip with class folders"
        )
    for (part, kind), group in groups.items():
        if not group:
            raise DataError(f"class {shown(kind)!r} has no images ({part} of {where}); add some or remove the folder")
    train, test = ({kind for part, kind in groups if part == wanted} for wanted in PARTS)
    if not train:
        raise DataError(f"{where} has test/ but no train/; pass --data.root of the whole set")
    if len(train) == 1:
        raise DataError(f"only one class, {shown(min(train))!r} ({where}); a classifier needs two or more")
    if test and train != test:
        first = min(train ^ test)
        raise DataError(
            f"train and test have different classes ({len(train)} and {len(test)} in {where}; first difference "
            f"{shown(first)!r}, only in {'train' if first in train else 'test'}); give both the same class folders"
        )


def _check_expected(groups: Groups, classes: tuple[str, ...]) -> None:
    found = {kind for _, kind in groups}
    for wrong, text in ((found - set(classes), "is none of this data set's"), (set(classes) - found, "is missing")):
        if wrong:
            raise DataError(f"class folder {shown(min(wrong))!r} {text}; for images of your own use --data.name folder")


def _note(ignored: Sequence[str]) -> tuple[str, ...]:
    """So that a folder of BMPs, or a `val` beside `train`, does not vanish in silence."""
    if not ignored:
        return ()
    return (f"{len(ignored)} files ignored: no PNG, JPEG or WebP in a class folder (first: {shown(ignored[0])})",)


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
