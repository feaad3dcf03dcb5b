"""Pixels as colours and as small pictures."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[Any]


def to_rgb(samples: Array) -> Array:
    """RGB (V, 3) in [0, 1] from samples (V, S, C): the mean of each vertex; one channel is grey."""
    mean = samples.mean(axis=1).clip(0, 1)
    return mean[:, :3] if mean.shape[1] >= 3 else np.repeat(mean[:, :1], 3, axis=1)


def png_uri(pixels: Array) -> str:
    """uint8 pixels (Y, X, 3) as a data URI; pages enlarge them without smoothing."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def picture_of(image: Array) -> Array:
    """uint8 image (C, Y, X) as (Y, X, 3): the first three channels, or grey."""
    shown = image[:3] if image.shape[0] >= 3 else np.repeat(image[:1], 3, axis=0)
    return np.moveaxis(shown, 0, -1)


def patch_sheet(places: Array, samples: Array, gap: int = 1) -> Array:
    """The patches (V, S, C) in [0, 1] of all vertices as one picture, each where it looks, roughly.

    Vertices are sorted into rows by height and within a row by longitude (places (V, S, 2) are image coordinates),
    so that the sheet resembles the image while every patch stays whole. Grey between them and beside short rows.
    """
    count, points, _ = samples.shape
    side, rows = math.isqrt(points), round(math.sqrt(count))
    centre, cell = places[:, points // 2], side + gap
    by_height = np.array_split(np.argsort(centre[:, 1], kind="stable"), rows)
    columns = len(by_height[0])
    sheet = np.full((rows * cell + gap, columns * cell + gap, 3), 128, np.uint8)
    for row, members in enumerate(by_height):
        indent = gap + (columns - len(members)) * cell // 2
        for column, vertex in enumerate(members[np.argsort(centre[members, 0], kind="stable")]):
            patch = np.rint(255 * samples[vertex].clip(0, 1)).astype(np.uint8).reshape(side, side, -1)
            top, left = row * cell + gap, column * cell + indent
            sheet[top : top + side, left : left + side] = picture_of(np.moveaxis(patch, -1, 0))
    return sheet
