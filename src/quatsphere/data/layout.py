"""Read parts and classes off the names of folders, before any image is decoded.

    train/<class>/**  and  test/<class>/**      two parts
    train/<class>/**                            one pool
    <class>/**                                  one pool

each possibly wrapped in further folders (`cifar10/train/cat/1.png`). Images are *.png, *.jpg, *.jpeg and *.webp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quatsphere.data.trees import Tree
from quatsphere.errors import DataError
from quatsphere.files.archives import shown

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
