"""Figures of a trained model: its samples and shells, routing, transport, vertices, receptive field, cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from quatsphere.diagnostics.view_trace import mean_colours
from quatsphere.report.figures.style import (
    BLUE,
    COLOURS,
    DASHES,
    GREEN,
    GREY,
    INK,
    MAP_GRID,
    ON_COLOUR,
    ORANGE,
    SHELL_EDGE,
    SHELL_OUTLINE,
    SLANTED,
    WIDE,
    Array,
    escape_math,
    light_grid,
    new_figure,
    new_panels,
    on_phone,
    styled,
)

ELEVATION, AZIMUTH = 14.0, -22.0
PanelIndex = tuple[int, int, int]
"""Rows, columns and number of a panel."""
DiagnosisSection = Mapping[str, Any]
"""A section of the result of `quatsphere.diagnostics.diagnose`, or of diagnostics.json."""


@styled
def routing_histograms(section: DiagnosisSection, steps: Sequence[str]) -> Figure:
    """Draw the density of the routing weights as multiples of the uniform weight 1/k, one outline per step.

    Args:
        section: section `routing` of a diagnosis.
        steps: names of the steps.
    """
    figure = new_figure(0.75 * WIDE, 2.5 + (0.16 * len(steps) if on_phone() else 0))
    axes = figure.subplots()
    edges = np.array(section["histogram"]["edges"])
    shares = np.array(section["histogram"]["shares"])
    rows = zip(steps, shares, section["entropy"], section["peak"], strict=True)
    for index, (name, row, entropy, peak) in enumerate(rows):
        label = f"{name}: entropy {entropy:.3f}, peak {peak:.2f}"
        style = {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index % len(DASHES)], "linewidth": 1.2}
        axes.stairs(row / np.diff(edges), edges, label=label, **style)
    axes.axvline(1, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    occupied = np.flatnonzero(shares.sum(0) > 1e-4)
    axes.set(xlim=(0, min(float(edges[-1]), float(edges[occupied[-1] + 1]) + 0.3)), ylim=(0, None))
    above = f"; last bin: {edges[-1]:g} and more" if occupied[-1] == shares.shape[1] - 1 else ""
    axes.set(xlabel=f"weight as a multiple of 1/k (dashed: uniform{above})", ylabel="density")
    light_grid(axes)
    figure.legend(loc="outside lower left" if on_phone() else "outside right upper")
    return figure


@styled
def transport_bars(section: DiagnosisSection, steps: Sequence[str]) -> Figure:
    """Draw the increase of the negative log-likelihood without the transport of each head and of each step.

    Args:
        section: section `transport` of a diagnosis.
        steps: names of the steps.
    """
    figure, rows, columns = new_panels(2, 2, 2.2)
    widths = (max(2, len(section["heads"])), 1 + len(steps))[:columns]
    left, right = figure.subplots(rows, columns, sharey=True, width_ratios=widths)
    heads = [str(index) for index in range(1, 1 + len(section["heads"]))]
    for axes, names, effects, colour, title in (
        (left, heads, section["heads"], ORANGE, "head, in all steps"),
        (right, [*steps, "all"], [*section["steps"], section["all"]], GREEN, "step, all heads"),
    ):
        centres = np.arange(len(names))
        axes.bar(centres, [effect["nll"] for effect in effects], 0.7, color=colour, zorder=2)
        axes.set_xticks(centres, names, **({"rotation": 45, **SLANTED} if max(map(len, names)) > 3 else {}))
        axes.set_xlabel(title)
        axes.axhline(0, color=GREY, linewidth=0.7)
        light_grid(axes)
    for axes in (left, right)[: 3 - columns]:
        axes.set_ylabel("change of NLL\nwithout transport")
    return figure


@styled
def coverage_map(shells: Sequence[DiagnosisSection], on_sphere: bool) -> Figure:
    """Draw the vertices of every shell on Lambert's equal-area map, now (dots) and before training (rings).

    Equal areas of the map are equal areas of the sphere, so an even shell is an even map, except at its poles.

    Args:
        shells: `shells` of the section `coverage` of a diagnosis.
        on_sphere: whether the shells are spheres, not planes.
    """
    drawn = [shell for shell in shells if shell["places"]]
    height = (1.9 if on_phone() else 1.4) if on_sphere else 2.4
    figure, rows, columns = new_panels(len(drawn), 3, height, extra=0.45)
    for index, shell in enumerate(drawn):
        axes = figure.add_subplot(rows, columns, index + 1)
        points = np.array(shell["places"])
        size = float(np.clip(1400 / len(points), 2, 16))
        if shell.get("start_places"):
            _draw_moves(axes, points, np.array(shell["start_places"]), size)
        axes.scatter(points[:, 0], points[:, 1], s=size, color=BLUE, linewidths=0, zorder=3)
        _map_frame(axes, on_sphere)
        moved = shell.get("displacement")
        distance = "" if not moved else f", moved {np.degrees(moved['mean']):.1f}°"
        axes.set_title(f"shell {index + 1}: {len(points)} vertices{distance}", fontsize=7.5)
    if any(shell.get("start_places") for shell in drawn):
        now = Line2D([], [], color=BLUE, marker="o", linestyle="", label="now")
        start = Line2D([], [], color=ORANGE, marker="o", markerfacecolor="none", linestyle="", label="before training")
        figure.legend(handles=[now, start], loc="outside upper center", ncols=2)
    return figure


def _draw_moves(axes: Any, points: Array, start: Array, size: float) -> None:
    """Draw rings at the initial positions and lines to the current ones, across the map's edge if that is shorter."""
    rings = {"facecolors": "none", "edgecolors": ORANGE, "linewidths": 0.5}
    axes.scatter(start[:, 0], start[:, 1], s=size, zorder=2, **rings)
    for (u, v), (start_u, start_v) in zip(points, start, strict=True):
        near = start_u + 2 * round((u - start_u) / 2)
        axes.plot((near, u), (start_v, v), color=ORANGE, linewidth=0.5, zorder=1)


