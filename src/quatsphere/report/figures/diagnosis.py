"""Figures of a diagnosis: routing weights, transport, vertices, receptive field, cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from quatsphere.report.figures.style import (
    BLUE,
    COLOURS,
    DASHES,
    GREEN,
    GREY,
    INK,
    MAP_GRID,
    ORANGE,
    SLANTED,
    WIDE,
    Array,
    light_grid,
    new_figure,
    new_panels,
    on_phone,
    styled,
)

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
