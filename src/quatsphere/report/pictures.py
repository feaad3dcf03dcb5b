"""One function per picture, one style: colour-blind safe, readable in print and on screen."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
Array = NDArray[Any]


def to_png(figure: Figure) -> bytes:
    """The picture as PNG bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight", facecolor="white")
    return buffer.getvalue()


def show_image(axes: Any, image: Array) -> None:
    """An image (C, H, W) in [0, 1] on axes that run over [-1, 1]², first row on top."""
    pixels = np.moveaxis(image, 0, -1)
    kind = {"cmap": "gray", "vmin": 0, "vmax": 1} if pixels.shape[-1] == 1 else {}
    shown = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    axes.imshow(shown, extent=(-1, 1, 1, -1), interpolation="nearest", **kind)


def paint_vertices(axes: Any, positions: Array, colours: Any, size: float = 14.0) -> None:
    """Vertices (V, 3) in space, or (V, 2) laid flat; the polar axis y points down the page as image rows do."""
    if positions.shape[1] == 2:
        positions = np.column_stack((positions[:, 0], positions[:, 1], np.zeros(len(positions))))
    axes.scatter(positions[:, 0], positions[:, 2], -positions[:, 1], c=colours, s=size, depthshade=False, linewidths=0)
    axes.set_box_aspect((1, 1, 1))
    axes.set_axis_off()
    axes.view_init(elev=18, azim=-60)


def preview(image: Array, places: Array, samples: Array, positions: Array, title: str) -> Figure:
    """What the model samples: the image, every stencil point on it, and the sampled colours on the first shell.

    image (C, H, W) in [0, 1]; places (V, S, 2) image coordinates; samples (V, S, C); positions (V, D).
    """
    figure = Figure(figsize=(11, 3.8))
    plain, sampled = figure.add_subplot(1, 3, 1), figure.add_subplot(1, 3, 2)
    sphere = figure.add_subplot(1, 3, 3, projection="3d")
    show_image(plain, image)
    plain.set_title(f"{title}", fontsize=10)
    show_image(sampled, image)
    sampled.scatter(places[..., 0], places[..., 1], s=0.6, c=ORANGE, alpha=0.5, linewidths=0)
    centre = places[:, places.shape[1] // 2]
    sampled.scatter(centre[:, 0], centre[:, 1], s=6, c=BLUE, linewidths=0)
    sampled.set(xlim=(-1, 1), ylim=(1, -1))
    sampled.set_title(f"{places.shape[0]} vertices x {places.shape[1]} samples", fontsize=10)
    paint_vertices(sphere, positions, colours_of(samples), 22)
    sphere.set_title("mean sample at each vertex of shell 1", fontsize=10)
    for axes in (plain, sampled):
        axes.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1])
        axes.tick_params(labelsize=7)
    return figure


def colours_of(samples: Array) -> Array:
    """RGB (V, 3) in [0, 1] from samples (V, S, C)."""
    mean = samples.mean(axis=1).clip(0, 1)
    return np.repeat(mean, 3, axis=1) if mean.shape[1] == 1 else mean[:, :3]


def shells(positions: Sequence[Array], values: Sequence[Array], title: str) -> Figure:
    """Every shell side by side, outer first, vertices coloured by a value (V,) or by RGB (V, 3)."""
    figure = Figure(figsize=(2.6 * len(positions), 2.9))
    for index, (place, value) in enumerate(zip(positions, values, strict=True)):
        axes = figure.add_subplot(1, len(positions), index + 1, projection="3d")
        paint_vertices(axes, place, value)
        axes.set_title(f"shell {index + 1}, V = {len(place)}", fontsize=9)
    figure.suptitle(title, fontsize=10)
    return figure


def curves(metrics: Sequence[dict[str, Any]], title: str) -> Figure:
    """Loss and accuracies by epoch."""
    epochs = [record["epoch"] for record in metrics]
    figure = Figure(figsize=(8, 3))
    left, right = figure.subplots(1, 2)
    left.plot(epochs, [r["train"]["loss"] for r in metrics], color=BLUE, marker="o", markersize=3)
    left.set(xlabel="epoch", ylabel="training loss")
    right.plot(
        epochs,
        [r["train"]["accuracy"] for r in metrics],
        color=ORANGE,
        marker="s",
        markersize=3,
        label="train (augmented)",
    )
    right.plot(epochs, [r["val_accuracy"] for r in metrics], color=BLUE, marker="o", markersize=3, label="validation")
    right.set(xlabel="epoch", ylabel="accuracy")
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    return figure


def confusion(matrix: Array, classes: Sequence[str]) -> Figure:
    """Rows: what it is; columns: what the model says; counts, shaded by share of the row."""
    side = max(3.6, 0.36 * len(classes) + 1.4)
    figure = Figure(figsize=(side, side))
    axes = figure.subplots()
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    if len(classes) <= 20:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                ink = "white" if share[row, column] > 0.5 else "black"
                axes.text(column, row, str(int(count)), ha="center", va="center", fontsize=7, color=ink)
    axes.set_xticks(range(len(classes)), classes, rotation=60, ha="right", fontsize=7)
    axes.set_yticks(range(len(classes)), classes, fontsize=7)
    axes.set(xlabel="predicted", ylabel="true")
    return figure


def predictions(images: Array, truth: Sequence[str], said: Sequence[str], sure: Sequence[float]) -> Figure:
    """Sample images (N, C, H, W) in [0, 1] with what the model says; wrong ones are marked in words and colour."""
    columns = 8
    rows = -(-len(images) // columns)
    figure = Figure(figsize=(1.35 * columns, 1.75 * rows))
    for index, image in enumerate(images):
        axes = figure.add_subplot(rows, columns, index + 1)
        show_image(axes, image)
        right = truth[index] == said[index]
        label = f"{said[index]} {sure[index]:.2f}" if right else f"{said[index]} {sure[index]:.2f}\nis {truth[index]}"
        axes.set_title(label, fontsize=8, color=GREEN if right else ORANGE)
        axes.set_axis_off()
    figure.tight_layout()
    return figure
