"""Draw shells.png: an image, the points where the first shell samples it, and the five shells of its tokens.

Positions, image coordinates, stencils, samples and neighbours are computed by the model. The photograph is `flower.jpg`
of scikit-learn's sample images (CC BY 2.0, credited there to flickr.com/photos/vultilion), cropped to its centre and
reduced to 32x32 pixels, the input size of the model.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Ellipse, Rectangle
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor

from quatsphere import create_model
from quatsphere.models import QSV
from quatsphere.nn.patch_embedding import sample_image

TARGET = Path(__file__).with_name("shells.png")
MARKS = ("#0072B2", "#E69F00", "#CC79A7", "#56B4E9")  # Okabe and Ito, colour-blind safe
MARKED_COORDS = ((-0.33, -0.42), (0.3, 0.12), (-0.12, 0.55), (0.42, -0.6))
"""Image coordinates near which vertices are marked."""
EDGE, RIM, GLOBE = "#222222", "#9A9A9A", "#F2F2F2"
GAP = 0.42
TILT = math.radians(12)
Array = NDArray[np.float64]


def photograph() -> Tensor:
    """Return the photograph (3, 32, 32) in [0, 1]."""
    whole = Image.fromarray(load_sample_image("flower.jpg"))
    side = min(whole.size)
    left, top = (whole.width - side) // 2, (whole.height - side) // 2
    small = whole.crop((left, top, left + side, top + side)).resize((32, 32), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1) / 255


def vertex_colours(model: QSV, image: Tensor) -> list[Array]:
    """Return one colour per vertex: the mean of its 25 samples on shell 1, then the mean over its neighbours."""
    places = model.layout.image_coords().unsqueeze(1) + model.embed.stencil
    colours = [sample_image(image[None], places, False)[0].mean(1)]
    for graph in model.layout.cross:
        colours.append(colours[-1][graph.neighbours].mean(1))
    return [colour.clamp(0, 1).numpy() for colour in colours]


def project_vertices(positions: Array) -> tuple[Array, Array]:
    """Return screen coordinates (V, 2) and depth (V,); the middle of the image faces the viewer, rows go down."""
    depth, down, right = positions.T  # x, y, z
    up, depth = -down * math.cos(TILT) + depth * -math.sin(TILT), depth * math.cos(TILT) - down * math.sin(TILT)
    return np.column_stack((right, up)), depth


def draw_image(axes: Axes, image: Tensor, places: Array, marked: list[int]) -> None:
    """Draw the image, a dot per vertex, and the stencils of the marked vertices."""
    axes.imshow(image.permute(1, 2, 0), extent=(-1, 1, 1, -1), interpolation="nearest")
    centres = places[:, 12]
    axes.scatter(*centres.T, s=9, c="white", edgecolors="black", linewidths=0.5)
    for mark, vertex in zip(MARKS, marked, strict=True):
        low, high = places[vertex].min(0) - 0.035, places[vertex].max(0) + 0.035
        axes.add_patch(Rectangle(tuple(low), *(high - low), fill=False, edgecolor="black", linewidth=3.4))
        axes.add_patch(Rectangle(tuple(low), *(high - low), fill=False, edgecolor=mark, linewidth=2.0))
        axes.scatter(*places[vertex].T, s=11, color=mark, edgecolors="black", linewidths=0.5, zorder=3)
    axes.set(xlim=(-1, 1), ylim=(1, -1), xticks=[], yticks=[])
    axes.set_title("a 32x32 image, sampled by shell 1", fontsize=11)
    axes.set_xlabel(
        "dots: the 128 vertices; each samples the image\nat a 5x5 stencil, of which four are drawn", fontsize=10
    )


def draw_shell(axes: Axes, centre: float, radius: float, positions: Array, colours: Array) -> None:
    """Draw the visible half of a shell."""
    screen, depth = project_vertices(positions)
    axes.add_patch(Circle((centre, 0), radius, facecolor=GLOBE, edgecolor=RIM, linewidth=1.0, zorder=1))
    near = np.flatnonzero(depth > 0)
    near = near[np.argsort(depth[near])]
    spacing = radius * math.sqrt(4 * math.pi / len(positions))
    for vertex in near:
        x, y = screen[vertex]
        size, angle = 0.92 * spacing, math.degrees(math.atan2(y, x))  # a disc on the sphere appears as an ellipse
        width = size * max(0.25, depth[vertex] / radius)
        dot = Ellipse((centre + x, y), width, size, angle=angle, facecolor=colours[vertex], zorder=2)
        dot.set(edgecolor="white", linewidth=0.4)
        axes.add_patch(dot)


def draw_shells(axes: Axes, model: QSV, colours: list[Array], marked: list[int]) -> None:
    """Draw the shells to scale, side by side, and the edges to one vertex of each inner shell."""
    shells = [shell.positions.detach().double().numpy() for shell in model.layout.shells]
    radii = [float(np.linalg.norm(positions[0])) for positions in shells]
    centres = [radii[0]]
    for before, radius in pairwise(radii):
        centres.append(centres[-1] + before + GAP + radius)
    for number, (centre, radius, positions) in enumerate(zip(centres, radii, shells, strict=True)):
        draw_shell(axes, centre, radius, positions, colours[number])
        label = f"shell {number + 1}\nradius {radius:.2f}\n{len(positions)} vertices"
        axes.text(centre, -1.1, label, ha="center", va="top", fontsize=10, linespacing=1.25)
    for mark, vertex in zip(MARKS, marked, strict=True):
        x, y = project_vertices(shells[0][vertex : vertex + 1])[0][0]
        axes.add_patch(Circle((centres[0] + x, y), 0.14, fill=False, edgecolor="black", linewidth=3.0, zorder=4))
        axes.add_patch(Circle((centres[0] + x, y), 0.14, fill=False, edgecolor=mark, linewidth=1.8, zorder=5))
    for number, graph in enumerate(model.layout.cross):
        screen, depth = project_vertices(shells[number + 1])
        target = int(np.argmax(depth - abs(screen[:, 1]) - 0.3 * screen[:, 0]))
        place = np.array([centres[number + 1], 0.0]) + screen[target]
        for source in graph.neighbours[target].tolist():
            start = np.array([centres[number], 0.0]) + project_vertices(shells[number][source : source + 1])[0][0]
            axes.plot(*np.stack((start, place)).T, color=EDGE, linewidth=0.7, alpha=0.75, zorder=6)
        axes.scatter(*place, s=22, facecolor="white", edgecolor=EDGE, linewidth=1.2, zorder=7)
    axes.set(xlim=(-0.12, centres[-1] + radii[-1] + 0.1), ylim=(-1.62, 1.12), aspect="equal")
    axes.set_axis_off()
    axes.set_title("its tokens on five nested shells, drawn side by side; lines: neighbours of one vertex", fontsize=11)


def main() -> None:
    """Draw and save the picture."""
    model = create_model("qsv")
    assert isinstance(model, QSV)
    with torch.no_grad():
        image = photograph()
        places = (model.layout.image_coords().unsqueeze(1) + model.embed.stencil).numpy()
        colours = vertex_colours(model, image)
    marked = [int(np.argmin(((places[:, 12] - coords) ** 2).sum(1))) for coords in MARKED_COORDS]
    figure = Figure(figsize=(14, 4.4))
    grid = figure.add_gridspec(
        1, 2, width_ratios=[1, 2.62], left=0.012, right=0.995, top=0.92, bottom=0.11, wspace=0.03
    )
    draw_image(figure.add_subplot(grid[0]), image, places, marked)
    draw_shells(figure.add_subplot(grid[1]), model, colours, marked)
    figure.savefig(TARGET, dpi=100, facecolor="white", pil_kwargs={"optimize": True})
    print(TARGET)


if __name__ == "__main__":
    main()
