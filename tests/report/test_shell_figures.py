"""Figures of shells and classes accept any names, cut nothing off, and do not mirror the image."""

from __future__ import annotations

import io
import runpy
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from quatsphere.report.figures import confusion_matrix, sampling_preview, shell_values, to_bytes
from quatsphere.report.figures.model import _camera_axes
from quatsphere.report.figures.style import escape_math

NAMES = [
    r"$\frac$",
    "a very long class name that never ends",
    "猫",
    "<script>",
    "x_1^2",
    "\\",
    "a\nb",
    "",
    "$",
    "z",
]
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def to_pixels(figure: Figure) -> np.ndarray:
    """Return the figure as RGB pixels."""
    with Image.open(io.BytesIO(to_bytes(figure, "png", dpi=110))) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture.convert("RGB"))


def sphere(count: int, radius: float = 1.0) -> np.ndarray:
    points = RNG.normal(size=(count, 3))
    return radius * points / np.linalg.norm(points, axis=1, keepdims=True)


@pytest.mark.parametrize(("channels", "dimensions"), [(1, 2), (2, 3), (3, 3), (4, 2)])
def test_preview(channels: int, dimensions: int) -> None:
    shown = 3 if channels == 4 else 1 if channels == 2 else channels
    places = RNG.uniform(-1.2, 1.2, (16, 25, 2))
    samples = RNG.random((16, 25, channels))
    positions = sphere(16) if dimensions == 3 else RNG.uniform(-1, 1, (16, 2))
    figure = sampling_preview(RNG.random((shown, 8, 8)), places, samples, positions, r"a $\bad$ title" * 9)
    pixels = to_pixels(figure)
    assert pixels.shape[1] > 900


@pytest.mark.parametrize("count", [2, 10, 100])
def test_confusion(count: int) -> None:
    names = (NAMES * 10)[:count]
    figure = confusion_matrix(RNG.integers(0, 50, (count, count)), names)
    assert max(to_pixels(figure).shape) < 2600


def test_confusion_without_images() -> None:
    to_pixels(confusion_matrix(np.zeros((3, 3), int), NAMES[:3]))


def test_shells_share_one_scale() -> None:
    positions = [sphere(8), sphere(12, 0.4)]
    to_pixels(shell_values(positions, [RNG.random(8), 5 + RNG.random(12)], "token norm"))
    to_pixels(shell_values([RNG.uniform(-1, 1, (8, 2))], [np.ones(8)], "token norm"))


def test_names_are_not_formulas() -> None:
    assert escape_math("$x$") == r"\$x\$"
    assert escape_math("a\nb") == "a b"
    assert escape_math("x" * 100) == "x" * 23 + "…"


def test_the_shell_is_not_mirrored() -> None:
    """Longitude 0 faces the viewer, longitude increases to the right, image rows go down."""
    towards, right, up = _camera_axes()
    on_screen = {"centre": [1, 0, 0], "right": [0.7, 0, 0.7], "left": [0.7, 0, -0.7], "top": [0.7, -0.7, 0]}
    place = {name: np.array([p[0], p[2], -p[1]], float) for name, p in on_screen.items()}
    assert place["centre"] @ towards > 0.8
    assert place["right"] @ right > place["centre"] @ right > place["left"] @ right
    assert place["top"] @ up > place["centre"] @ up
    assert np.allclose(np.cross(right, up), towards)


def test_nothing_is_cut_off() -> None:
    """The border of every picture is white."""
    holonomy = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "pictures" / "holonomy.py"))["draw_figure"]
    figures = [
        confusion_matrix(np.eye(10, dtype=int), NAMES),
        sampling_preview(RNG.random((3, 8, 8)), np.zeros((4, 25, 2)), RNG.random((4, 25, 3)), sphere(4), "t" * 60),
        shell_values([sphere(8)], [RNG.random(8)], "norm"),
        holonomy({"flat": sphere(9)}, {"flat": sphere(9)}, {"flat": RNG.random((4, 2))}),
    ]
    for figure in figures:
        pixels = to_pixels(figure)
        border = np.concatenate((pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]))
        assert (border > 250).all()
