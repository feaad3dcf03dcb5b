"""Read class folders of images, on disk or in a zip; decoded images are cached. `survey_images` reads headers only."""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from quatsphere.data.archives import FileTree, open_tree
from quatsphere.data.cache import ArrayDict, load_or_build, require_root
from quatsphere.data.dataset import RawDataset, RawSplit, ReadOptions
from quatsphere.data.decode import IMAGE_FORMATS, decode_files
from quatsphere.errors import DataError, printable

DEFAULT_SIZE = 32
"""Side of the images where the user gives none: CIFAR's."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
SYSTEM_FILES = ("__MACOSX", "Thumbs.db", "desktop.ini")
SPLITS = ("train", "test")
LISTED = 20
"""Ignored files that are named in a note."""

ImageGroups = dict[tuple[str, str], list[str]]
"""(split, class) -> names of image files; a single pool is all `train`. A folder without images has an empty list."""


def read_image_folder(options: ReadOptions) -> RawDataset:
    """Read the class folders below `options.root`."""
    return read_class_folders(require_root(options.root, "image folders"), options.image_size or DEFAULT_SIZE, options)


def read_class_folders(
    path: Path, size: int, options: ReadOptions, classes: tuple[str, ...] | None = None
) -> RawDataset:
    """Decode class folders to `size` x `size`; `classes` requires exactly these and fixes their order."""
    tree = open_tree(path)
    key = f"{size} {options.fit} {'given' if classes else 'found'} classes {path.resolve()}"
    identity = [*tree.identity, classes and list(classes)]
    arrays, facts, cache_notes = load_or_build(
        options.cache, key, identity, lambda: _decode_tree(tree, size, options, classes)
    )
    _check_bad_files(facts["bad"], options.skip_bad)
    samples = RawSplit(arrays["images"], arrays["labels"], arrays["digests"])
    train, test = samples.take(slice(facts["train"])), samples.take(slice(facts["train"], None))
    notes = (*facts["notes"], *cache_notes, *_decoding_notes(arrays, facts["bad"], options.fit))
    jpeg_count = int((arrays["formats"] == IMAGE_FORMATS.index("JPEG")).sum())
    return RawDataset(tuple(facts["classes"]), train, test if len(test) else None, notes, jpeg_count)


@dataclass(frozen=True)
class ImageListing:
    """Image files with their labels and splits, the training split first; class names are printable."""

    classes: tuple[str, ...]
    names: list[str]
    labels: list[int]
    in_test: list[bool]
    notes: tuple[str, ...]


def list_images(tree: FileTree, classes: tuple[str, ...] | None = None) -> ImageListing:
    """List the images of a tree; `classes` requires exactly these and fixes their order, else it is alphabetical."""
    names = sorted(name for name in tree.names if not is_hidden(name))
    groups = _group(names, _common_depth(names))
    _check_groups(groups, printable(tree.path))
    classes = classes or tuple(sorted({label for _, label in groups}))
    found = {name for _, name in groups}
    for wrong, fault in ((found - set(classes), "is none of this data set's"), (set(classes) - found, "is missing")):
        if wrong:
            name = printable(min(wrong))
            raise DataError(f"class folder {name!r} {fault}; for images of your own use --data.name folder")
    labels = {name: label for label, name in enumerate(classes)}
    rows = [
        (name, labels[class_name], split == "test")
        for split, class_name in sorted(groups, reverse=True)
        for name in groups[split, class_name]
    ]
    used = {row[0] for row in rows}
    ignored = [name for name in names if not name.endswith("/") and name not in used]
    listed = ", ".join(map(printable, ignored[:LISTED])) + (", ..." if len(ignored) > LISTED else "")
    note = f"{len(ignored)} files ignored: no PNG, JPEG or WebP in a class folder ({listed})"
    return ImageListing(
        tuple(map(printable, classes)),
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
        (note,) if ignored else (),
    )


def is_hidden(name: str) -> bool:
    """Return whether a path is hidden or contains a by-product of an operating system."""
    return any(part.startswith(".") or part in SYSTEM_FILES for part in name.split("/"))


def is_image(name: str) -> bool:
    """Return whether a name has a suffix of PNG, JPEG or WebP files."""
    return name.lower().endswith(SUFFIXES)


def _common_depth(names: Sequence[str]) -> int:
    """Number of leading folders common to all images that are neither a split nor a class."""
    paths = [name.split("/") for name in names if is_image(name)]
    depth = 0
    while paths and all(len(path) > depth + 2 for path in paths):
        tops = {path[depth] for path in paths}
        if len(tops) > 1 or tops & set(SPLITS):
            break
        depth += 1
    return depth


def _group(names: Sequence[str], depth: int) -> ImageGroups:
    """Group the images by (split, class); folders other than `train` and `test` beside these are left out."""
    paths = [(name, name.split("/")[depth:]) for name in names if name.count("/") >= depth]
    has_splits = any(path[0] in SPLITS and len(path) > 2 and is_image(name) for name, path in paths)
    groups: ImageGroups = {}
    for name, path in paths:
        path = path if has_splits else ["train", *path]
        if len(path) > 2 and path[0] in SPLITS:
            group = groups.setdefault((path[0], path[1]), [])
            group += [name] if is_image(name) else []
    return groups


def _check_groups(groups: ImageGroups, where: str) -> None:
    """Refuse empty classes, a single class, and splits with different classes."""
    if not any(groups.values()):
        raise DataError(
            f"no PNG, JPEG or WebP images in {where} (looked for train/<class>/* and <class>/*); "
            "pass --data.root of a folder or zip with class folders"
        )
    for (split, name), group in groups.items():
        if not group:
            raise DataError(
                f"class {printable(name)!r} has no images ({split} of {where}); add some or remove the folder"
            )
    train, test = ({name for split, name in groups if split == wanted} for wanted in SPLITS)
    if not train:
        raise DataError(f"{where} has test/ but no train/; pass --data.root of the whole set")
    if len(train) == 1:
        raise DataError(f"only one class, {printable(min(train))!r} ({where}); a classifier needs two or more")
    if test and train != test:
        first = min(train ^ test)
        raise DataError(
            f"train and test have different classes ({len(train)} and {len(test)} in {where}; first difference "
            f"{printable(first)!r}, only in {'train' if first in train else 'test'}); give both the same class folders"
        )


def _decode_tree(
    tree: FileTree, size: int, options: ReadOptions, classes: tuple[str, ...] | None
) -> tuple[ArrayDict, dict[str, Any]]:
    """ArrayDict of all good images, the training split first, and further facts for the cache."""
    listing = list_images(tree, classes)
    decoded = decode_files(listing.names, tree.read, size, options.fit, progress=options.progress)
    bad = [[printable(listing.names[index]), reason] for index, reason in sorted(decoded.bad.items())]
    _check_bad_files(bad, options.skip_bad)
    good = np.setdiff1d(np.arange(len(listing.names)), list(decoded.bad))
    arrays = {name: getattr(decoded, name)[good] for name in ("images", "digests", "resized", "square", "formats")}
    arrays["labels"] = np.array(listing.labels, np.int64)[good]
    train = int((~np.array(listing.in_test, np.bool_)[good]).sum())
    return arrays, {"classes": listing.classes, "notes": listing.notes, "bad": bad, "train": train}


def _check_bad_files(bad: list[list[str]], allowed: int) -> None:
    """Raise DataError for more bad files, [name, reason] each, than allowed."""
    if len(bad) <= allowed:
        return
    name, reason = bad[0]
    more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    error = DataError(
        f"bad image {name} ({reason}){more}; repair or remove it, or pass --data.skip_bad {len(bad)} (now {allowed})"
    )
    for other, fault in bad[1:]:
        error.add_note(f"bad image {other} ({fault})")
    raise error


def _decoding_notes(arrays: ArrayDict, bad: list[list[str]], fit: str) -> tuple[str, ...]:
    """Notes on images that were skipped, resized, cropped or squashed."""
    notes: tuple[str, ...] = ()
    if bad:
        listed = ", ".join(f"{name} ({reason})" for name, reason in bad)
        notes += (f"{len(bad)} images skipped: {listed}",)
    if resized := int(arrays["resized"].sum()):
        size, oblong, change = arrays["images"].shape[-1], int((~arrays["square"]).sum()), ""
        if oblong and fit == "squash":
            change = f", {oblong} of them squashed to a square"
        elif oblong:
            change = f", {oblong} of them cropped to the centre square (--data.fit squash keeps the edges)"
        notes += (f"{resized} of {len(arrays['labels'])} images resized to {size} x {size}{change}",)
    return notes


# Survey.

SURVEYED = 500
"""Approximate number of images to survey, evenly spaced."""
GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L")


@dataclass(frozen=True)
class ImageSurvey:
    """Facts about the images of a folder."""

    images: int
    classes: int
    median_side: int
    """Median of the shorter sides in pixels."""
    grey: bool
    """True if no image has colours."""


def survey_images(root: str | Path) -> ImageSurvey:
    """Return facts about the images in class folders below `root`, or in a zip of them; bad images are skipped."""
    path = require_root(Path(root), "image folders")
    tree = open_tree(path)
    listing = list_images(tree)
    step = max(1, len(listing.names) // SURVEYED)
    headers = [header for name in listing.names[::step] if (header := _header(tree.read, name)) is not None]
    if not headers:
        first = printable(listing.names[0])
        raise DataError(f"no readable image in {printable(path)} (first: {first}); give PNG, JPEG or WebP files")
    median = round(statistics.median(side for side, _ in headers))
    return ImageSurvey(len(listing.names), len(listing.classes), median, all(grey for _, grey in headers))


def _header(read: Callable[[str], bytes], name: str) -> tuple[int, bool] | None:
    """Shorter side and absence of colour, or None for a file that is not a readable image."""
    try:
        with Image.open(io.BytesIO(read(name)), formats=IMAGE_FORMATS) as image:
            return min(image.size), image.mode in GREY_MODES
    except Exception:  # damaged files raise anything; reading the data names them
        return None