def _map_frame(axes: Any, on_sphere: bool) -> None:
    axes.set(xlim=(-1, 1), ylim=(1, -1), aspect=0.5 if on_sphere else 1)
    axes.spines[["top", "right"]].set_visible(True)
    if on_sphere:
        axes.set_xticks([-1, -0.5, 0, 0.5, 1], _degrees(-180, None, 0, None, 180))
        axes.set_yticks([-1, -0.5, 0, 0.5, 1], _degrees(-90, -30, 0, 30, 90))
    else:
        axes.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    axes.tick_params(labelsize=6.5, length=2)
    axes.grid(True, color=MAP_GRID, linewidth=0.5, zorder=0)


def _degrees(*values: int | None) -> list[str]:
    return ["" if value is None else f"{value}°".replace("-", "\N{MINUS SIGN}") for value in values]


@styled
def receptive_map(section: DiagnosisSection) -> Figure:
    """Draw the mean |gradient| of the predicted logit by pixel, as a multiple of its mean over the image.

    Args:
        section: section `receptive` of a diagnosis.
    """
    gradients = np.array(section["map"])
    figure = new_figure(0.5 * WIDE, 2.7)
    axes = figure.subplots()
    shown = axes.imshow(gradients * gradients.size, cmap="cividis", vmin=0, interpolation="nearest")
    bar = figure.colorbar(shown, ax=axes, shrink=0.85)
    bar.set_label("|∂ logit / ∂ pixel|, mean = 1")
    bar.outline.set_visible(False)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    label = f"{section['images']} images; effective share of pixels {section['effective_share']:.0%}"
    axes.set_xlabel(label, color=GREY)
    return figure


@styled
def cost_bars(section: DiagnosisSection) -> Figure:
    """Draw the share of each part in the parameters (left) and in the time of a forward pass (right).

    Args:
        section: section `parts` of a diagnosis.
    """
    figure, rows, columns = new_panels(2, 2, 2.3)
    for axes, shares, title, note in zip(
        figure.subplots(rows, columns),
        (section["parameter_share"], section["time_share"]),
        (f"{section['total']:,} parameters", "time of a forward pass"),
        (None, section.get("note")),
        strict=True,
    ):
        large = sorted(((name, share) for name, share in shares.items() if share >= 0.002), key=lambda item: item[1])
        bars = axes.barh([name for name, _ in large], [100 * share for _, share in large], 0.66, color=BLUE, zorder=2)
        axes.bar_label(bars, [f"{100 * share:.1f}" for _, share in large], fontsize=7, padding=2)
        axes.set(title=title, xlabel=f"share, %\n{note}" if note else "share, %")
        axes.margins(x=0.14)
        axes.tick_params(axis="y", length=0)
        light_grid(axes, "x")
    return figure


