"""Small pictures keep their pixels, and patches are placed as in the image."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from quatsphere.diagnostics.view_trace import mean_colours
from quatsphere.geometry.plane import flat_lattice
from quatsphere.report.page import patch_sheet, png_uri, rgb_pixels

RNG = np.random.default_rng(0)


def decoded(uri: str) -> np.ndarray:
    head, _, code = uri.partition(",")
    assert head == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(code, validate=True))) as picture:
        return np.asarray(picture)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png_keeps_the_pixels(channels: int) -> None:
    image = RNG.integers(0, 256, (channels, 5, 7)).astype(np.uint8)
    pixels = decoded(png_uri(rgb_pixels(image)))
    assert pixels.shape == (5, 7, 3)
    for colour in range(3):
        assert np.array_equal(pixels[..., colour], image[colour if channels >= 3 else 0])


def test_mean_colour() -> None:
    samples = RNG.random((4, 25, 3))
    assert np.allclose(mean_colours(samples), samples.mean(1))
    assert np.array_equal(mean_colours(np.full((4, 25, 1), 0.5)), np.full((4, 3), 0.5))
    assert mean_colours(np.full((4, 25, 1), 2.0)).max() == 1


def test_patches_of_a_lattice_keep_their_order() -> None:
    """Patches coloured by their coordinates get brighter downwards and to the right."""
    places = np.repeat(flat_lattice(64, 8).numpy()[:, None], 25, axis=1)
    shuffled = RNG.permutation(64)
    samples = np.concatenate(((places + 1) / 2, np.zeros((64, 25, 1))), axis=-1)
    sheet = patch_sheet(places[shuffled], samples[shuffled])
    assert sheet.shape == (8 * 6 + 1, 8 * 6 + 1, 3)
    centres = sheet[3::6, 3::6].astype(int)
    assert centres.shape[:2] == (8, 8)
    assert (np.diff(centres[..., 0], axis=1) > 0).all()
    assert (np.diff(centres[..., 1], axis=0) > 0).all()


@pytest.mark.parametrize("count", [1, 2, 7, 32, 128])
def test_every_patch_is_on_the_sheet(count: int) -> None:
    samples = np.ones((count, 25, 1))
    sheet = patch_sheet(RNG.uniform(-1, 1, (count, 25, 2)), samples)
    assert (sheet == 255).all(axis=-1).sum() == 25 * count
