"""Settings for own images: one rule that gives every size from the side S of the image, and a recipe for CPUs.

    base_vertices  4 S             paper: 128 at 32 pixels; demo: 32 at 8 pixels
    shells         floor(log2 S)   paper: 5 at 32 pixels; demo: 3 at 8 pixels
    crop_pad       S / 8           paper: 4 at 32 pixels; demo: 1 at 8 pixels
    plane_rows     S / 2           for `layout plane`; paper's sizes: 16

The stencil and the numbers of neighbours follow from the number of vertices, as always: a vertex samples 5 x 5 points
in a square with half the side 2 / sqrt(V_1) of image coordinates, sqrt(S) / 4 pixels apart (1.4 at 32, 2 at 64 pixels).
"""

from __future__ import annotations

import math
from typing import Any

from quatsphere.config.presets import LITE, LITE_QSV
from quatsphere.config.resolve import flatten

IMAGE_SIDES = (8, 64)
"""Sides that are chosen from the images, powers of two; any other side can be given."""
EPOCHS = 30
LARGEST_BATCH = 32


def side_for(median_side: int) -> int:
    """Largest power of two up to the median of the images' shorter sides, within `IMAGE_SIDES`."""
    return min(max(1 << (max(1, median_side).bit_length() - 1), IMAGE_SIDES[0]), IMAGE_SIDES[1])


def sizes_for(side: int) -> dict[str, int]:
    """Settings that follow from the side of the image, as `group.field` -> value."""
    return {
        "data.image_size": side,
        "data.crop_pad": side // 8,
        "model.base_vertices": max(4, 4 * side),
        "model.shells": max(2, int(math.log2(side))),
        "model.plane_rows": side // 2 if side % 2 == 0 else side,
    }


def own_image_settings(side: int, images: int, channels: int) -> dict[str, Any]:
    """Settings for `images` own images in class folders: width and rates of the preset `lite`, sizes by the rule."""
    recipe = flatten({**LITE, "data": {"name": "folder"}, "model": LITE_QSV})
    batch = min(LARGEST_BATCH, max(1, images // 8))
    own = {"data.channels": channels, "train.epochs": EPOCHS, "train.batch_size": batch}
    return {**recipe, **own, **sizes_for(side)}
