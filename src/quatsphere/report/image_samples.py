"""Samples that the first shell takes of an image, and small pictures of images and samples."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

ImageArray = NDArray[Any]


def rgb_pixels(image: ImageArray) -> ImageArray:
    """Return a uint8 image (C, Y, X) as (Y, X, 3): its first three channels, or grey."""
    channels = image[:3] if image.shape[0] >= 3 else np.repeat(image[:1], 3, axis=0)
    return np.moveaxis(channels, 0, -1)


def png_uri(pixels: ImageArray) -> str:
    """Return uint8 pixels (Y, X, 3) as a PNG in a data URI."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def patch_sheet(points: ImageArray, samples: ImageArray, gap: int = 1) -> ImageArray:
    """Return one picture of all patches (V, S, C) in [0, 1], each near its place in the image.

    Vertices are sorted into rows by height and within a row by longitude (points (V, S, 2) are image coordinates), so
    the sheet resembles the image while every patch stays whole. Gaps and the ends of short rows are grey.
    """
    count, size, _ = samples.shape
    side, rows = math.isqrt(size), round(math.sqrt(count))
    centre, cell = points[:, size // 2], side + gap
    by_height = np.array_split(np.argsort(centre[:, 1], kind="stable"), rows)
    columns = len(by_height[0])
    sheet = np.full((rows * cell + gap, columns * cell + gap, 3), 128, np.uint8)
    for row, members in enumerate(by_height):
        indent = gap + (columns - len(members)) * cell // 2
        for column, vertex in enumerate(members[np.argsort(centre[members, 0], kind="stable")]):
            patch = np.rint(255 * samples[vertex].clip(0, 1)).astype(np.uint8).reshape(side, side, -1)
            top, left = row * cell + gap, column * cell + indent
            sheet[top : top + side, left : left + side] = rgb_pixels(np.moveaxis(patch, -1, 0))
    return sheet
