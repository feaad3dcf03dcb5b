"""Figures show the given numbers, accept any names, cut nothing off and use colour-blind safe colours."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch
from PIL import Image

from quatsphere.diagnostics import SCHEMA
from quatsphere.diagnostics.cost_breakdown import FUSED_NOTE
from quatsphere.report import figures as draw
from quatsphere.report.figure_data import costs_of, read_results, schematics
from quatsphere.report.figures import style
from quatsphere.report.figures.architecture import WITHIN
from quatsphere.report.figures.study import FIXED_POINT
from quatsphere.report.figures.style import INK
from quatsphere.report.run_files import NEWEST_SCHEMA
from quatsphere.study.length_contrasts import Curve, CurvePoint, LengthContrast
from quatsphere.study.statistics import Estimate

LITE = Path(__file__).parent.parent.parent / "results" / "lite"
HOSTILE = [r"$\frac$ 猫", "<script>alert(1)</script>", "a very long name that never ends and never ends and never ends"]
RNG = np.random.default_rng(0)
COSTS = {"routing_uniform": -0.2, "transport_identity": -4.3, "both_off": -21.8, "frozen_random": -19.4}


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def records(epochs: int, steps: int = 5, shells: int = 3) -> list[dict[str, Any]]:
    return [
        {
            "epoch": epoch,
            "train": {"loss": 2 / epoch, "accuracy": 0.5},
            "val_accuracy": 1 - 1 / (1 + epoch),
            "routing_entropy": [0.9] * steps,
            "routing_peak": [1.4] * steps,
            "beta": [0.7] * steps,
            "bound": [0.4] * shells,
            "field_motion": [0.1] * shells if epoch > 1 else [],
        }
        for epoch in range(1, 1 + epochs)
    ]


def sphere(count: int, radius: float) -> np.ndarray:
    points = RNG.normal(size=(count, 3))
    return radius * points / np.linalg.norm(points, axis=1, keepdims=True)


def one_view(costs: dict[str, float]) -> Figure:
    positions = [sphere(64, 1.0), sphere(96, 0.6)]
    return draw.qsv_in_one_view(positions, [(positions[1][0], positions[0][:8])], costs, "of a test")


def shell(count: int, moved: bool) -> dict[str, Any]:
    places = RNG.uniform(-1, 1, (count, 2)).tolist()
    displacement = {"mean": 0.1, "max": 0.2} if moved else None
    return {"places": places, "start_places": places if moved else None, "displacement": displacement}


def histogram(steps: int) -> dict[str, Any]:
    shares = np.zeros((steps, 4))
    shares[:, 1:3] = 0.5
    return {
        "entropy": [0.99] * steps,
        "peak": [1.2] * steps,
        "histogram": {"edges": [0, 0.5, 1, 1.5, 2], "shares": shares.tolist()},
    }


EFFECT = {"accuracy": -0.1, "nll": 0.5}
TRANSPORT = {"heads": [EFFECT] * 4, "steps": [EFFECT] * 5, "all": EFFECT}
PARTS = {"total": 1000, "parameter_share": {"a": 0.9, "b": 0.1}, "time_share": {"a": 0.5, "rest": 0.5}}
STEPS = ["within", "cross 1", "cross 2", "round 1", "round 2"]


def estimate(value: float, n: int = 2) -> Estimate:
    """One seed has no interval."""
    return Estimate(value, 0.2, n - 1, n)


ROWS = [
    draw.AblationRow("Full", [50.0, 52.0], estimate(51), None, 85.9, None),
    draw.AblationRow("Less", [45.0], estimate(45, 1), estimate(-6, 1), 81.7, -4.3),
    draw.AblationRow(HOSTILE[1], [51.0, 51.5], estimate(51.2), estimate(0.2)),
]
SCALING = [{"vertices": v, "seconds": 1e-5 * v**1.1, "peak_mb": 0.1 * v} for v in (1280, 10_000, 100_000)]
CURVE = draw.beta_curve("learned", [[1, 0.7, 0.9, 3]] * 3, ([[1, 0.5, 0.6, 3]] * 3, [[1, 1.1, 1.2, 3]] * 3), 3, None)

LENGTHS = [
    Curve(
        LengthContrast(name, {"transport_identity": 1, "full": -1}, -4.3, "negative"),
        (
            CurvePoint(90_000, estimate(-1.0), {1: -1.5, 2: -0.5}),
            CurvePoint(270_000, estimate(-2.0, 1), {1: -2.0}),
        ),
        (0.05, 0.05),
        None,
    )
    for name in ("transport -> identity", *HOSTILE)
]

FIGURES: dict[str, Callable[[], Figure]] = {
    "kernel": lambda: draw.kernel_comparison(1_315_840, 87_040, 333_040),
    "one view": lambda: one_view(COSTS),
    "temperature": lambda: draw.temperature_probe([CURVE, *(CURVE._replace(label=name) for name in HOSTILE)]),
    "no temperature": lambda: draw.temperature_probe([]),
    "training": lambda: draw.training_curves({"one": records(3)}),
    "training of many": lambda: draw.training_curves({name: records(30) for name in HOSTILE}),
    "inside": lambda: draw.inside_over_training(records(4), STEPS, 3),
    "inside of the baseline": lambda: draw.inside_over_training(
        [{**record, "beta": [], "bound": [], "field_motion": []} for record in records(2)], STEPS, 3
    ),
    "classes": lambda: draw.per_class_bars({"one": dict.fromkeys(HOSTILE, 0.5)}),
    "classes of many": lambda: draw.per_class_bars({"one": {"a": 0.5, "b": None}, "two": {"a": 0.1, "b": 1.0}}),
    "hundred classes": lambda: draw.per_class_bars({"one": {f"class {i}": i / 100 for i in range(100)}}),
    "ablation": lambda: draw.ablation_bars(ROWS, "95 % interval"),
    "lengths": lambda: draw.contrast_curves(LENGTHS, "of a test"),
    "one length": lambda: draw.contrast_curves(LENGTHS[:1], "of a test"),
    "transport": lambda: draw.transport_bars(TRANSPORT, STEPS),
    "cost": lambda: draw.cost_bars(PARTS),
    "cost with a note": lambda: draw.cost_bars({**PARTS, "note": FUSED_NOTE}),
    "routing": lambda: draw.routing_histograms(histogram(5), STEPS),
    "coverage": lambda: draw.coverage_map([shell(32, True), shell(48, True)], True),
    "plane": lambda: draw.coverage_map([shell(32, False)], False),
    "receptive": lambda: draw.receptive_map(
        {"map": RNG.random((8, 8)).tolist(), "images": 9, "effective_share": 0.4},
    ),
    "throughput": lambda: draw.throughput_bars(dict.fromkeys(HOSTILE, 100.0), "here"),
    "scaling": lambda: draw.scaling_plot(SCALING),
    "one point": lambda: draw.scaling_plot(SCALING[:1]),
}


def test_every_figure_is_a_function_that_is_drawn_here() -> None:
    """Public functions that return a figure are in the table above, or in test_shell_figures.py."""
    public = {n for n in draw.__all__ if getattr(getattr(draw, n), "__annotations__", {}).get("return") == "Figure"}
    drawn = {name for make in (*FIGURES.values(), one_view) for name in make.__code__.co_names}
    assert public - drawn == {"confusion_matrix", "sampling_preview", "shell_values"}
    assert all(isinstance(make(), Figure) for make in (FIGURES["cost"], FIGURES["plane"]))


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_cut_off(name: str) -> None:
    """The border of every picture is white, and something is drawn inside."""
    before = dict(rcParams)
    with Image.open(io.BytesIO(style.to_bytes(FIGURES[name](), "png"))) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    border = np.concatenate((pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]))
    assert (border > 250).all()
    assert (pixels < 100).any()
    assert dict(rcParams) == before  # the user's style is left alone


@pytest.mark.parametrize("name", ["one view", "training of many", "coverage"])
def test_svg_is_reproducible_and_self_contained(name: str) -> None:
    """The same numbers give the same bytes, without scripts, links, dates or external references."""
    state = RNG.bit_generator.state
    first = style.to_bytes(FIGURES[name](), "svg")
    RNG.bit_generator.state = state
    assert style.to_bytes(FIGURES[name](), "svg") == first
    tree = ElementTree.fromstring(first)
    tags = {element.tag.rpartition("}")[2] for element in tree.iter()}
    assert not tags & {"script", "a", "foreignObject", "iframe"}
    links = [value for element in tree.iter() for key, value in element.attrib.items() if key.endswith("href")]
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert b"<dc:date>" not in first


@pytest.mark.parametrize("kind", style.FIGURE_FORMATS)
def test_save_uses_the_format_of_the_suffix(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"figure.{kind}"
    draw.save(draw.scaling_plot(SCALING), path)
    start = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}[kind]
    assert path.read_bytes().startswith(start)


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_costs_appear_as_labels() -> None:
    shown = " | ".join(texts(one_view(COSTS))).replace("\N{MINUS SIGN}", "-")
    assert all(f"{cost:+.1f}" in shown for cost in COSTS.values())
    assert one_view(COSTS).get_supxlabel() == "of a test"
    few = " | ".join(texts(one_view({"both_off": -3.0}))).replace("\N{MINUS SIGN}", "-")
    assert "both: -3.0" in few
    assert "identity" not in few


def command_figure(*, paper: bool = False) -> Figure:
    """Return the figure as the command draws it, with the costs of results/lite or of the paper."""
    figure = dict(schematics(*costs_of([] if paper else read_results(str(LITE)))))["qsv"]
    assert isinstance(figure, Figure)
    return figure


def test_shells_are_round() -> None:
    figure = command_figure()
    circles = [patch for patch in drawn(figure).axes[0].patches if isinstance(patch, Circle)]
    assert len(circles) == 5
    for circle in circles:
        box = circle.get_window_extent()
        assert box.width == pytest.approx(box.height, rel=1e-3)


def test_edges_within_the_first_shell_are_drawn() -> None:
    """14 edges within the outer shell are followed by the edges between shells."""
    lines = command_figure().axes[0].lines
    assert [line.get_color() for line in lines] == [WITHIN] * 14 + [INK] * (14 + 3 * 16)
    for line in lines[:14]:
        x, y = line.get_xydata()[1]
        assert math.hypot(x - 4.75, y - 3.68) == pytest.approx(2.62)


def drawn(figure: Figure) -> Figure:
    """Return the figure after layout."""
    FigureCanvasAgg(figure).draw()
    return figure


@pytest.mark.parametrize("make", [command_figure, partial(command_figure, paper=True), FIGURES["kernel"]])
def test_text_fits_its_box_and_does_not_overlap(make: Callable[[], Figure]) -> None:
    for axes in drawn(make()).axes:
        boxes = {
            (box.get_x() + box.get_width() / 2, box.get_y() + box.get_height() / 2): box.get_window_extent()
            for box in axes.patches
            if isinstance(box, FancyBboxPatch)
        }
        assert boxes
        extents = [(text.get_position(), text.get_window_extent()) for text in axes.texts]
        for place, extent in extents:
            box = next((box for centre, box in boxes.items() if np.allclose(centre, place)), None)
            assert box is None or (box.x0 < extent.x0 and extent.x1 < box.x1), place
            assert box is None or (box.y0 < extent.y0 and extent.y1 < box.y1), place
        assert not any(one.overlaps(other) for (_, one), (_, other) in combinations(extents, 2))


def test_kernel_parameters_are_written() -> None:
    assert any("1,315,840" in text for text in texts(draw.kernel_comparison(1_315_840, 87_040)))
    assert not any("parameters" in text for text in texts(draw.kernel_comparison()))


def test_perturbation_networks_are_counted_separately() -> None:
    """The count of 87,040 excludes the 333,040 parameters of the perturbation networks of the same five steps."""
    name, figure = next(iter(schematics(COSTS, "of a test")))
    shown = texts(figure)
    assert name == "kernel"
    assert any("87,040 kernel parameters" in text for text in shown)
    assert any("not counted: 333,040 of its perturbation networks" in text for text in shown)


def test_temperature_probe_uses_the_cross_shell_steps() -> None:
    """Steps 1 and 2 of (1, 0.7, 0.9, 3) give mean and range; the curve starts at the fixed point."""
    assert list(CURVE.mean) == pytest.approx([FIXED_POINT, 0.8, 0.8, 0.8])
    assert (list(CURVE.low), list(CURVE.high)) == ([FIXED_POINT, 0.5, 0.5, 0.5], [FIXED_POINT, 1.2, 1.2, 1.2])
    assert math.log(2) + 0.1 == pytest.approx(FIXED_POINT, abs=1e-4)
    axes = draw.temperature_probe([CURVE]).axes[0]
    dashed = [line for line in axes.lines if list(line.get_ydata()) == [FIXED_POINT] * 2]
    assert len(dashed) == 1
    assert dashed[0].is_dashed()
    assert list(axes.lines[0].get_ydata()) == pytest.approx(list(CURVE.mean))


def test_curves_of_seeds_are_merged() -> None:
    one = draw.BetaCurve("a", range(3), [1, 2, 3], [0.5, 1, 2], [2, 3, 4])
    two = draw.BetaCurve("b", range(2), [3, 4], [0.1, 3], [3, 5])
    merged = draw.merge_curves("both", [one, two])
    assert merged == ("both", range(2), [2, 3], [0.1, 1], [3, 5])


def test_bar_heights_are_the_values() -> None:
    axes = draw.per_class_bars({"one": {"cat": 0.2, "ship": 0.9, "dog": 0.5}}).axes[0]
    assert [patch.get_height() for patch in axes.patches] == [0.9, 0.5, 0.2]  # easiest first
    assert [label.get_text() for label in axes.get_xticklabels()] == ["ship", "dog", "cat"]


def test_ablation_shows_our_values_and_the_papers() -> None:
    left, right = draw.ablation_bars(ROWS, "95 % interval").axes
    assert [patch.get_width() for patch in left.patches] == [51, 45, 51.2]
    assert [patch.get_width() for patch in right.patches] == [-6, 0.2]
    diamonds = [line.get_xdata()[0] for line in right.lines if line.get_marker() == "D" and len(line.get_xdata())]
    assert diamonds == [-4.3]
    assert [text.get_text() for text in right.texts] == ["85.9", "81.7"]


def test_scaling_fits_the_exponent() -> None:
    time, memory = draw.scaling_plot(SCALING).axes
    for axes, exponent in ((time, "1.10"), (memory, "1.00")):
        legend = axes.get_legend()
        assert legend is not None
        assert f"fit: V^{exponent}" in [text.get_text() for text in legend.get_texts()]


def test_coverage_shows_every_vertex() -> None:
    shells = [shell(32, True), shell(48, True)]
    figure = draw.coverage_map(shells, True)
    for axes, each in zip(figure.axes, shells, strict=True):
        assert any(np.allclose(dots.get_offsets(), each["places"]) for dots in axes.collections)
        top, bottom = axes.get_ylim()[::-1]
        assert (top, bottom) == (-1, 1)  # the image's first row is on top


def test_epochs_are_whole_numbers() -> None:
    for axes in draw.training_curves({"one": records(2)}).axes:
        assert all(float(tick) == round(float(tick)) for tick in axes.get_xticks())


SIGHTS = {
    "usual": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
"""Machado, Oliveira and Fernandes 2009, complete deficiency, on linear RGB."""


def lab(colour: str, sight: list[list[float]]) -> np.ndarray:
    """Return the CIE Lab coordinates of a colour as perceived."""
    coded = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)
    seen = (np.array(sight) @ linear).clip(0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    ratio = np.array(to_xyz) @ seen / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("scheme", [{}, style.DARK], ids=["light", "dark"])
@pytest.mark.parametrize("sight", SIGHTS)
def test_colours_are_distinguishable(sight: str, scheme: dict[str, str]) -> None:
    """Colours differ by more than 10 in Lab (just noticeable: 2.3); marks and dashes differ too."""
    for one, other in combinations([scheme.get(colour, colour) for colour in style.COLOURS[:7]], 2):
        assert np.linalg.norm(lab(one, SIGHTS[sight]) - lab(other, SIGHTS[sight])) > 10, (one, other)
    assert len(set(zip(style.COLOURS, style.MARKS, strict=True))) == len(style.COLOURS)


def test_reader_supports_the_written_schema() -> None:
    assert NEWEST_SCHEMA == SCHEMA
