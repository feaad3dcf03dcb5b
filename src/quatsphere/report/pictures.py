"""One function per picture, one style: colour-blind safe, readable in print and on screen."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from quatsphere.report.images import to_rgb
from quatsphere.report.vertices import paint_vertices

BLUE, ORANGE = "#0072B2", "#D55E00"
Array = NDArray[Any]


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
