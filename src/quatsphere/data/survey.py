"""Sizes and colours of the images in class folders, from the heads of the files; nothing is decoded."""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from quatsphere.data.archives import open_tree
from quatsphere.data.cache import require_root
from quatsphere.data.decode import IMAGE_FORMATS
from quatsphere.data.image_folder import list_images
from quatsphere.errors import DataError, printable

SURVEYED = 500
"""Images that are looked at, evenly spaced."""
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
    """Look at the images in class folders below `root`, or in a zip of them; unreadable ones are left to the reader."""
    path = require_root(Path(root), "image folders")
    tree = open_tree(path)
    listing = list_images(tree)
    step = max(1, len(listing.names) // SURVEYED)
    heads = [head for name in listing.names[::step] if (head := _head(tree.read, name)) is not None]
    if not heads:
        first = printable(listing.names[0])
        raise DataError(f"no readable image in {printable(path)} (first: {first}); give PNG, JPEG or WebP files")
    median = round(statistics.median(side for side, _ in heads))
    return ImageSurvey(len(listing.names), len(listing.classes), median, all(grey for _, grey in heads))


def _head(read: Callable[[str], bytes], name: str) -> tuple[int, bool] | None:
    """Shorter side and absence of colour, or None for a file that is not a readable image."""
    try:
        with Image.open(io.BytesIO(read(name)), formats=IMAGE_FORMATS) as image:
            return min(image.size), image.mode in GREY_MODES
    except Exception:  # whatever a damaged file raises, reading the data will name it
        return None
