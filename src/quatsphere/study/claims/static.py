"""Claims that need no training: sizes, parameter counts and initial properties, computed at the paper's size."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from quatsphere.diagnostics import paper_model
from quatsphere.study.claims.evidence import Evidence
from quatsphere.study.claims.rules import Claim, Finding

Values = float | tuple[float, ...]


def computed(compute: Callable[[], Values], paper: Values, rounding: float, evidence: Evidence) -> Finding:
    """A value computed from the code equals the paper's to the digits that the paper prints."""
    ours = compute()
    mine, papers = (value if isinstance(value, tuple) else (value,) for value in (ours, paper))
    pairs = zip(mine, papers, strict=False)
    agrees = len(mine) == len(papers) and all(abs(a - b) <= rounding + 1e-9 for a, b in pairs)
    return Finding("holds" if agrees else "fails", "", 1, ours)


def _claim(
    name: str, section: str, statement: str, compute: Callable[[], Values], paper: Values, rounding: float = 0.0
) -> Claim:
    """Claim about a value that `compute` returns; `rounding` is half a unit of the paper's last digit."""
    rule = functools.partial(computed, functools.cache(compute), paper, rounding)
    return Claim(name, section, statement, paper, "exact", None, rule, "static")


APPENDIX = (
    256, 16, 128, 5, 128, 500, 50, 1e-4, 0.05, 1e-3, 0.1, 10, 100, 5e-5, 3, 2.5e-3, 0.1, 0.1, 0.1, 1e-3, 1e-2, 1e-5, 4,
    8, 10, 0.4,
)  # fmt: skip
"""The settings of the paper's appendix: model, schedule, optimisers, losses, augmentation, repulsion."""

STATIC: tuple[Claim, ...] = (
    _claim("size.vertices", "sec:layout", "the shells have 128, 192, 256, 320 and 384 vertices",
        paper_model.vertex_counts, (128, 192, 256, 320, 384)),
    _claim("size.neighbours", "eq:knn-budget", "targets of the five shells have 14, 14, 16, 16 and 16 neighbours",
        paper_model.neighbour_counts, (14, 14, 16, 16, 16)),
    _claim("size.radii", "sec:layout", "the radii fall from 1.0 to 0.4", paper_model.radii, (1.0, 0.4), 1e-6),
    _claim("size.edge_ratio", "sec:connectivity", "the graphs have about 0.05 of the edges of dense graphs",
        paper_model.edge_share, 0.05, 0.005),
    _claim("size.steps", "sec:layout",
        "the model has one step within the first shell, four between shells and two rounds on the last",
        paper_model.step_counts, (1, 4, 2)),
    _claim("config.appendix", "sec:appendix-config", "the default configuration is that of the appendix",
        paper_model.default_settings, APPENDIX),
    _claim("size.channels", "sec:appendix-config", "a head has Q = d / 4H = 4 quaternion channels",
        paper_model.channels, 4),
    _claim("parameters.qsv", "tab:context", "QSV has 0.64M parameters",
        lambda: paper_model.millions("qsv"), 0.64, 0.005),
    _claim("parameters.attention", "tab:context", "the matched attention baseline has 0.57M parameters",
        lambda: paper_model.millions("attention"), 0.57, 0.005),
    _claim("parameters.width", "sec:exp-baseline", "within QSV's parameter budget attention has width d = 96",
        paper_model.matched_width, 96),
    _claim("parameters.attention_wide", "sec:exp-baseline", "attention at d = 256 has 3.97M parameters",
        lambda: paper_model.millions("wide attention"), 3.97, 0.005),
    _claim("parameters.resnet20", "tab:context", "ResNet-20 has 0.27M parameters",
        lambda: paper_model.millions("resnet20"), 0.27, 0.005),
    _claim("parameters.flat", "tab:context", "attention on the flat lattice has 0.57M parameters",
        lambda: paper_model.millions("flat"), 0.57, 0.005),
    _claim("parameters.kernel", "sec:exp-baseline",
        "QSV's kernel has about 87K parameters (field and five post layers, without the perturbation networks)",
        lambda: paper_model.kernel_parameters()[1] / 1e3, 87.0, 0.5),
    _claim("parameters.projections", "sec:exp-baseline", "attention's projections have 1.32M parameters at d = 256",
        lambda: paper_model.kernel_parameters()[0] / 1e6, 1.32, 0.005),
    _claim("parameters.ratio", "sec:exp-baseline",
        "QSV's kernel is 15 times smaller (3.1 times with the perturbation networks of the same five steps)",
        lambda: paper_model.kernel_parameters()[0] / paper_model.kernel_parameters()[1], 15.0, 0.5),
    _claim("start.beta", "sec:exp-routing", "the penalty on beta has its fixed point at beta = 0.79",
        paper_model.initial_beta, 0.79, 0.005),
    _claim("start.bound", "eq:perturb", "the learned bound stays between 0.01 and pi/4",
        paper_model.bound_limits, (0.01, math.pi / 4), 1e-6),
    _claim("start.perturbation", "eq:perturb", "the perturbation is the identity before training",
        paper_model.initial_perturbation_angle, 0.0, 1e-3),
    _claim("kernel.score", "eq:rel-quat", "the score is Re(r) = cos(theta / 2)",
        paper_model.half_angle_error, 0.0, 1e-6),
    _claim("kernel.rotated", "sec:exp-ablation", "the rotation acts on three of every four dimensions",
        paper_model.rotated_share, 0.75),
    _claim("graph.metrics_start", "sec:connectivity",
        "Euclidean and angular distance select the same neighbours before training", paper_model.graph_agreement, 1.0),
)  # fmt: skip