@styled
def sampling_preview(image: Array, points: Array, samples: Array, positions: Array, title: str) -> Figure:
    """Draw an image, the points where the first shell samples it, and the mean sample of each vertex on the shell.

    Args:
        image: pixels (C, H, W) in [0, 1].
        points: image coordinates (V, S, 2) of all samples, as from `first_shell_samples`.
        samples: sampled values (V, S, C).
        positions: positions of the vertices, (V, 3) on the sphere or (V, 2) on the plane.
        title: title of the image.
    """
    figure, rows, columns = new_panels(3, 3, 3.2 if on_phone() else 3.8, width=11.4)
    left, middle = (figure.add_subplot(rows, columns, number) for number in (1, 2))
    grey: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": 1}
    shown, options = (image[0], grey) if len(image) == 1 else (np.moveaxis(image, 0, -1), {})
    for axes in (left, middle):
        axes.imshow(shown, extent=(-1, 1, 1, -1), interpolation="nearest", **options)
        axes.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], xlim=(-1, 1), ylim=(1, -1))
    left.set_title(escape_math(title, 48), fontsize=10)
    middle.scatter(points[..., 0], points[..., 1], s=2, c=ORANGE, linewidths=0)
    centre = points[:, points.shape[1] // 2]
    middle.scatter(centre[:, 0], centre[:, 1], s=14, c=BLUE, edgecolors=ON_COLOUR, linewidths=0.4)
    middle.set_title(f"{points.shape[0]} vertices x {points.shape[1]} samples", fontsize=10)
    shell = _draw_vertices(figure, (rows, columns, 3), positions, mean_colours(samples), 80)
    shell.set_title("mean sample at each vertex of shell 1", fontsize=10)
    return figure


@styled
def shell_values(positions: Sequence[Array], values: Sequence[Array], label: str) -> Figure:
    """Draw all shells side by side, vertices coloured by a value on a common scale.

    Args:
        positions: positions (V, 3) or (V, 2) of the vertices of each shell, outer shell first.
        values: one value (V,) per vertex of each shell.
        label: name of the value.
    """
    width = 2.5 * len(positions) + 0.9
    figure, rows, columns = new_panels(len(positions), max(4, len(positions)), 1.8 if on_phone() else 2.7, width=width)
    flat = np.concatenate(values)
    scale = ScalarMappable(Normalize(float(flat.min()), float(flat.max())), colormaps["viridis"])
    panels = []
    for index, (position, value) in enumerate(zip(positions, values, strict=True)):
        colours = scale.to_rgba(value)[:, :3]
        panels.append(_draw_vertices(figure, (rows, columns, index + 1), position, colours, 14 if on_phone() else 36))
        panels[-1].set_title(f"shell {index + 1}, V = {len(position)}", fontsize=9)
    bar = figure.colorbar(scale, ax=panels, shrink=0.8, pad=0.02)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=7)
    return figure


def _draw_vertices(figure: Figure, panel: PanelIndex, positions: Array, colours: Array, size: float) -> Any:
    """Add axes with vertices (V, 3) on a sphere or (V, 2) on the plane, coloured by RGB (V, 3) in [0, 1]."""
    draw = _draw_sphere if positions.shape[1] == 3 else _draw_plane
    return draw(figure, panel, positions, colours, size)


def _draw_plane(figure: Figure, panel: PanelIndex, positions: Array, colours: Array, size: float) -> Any:
    axes = figure.add_subplot(*panel)
    axes.scatter(positions[:, 0], positions[:, 1], c=colours, s=size, edgecolors=SHELL_EDGE, linewidths=0.4)
    axes.set(xlim=(-1.05, 1.05), ylim=(1.05, -1.05), aspect="equal")
    axes.set_axis_off()
    return axes


def _draw_sphere(figure: Figure, panel: PanelIndex, positions: Array, colours: Array, size: float) -> Any:
    """Draw the near half in full colour and the far half small and pale.

    Longitude 0, the middle of the image, is on the x axis; the polar axis y points down, as image rows do. On screen
    (x, z, -y) are right-handed axes, so the shell shows the image and not its mirror image.
    """
    axes = figure.add_subplot(*panel, projection="3d")
    radius = float(np.linalg.norm(positions, axis=1).max())
    points = np.column_stack((positions[:, 0], positions[:, 2], -positions[:, 1])) / radius
    towards, right, up = _camera_axes()
    near = points @ towards > 0
    angle = np.linspace(0, 2 * math.pi, 100)[:, None]
    axes.plot(*(np.cos(angle) * right + np.sin(angle) * up).T, color=SHELL_OUTLINE, linewidth=0.8)
    pale = np.column_stack((colours[~near], np.full((~near).sum(), 0.25)))  # over the background, light or dark
    axes.scatter(*points[~near].T, c=pale, s=size / 4, depthshade=False, edgecolors=SHELL_OUTLINE, linewidths=0.3)
    axes.scatter(*points[near].T, c=colours[near], s=size, depthshade=False, edgecolors=SHELL_EDGE, linewidths=0.4)
    axes.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(-1, 1))
    axes.set_proj_type("ortho")
    axes.set_box_aspect((1, 1, 1), zoom=1.55)
    axes.view_init(elev=ELEVATION, azim=AZIMUTH)
    axes.set_axis_off()
    return axes


def _camera_axes() -> tuple[Array, Array, Array]:
    """Return unit vectors towards the eye, to its right and up."""
    elevation, azimuth = math.radians(ELEVATION), math.radians(AZIMUTH)
    level = np.array([math.cos(azimuth), math.sin(azimuth), 0.0])
    towards = math.cos(elevation) * level + np.array([0.0, 0.0, math.sin(elevation)])
    right = np.array([-math.sin(azimuth), math.cos(azimuth), 0.0])
    return towards, right, np.cross(towards, right)
