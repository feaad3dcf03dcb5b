"""One function per picture, one style: colour-blind safe, readable in print and on screen."""

from __future__ import annotations

import base64
import io
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
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


ELEVATION, AZIMUTH = 14.0, -22.0
EDGE, OUTLINE = "#888888", "#BBBBBB"


def paint_vertices(figure: Figure, cell: tuple[int, int, int], positions: Array, colours: Array, size: float) -> Any:
    """Axes at `cell` with vertices (V, 3) on a sphere or (V, 2) on the plane, coloured by RGB (V, 3) in [0, 1]."""
    paint = _sphere if positions.shape[1] == 3 else _plane
    return paint(figure, cell, positions, colours, size)


def _plane(figure: Figure, cell: tuple[int, int, int], positions: Array, colours: Array, size: float) -> Any:
    axes = figure.add_subplot(*cell)
    axes.scatter(positions[:, 0], positions[:, 1], c=colours, s=size, edgecolors=EDGE, linewidths=0.4)
    axes.set(xlim=(-1.05, 1.05), ylim=(1.05, -1.05), aspect="equal")
    axes.set_axis_off()
    return axes


def _sphere(figure: Figure, cell: tuple[int, int, int], positions: Array, colours: Array, size: float) -> Any:
    """The near half in full colour, the far half small and pale.

    Longitude 0, the middle of the image, lies on the x axis; the polar axis y points down as image rows do. On
    screen (x, z, -y) are right-handed axes, so the shell shows the image as it is and not its mirror image.
    """
    axes = figure.add_subplot(*cell, projection="3d")
    radius = float(np.linalg.norm(positions, axis=1).max())
    places = np.column_stack((positions[:, 0], positions[:, 2], -positions[:, 1])) / radius
    towards, across, upwards = _camera()
    near = places @ towards > 0
    angle = np.linspace(0, 2 * math.pi, 100)[:, None]
    axes.plot(*(np.cos(angle) * across + np.sin(angle) * upwards).T, color=OUTLINE, linewidth=0.8)
    pale = 1 - 0.25 * (1 - colours[~near])
    axes.scatter(*places[~near].T, c=pale, s=size / 4, depthshade=False, edgecolors=OUTLINE, linewidths=0.3)
    axes.scatter(*places[near].T, c=colours[near], s=size, depthshade=False, edgecolors=EDGE, linewidths=0.4)
    axes.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(-1, 1))
    axes.set_proj_type("ortho")
    axes.set_box_aspect((1, 1, 1), zoom=1.55)
    axes.view_init(elev=ELEVATION, azim=AZIMUTH)
    axes.set_axis_off()
    return axes


def _camera() -> tuple[Array, Array, Array]:
    """Unit vectors towards the eye, to its right and up."""
    up, round_ = math.radians(ELEVATION), math.radians(AZIMUTH)
    towards = np.array([math.cos(up) * math.cos(round_), math.cos(up) * math.sin(round_), math.sin(up)])
    across = np.array([-math.sin(round_), math.cos(round_), 0.0])
    return towards, across, np.cross(towards, across)


BLUE, ORANGE = "#0072B2", "#D55E00"


def to_png(figure: Figure) -> bytes:
    """The picture as PNG bytes; a letter the font lacks is drawn as a box, without a warning."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight", facecolor="white")
    return buffer.getvalue()


def plain(text: str, longest: int = 24) -> str:
    """Text as it is, cut where it is too long; matplotlib would read what stands between dollars as a formula."""
    shown = text if len(text) <= longest else text[: longest - 1] + "…"
    return shown.replace("$", r"\$").replace("\n", " ")


def show_image(axes: Any, image: Array) -> None:
    """An image (C, H, W) in [0, 1] on axes that run over [-1, 1]², first row on top."""
    pixels = np.moveaxis(image, 0, -1)
    kind = {"cmap": "gray", "vmin": 0, "vmax": 1} if pixels.shape[-1] == 1 else {}
    shown = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    axes.imshow(shown, extent=(-1, 1, 1, -1), interpolation="nearest", **kind)


def preview(image: Array, places: Array, samples: Array, positions: Array, title: str) -> Figure:
    """What the model samples: the image, every stencil point on it, and the sampled colours on the first shell.

    image (C, H, W) in [0, 1]; places (V, S, 2) image coordinates; samples (V, S, C); positions (V, D).
    """
    figure = Figure(figsize=(11.4, 3.8), layout="constrained")
    shown, sampled = figure.add_subplot(1, 3, 1), figure.add_subplot(1, 3, 2)
    for axes in (shown, sampled):
        show_image(axes, image)
        axes.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], xlim=(-1, 1), ylim=(1, -1))
        axes.tick_params(labelsize=7)
    shown.set_title(plain(title, 48), fontsize=10)
    sampled.scatter(places[..., 0], places[..., 1], s=2, c=ORANGE, linewidths=0)
    centre = places[:, places.shape[1] // 2]
    sampled.scatter(centre[:, 0], centre[:, 1], s=14, c=BLUE, edgecolors="white", linewidths=0.4)
    sampled.set_title(f"{places.shape[0]} vertices x {places.shape[1]} samples", fontsize=10)
    shell = paint_vertices(figure, (1, 3, 3), positions, to_rgb(samples), 80)
    shell.set_title("mean sample at each vertex of shell 1", fontsize=10)
    return figure


def shells(positions: Sequence[Array], values: Sequence[Array], label: str) -> Figure:
    """Every shell side by side, outer first, vertices coloured by a value (V,) on one scale."""
    figure = Figure(figsize=(2.5 * len(positions) + 0.9, 2.7), layout="constrained")
    every = np.concatenate(values)
    scale = ScalarMappable(Normalize(float(every.min()), float(every.max())), colormaps["viridis"])
    panels = []
    for index, (place, value) in enumerate(zip(positions, values, strict=True)):
        panels.append(paint_vertices(figure, (1, len(positions), index + 1), place, scale.to_rgba(value)[:, :3], 36))
        panels[-1].set_title(f"shell {index + 1}, V = {len(place)}", fontsize=9)
    bar = figure.colorbar(scale, ax=panels, shrink=0.8, pad=0.02)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=7)
    return figure


def confusion(matrix: Array, classes: Sequence[str]) -> Figure:
    """Rows: what it is; columns: what the model says; counts, shaded by share of the row."""
    side = min(16.0, max(3.6, 0.36 * len(classes) + 1.4))
    figure = Figure(figsize=(side, side))
    axes = figure.subplots()
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    if len(classes) <= 20:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                ink = "white" if share[row, column] > 0.5 else "black"
                axes.text(column, row, str(int(count)), ha="center", va="center", fontsize=7, color=ink)
    names = [plain(name) for name in classes]
    small: dict[str, Any] = {"fontsize": 7 if len(classes) <= 50 else 4}
    turned: dict[str, Any] = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(names)), names, **small, **(turned if max(map(len, names)) > 2 else {}))
    axes.set_yticks(range(len(names)), names, **small)
    axes.set(xlabel="predicted", ylabel="true")
    return figure
