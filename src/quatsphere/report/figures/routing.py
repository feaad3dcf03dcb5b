"""How weights are spread over neighbours: a histogram per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from quatsphere.report.figures.style import COLOURS, DASHES, INK, WIDE, light_grid, styled


@styled
def routing_histograms(section: Mapping[str, Any], steps: Sequence[str]) -> Figure:
    """Share of the weights by their multiple of the uniform 1/k, one outline per step; uniform is the line at 1."""
    figure = Figure(figsize=(0.75 * WIDE, 2.5), layout="constrained")
    axes = figure.subplots()
    edges = np.array(section["histogram"]["edges"])
    shares = np.array(section["histogram"]["shares"])
    rows = zip(steps, shares, section["entropy"], section["peak"], strict=True)
    for index, (name, row, entropy, peak) in enumerate(rows):
        label = f"{name}: entropy {entropy:.3f}, peak {peak:.2f}"
        look = {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index % len(DASHES)], "linewidth": 1.2}
        axes.stairs(row / np.diff(edges), edges, label=label, **look)
    axes.axvline(1, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    seen = np.flatnonzero(shares.sum(0) > 1e-4)
    axes.set(xlim=(0, min(float(edges[-1]), float(edges[seen[-1] + 1]) + 0.3)), ylim=(0, None))
    above = f"; last bin: {edges[-1]:g} and more" if seen[-1] == shares.shape[1] - 1 else ""
    axes.set(xlabel=f"weight as a multiple of 1/k (dashed: uniform{above})", ylabel="density")
    light_grid(axes)
    figure.legend(loc="outside right upper")
    return figure
