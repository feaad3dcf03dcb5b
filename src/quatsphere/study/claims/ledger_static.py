"""Claims that need no training: sizes, parameters, properties at the start, and the paper's own arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable

from quatsphere.study.claims import arithmetic as a
from quatsphere.study.claims.claim import Claim, Number
from quatsphere.study.claims.rules import Cited, Computed


def static(
    name: str, section: str, statement: str, paper: Number, compute: Callable[[], Number], rounding: float = 0.0
) -> Claim:
    """A claim that a function decides; `rounding` is half a unit of the last digit the paper prints."""
    return Claim(name, section, statement, paper, "exact", None, Computed(compute, paper, rounding), "static")


def cited(name: str, model: str, accuracy: float, paper: str) -> Claim:
    """A literature row of table "context"."""
    return Claim(name, "tab:context", f"{model} {accuracy} %", accuracy, "cited", None, Cited(paper), "static")


def quoted(name: str, statement: str, value: float, paper: str) -> Claim:
    """A size that the paper quotes from another."""
    return Claim(name, "tab:context", statement, value, "cited", None, Cited(paper), "static")


APPENDIX = (
    256, 16, 128, 5, 128, 500, 50, 1e-4, 0.05, 1e-3, 0.1, 10, 100, 5e-5, 3, 2.5e-3, 0.1, 0.1, 0.1, 1e-3, 1e-2, 1e-5, 4,
    8, 10, 0.4,
)  # fmt: skip
"""The appendix, in the order of `arithmetic.appendix`."""

STATIC: tuple[Claim, ...] = (
    static("size.vertices", "sec:layout", "V = [128, 192, 256, 320, 384]", (128, 192, 256, 320, 384), a.vertices),
    static("size.neighbours", "eq:knn-budget", "K = [14, 14, 16, 16, 16]", (14, 14, 16, 16, 16), a.neighbours),
    static("size.radii", "sec:layout", "radii from 1.0 to 0.4", (1.0, 0.4), a.radii, 1e-6),
    static("size.edge_ratio", "sec:connectivity", "edge ratio about 0.05", 0.05, a.edges, 0.005),
    static("size.steps", "sec:layout", "one step within a shell, four between shells, two rounds", (1, 4, 2), a.steps),
    static("config.appendix", "sec:appendix-config", "the default configuration", APPENDIX, a.appendix),
    static("size.channels", "sec:appendix-config", "Q = d / 4H = 4", 4, lambda: a.qsv().config.channels),
    static("parameters.qsv", "tab:context", "QSV has 0.64M parameters", 0.64, lambda: a.millions(a.qsv()), 0.005),
    static(
        "parameters.attention", "tab:context", "the matched baseline has 0.57M parameters", 0.57,
        lambda: a.millions(a.attention()), 0.005,
    ),
    static(
        "parameters.width", "sec:exp-baseline", "within QSV's budget attention narrows to d = 96", 96,
        lambda: a.attention().config.dim,
    ),
    static(
        "parameters.attention_wide", "sec:exp-baseline", "attention at d = 256 has 3.97M parameters", 3.97,
        lambda: a.millions(a.attention(256)), 0.005,
    ),
    static(
        "parameters.resnet20", "tab:context", "ResNet-20 has 0.27M parameters", 0.27,
        lambda: a.millions(a.resnet20()), 0.005,
    ),
    static(
        "parameters.flat", "tab:context", "the flat control has 0.57M parameters", 0.57,
        lambda: a.millions(a.flat()), 0.005,
    ),
    static(
        "parameters.kernel", "sec:exp-baseline",
        "QSV's kernel costs about 87K (here: field and five post layers; the perturbation networks are not in it)",
        87.0, a.kernel_parameters, 0.5,
    ),
    static(
        "parameters.projections", "sec:exp-baseline", "attention's projections cost 1.32M at d = 256", 1.32,
        a.projection_parameters, 0.005,
    ),
    static(
        "parameters.ratio", "sec:exp-baseline",
        "QSV's kernel is 15x smaller (with the perturbation networks of the same five steps: 3.1x)", 15.0,
        lambda: a.projection_parameters() * 1e3 / a.kernel_parameters(), 0.5,
    ),
    static("start.beta", "sec:exp-routing", "the prior's fixed point is beta = 0.79", 0.79, a.beta_at_zero, 0.005),
    static("start.bound", "eq:perturb", "the bound lies in (0.01, pi/4)", (0.01, math.pi / 4), a.bound_limits, 1e-6),
    static(
        "start.perturbation", "eq:perturb", "the perturbation is the identity at the start", 0.0,
        a.start_perturbation, 1e-3,
    ),
    static("kernel.score", "eq:rel-quat", "Re(r) = cos(theta / 2)", 0.0, a.score_is_half_angle, 1e-6),
    static(
        "kernel.rotated", "sec:exp-ablation", "the rotation acts on three of every four dimensions", 0.75,
        a.rotated_share,
    ),
    static(
        "graph.metrics_start", "sec:connectivity", "Euclidean and angular neighbours are identical", 1.0,
        a.metrics_agree,
    ),
    # the paper's own arithmetic, from the numbers it prints
    static("sum.full", "tab:ablation", "mean of 85.9 and 86.0 is 85.9", 85.9, lambda: a.mean_of(85.9, 86.0), 0.1),
    static(
        "sum.transport", "tab:ablation", "mean of 81.3, 81.7, 82.1 is 81.7", 81.7,
        lambda: a.mean_of(81.3, 81.7, 82.1), 0.1,
    ),
    static("sum.uniform", "tab:ablation", "mean of 85.3 and 86.1 is 85.7", 85.7, lambda: a.mean_of(85.3, 86.1), 0.1),
    static("sum.absolute", "tab:ablation", "mean of 86.0 and 86.5 is 86.3", 86.3, lambda: a.mean_of(86.0, 86.5), 0.1),
    static("sum.geometric", "tab:ablation", "mean of 85.4 and 86.5 is 86.0", 86.0, lambda: a.mean_of(85.4, 86.5), 0.1),
    static(
        "sum.value", "tab:ablation", "mean of 86.2, 86.3, 86.5 is 86.3", 86.3, lambda: a.mean_of(86.2, 86.3, 86.5),
        0.1,
    ),
    static(
        "sum.transport_delta", "tab:ablation", "transport costs 4.3 points", -4.3,
        lambda: a.mean_of(81.3, 81.7, 82.1) - a.mean_of(85.9, 86.0), 0.1,
    ),
    static(
        "sum.transport_delta_100", "tab:ablation", "transport costs 4.1 points on CIFAR-100", -4.1,
        lambda: 56.0 - 60.1, 0.1,
    ),
    static(
        "sum.both_delta", "tab:ablation", "both off is 21.8 below full", -21.8, lambda: 64.1 - a.mean_of(85.9, 86.0),
        0.1,
    ),
    static(
        "sum.frozen_delta", "tab:ablation", "a frozen field is 19.4 below full", -19.4,
        lambda: 66.5 - a.mean_of(85.9, 86.0), 0.1,
    ),
    static(
        "sum.interaction", "sec:exp-ablation", "both off is about 17 points below the additive prediction", -17.0,
        lambda: 64.1 - a.mean_of(81.3, 81.7, 82.1) - a.mean_of(85.3, 86.1) + a.mean_of(85.9, 86.0), 0.6,
    ),
    static("sum.flat", "sec:exp-grid", "flat is 3.8 above the sphere", 3.8, lambda: 91.1 - 87.3, 0.1),
    static("sum.resnet", "sec:exp-grid", "flat is within 2.1 points of ResNet-20", 2.1, lambda: 93.2 - 91.1, 0.1),
    static(
        "sum.value_delta", "tab:ablation", "W_V -> identity costs 1.0 point", -1.0,
        lambda: a.mean_of(86.2, 86.3, 86.5) - 87.3, 0.1,
    ),
    static(
        "sum.value_delta_flat", "sec:exp-grid", "W_V -> identity costs 1.0 point on the plane", -1.0,
        lambda: 90.1 - 91.1, 0.1,
    ),
    static("sum.speed", "sec:exp-baseline", "QSV is at least 3.3x more expensive", 3.3, lambda: 1550 / 470, 0.05),
    static("sum.speed_compiled", "sec:exp-baseline", "about 11x when both are compiled", 11.0, lambda: 5350 / 470, 0.5),
    static("sum.hours", "sec:appendix-config", "a full run is about 14 hours", 14.0, lambda: a.run_hours(470), 1.0),
    static(
        "sum.clean_gap", "sec:exp-error", "clean training to test is roughly nine points", 9.0, lambda: 95.7 - 86.5,
        0.5,
    ),
    static("sum.uniform_delta", "tab:ablation", "uniform routing changes -0.2", -0.2,
        lambda: a.mean_of(85.3, 86.1) - a.mean_of(85.9, 86.0), 0.1),
    static("sum.absolute_delta", "tab:ablation", "routing on |Re(r)| changes +0.3", 0.3,
        lambda: a.mean_of(86.0, 86.5) - a.mean_of(85.9, 86.0), 0.1),
    static("sum.geometric_delta", "tab:ablation", "geometric routing changes +0.0", 0.0,
        lambda: a.mean_of(85.4, 86.5) - a.mean_of(85.9, 86.0), 0.1),
    static("sum.uniform_delta_100", "tab:ablation", "uniform routing changes -0.4 on CIFAR-100", -0.4,
        lambda: 59.7 - 60.1, 0.1),
    static("sum.value_delta_100", "tab:ablation", "W_V -> identity costs 0.8 on CIFAR-100", -0.8, lambda: 62.6 - 63.4,
        0.1),
    # literature rows
    cited("cited.resnet20", "ResNet-20", 91.3, "He et al. 2016"),
    cited("cited.resnet56", "ResNet-56", 93.0, "He et al. 2016"),
    cited("cited.vit_lite", "ViT-Lite-7/4", 93.6, "Hassani et al. 2021"),
    cited("cited.cct", "CCT-7/3x1", 96.5, "Hassani et al. 2021"),
    quoted("quoted.resnet56", "ResNet-56 has 0.85M parameters", 0.85, "He et al. 2016"),
    quoted("quoted.vit_lite", "ViT-Lite-7/4 has 3.7M parameters", 3.7, "Hassani et al. 2021"),
    quoted("quoted.cct", "CCT-7/3x1 has 3.8M parameters", 3.8, "Hassani et al. 2021"),
)  # fmt: skip
