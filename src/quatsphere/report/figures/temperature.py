"""The paper's third figure: does the routing stay sharp when it is made so?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from quatsphere.report.figures.style import COLOURS, COLUMN, DASHES, INK, light_grid, plain, styled, whole_epochs

FIXED_POINT = 0.7931
"""softplus(0) + 0.1: where the priors pull β."""


Steps = Sequence[Sequence[float]]
"""By epoch, by step."""


class BetaCurve(NamedTuple):
    """β of the cross-shell steps by epoch: mean, least and greatest over steps and heads; epoch 0 is the start."""

    label: str
    epochs: Sequence[int]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def beta_curve(
    label: str, means: Steps, band: tuple[Steps, Steps] | None, shells: int, start: float | None
) -> BetaCurve:
    """The curve of one run from its log: mean β over heads by epoch and step, and where logged least and greatest.

    Steps are within, cross 1 ..., rounds; the probe is about the cross-shell ones. `start` is none for a zero logit.
    """
    first = FIXED_POINT if start is None else start
    cross, low, high = ([epoch[1:shells] for epoch in values] for values in (means, *(band or (means, means))))
    return BetaCurve(
        label,
        range(len(means) + 1),
        [first, *(sum(epoch) / len(epoch) for epoch in cross)],
        [first, *(min(epoch) for epoch in low)],
        [first, *(max(epoch) for epoch in high)],
    )


def merge_curves(label: str, curves: Sequence[BetaCurve]) -> BetaCurve:
    """Several seeds as one curve: the mean of the means, the widest band, as long as the shortest."""
    length = min(len(curve.epochs) for curve in curves)

    def at(epoch: int, name: str) -> list[float]:
        return [getattr(curve, name)[epoch] for curve in curves]

    means = [sum(at(epoch, "mean")) / len(curves) for epoch in range(length)]
    lows, highs = ([pick(at(e, name)) for e in range(length)] for name, pick in (("low", min), ("high", max)))
    return BetaCurve(label, range(length), means, lows, highs)


@styled
def temperature_probe(curves: Sequence[BetaCurve], data: str = "") -> Figure:
    """Means as lines, min to max as bands, the priors' fixed point dashed; `data` names the data set of the runs."""
    figure = Figure(figsize=(1.25 * COLUMN, 2.7), layout="constrained")
    axes = figure.subplots()
    for index, curve in enumerate(curves):
        colour = COLOURS[index % len(COLOURS)]
        axes.fill_between(curve.epochs, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
        label = plain(curve.label, 48)
        axes.plot(curve.epochs, curve.mean, color=colour, linestyle=DASHES[index % len(DASHES)], label=label)
        axes.plot(curve.epochs[-1:], curve.mean[-1:], "o", color=colour, clip_on=False)
    last = max((curve.epochs[-1] for curve in curves), default=1)
    top = max((max(curve.high) for curve in curves), default=1.0)
    axes.axhline(FIXED_POINT, color=INK, linestyle=(0, (4, 3)), linewidth=0.9)
    note = f"fixed point of the priors, {FIXED_POINT:.2f} "
    axes.text(last, FIXED_POINT + 0.04 * top, note, ha="right", va="bottom", fontsize=7, color=INK)
    axes.set_ylabel("β of the cross-shell steps")
    whole_epochs(axes)
    light_grid(axes)
    axes.set(xlim=(0, last), ylim=(0, 1.12 * max(1.0, top)))
    if curves:
        figure.legend(loc="outside upper left", title=plain(data, 80), alignment="left")
    return figure
