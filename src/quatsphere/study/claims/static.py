"""Claims that need no training: sizes, parameter counts and initial properties, computed at the paper's size."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from quatsphere.config import AttentionConfig, DataConfig, OptimConfig, QSVConfig, ResNet20Config, TrainConfig
from quatsphere.diagnostics.measures import metric_agreement
from quatsphere.geometry import quaternion
from quatsphere.geometry.neighbours import edge_ratio
from quatsphere.models import Model, build_model
from quatsphere.models.attention_net import AttentionNet
from quatsphere.models.qsv import QSV
from quatsphere.study.claims.evidence import Evidence
from quatsphere.study.claims.rules import Claim, Finding

Values = float | tuple[float, ...]


@functools.cache
def paper_qsv() -> QSV:
    """QSV at the paper's size."""
    model = build_model(QSVConfig(backend="factored"))
    assert isinstance(model, QSV)
    return model


@functools.cache
def _attention(dim: int | None = None) -> AttentionNet:
    """The baseline matched in parameters, or one of a given width."""
    model = build_model(AttentionConfig(dim=dim))
    assert isinstance(model, AttentionNet)
    return model


def _millions(model: Model) -> float:
    """Parameters in millions."""
    return sum(parameter.numel() for parameter in model.parameters()) / 1e6


def _default_settings() -> tuple[float, ...]:
    """Default model, schedule, optimisers, losses, augmentation and repulsion, in the appendix's order."""
    data, model, optim, train = DataConfig(), QSVConfig(), OptimConfig(), TrainConfig()
    return (
        *(model.dim, model.heads, model.base_vertices, model.shells),
        *(train.batch_size, train.epochs, train.patience or 0, train.min_delta),
        *(optim.weight_decay, optim.peak_lr, optim.warmup, optim.initial_div, optim.final_div),
        *(optim.position_lr, optim.bound_lr_factor, optim.quaternion_lr),
        *(train.label_smoothing, model.attention_dropout, model.output_dropout),
        *(train.smoothness, train.head_diversity, train.beta_penalty),
        *(data.crop_pad, optim.repulsion_neighbours, optim.repulsion_every, optim.repulsion_until),
    )


@functools.cache
def kernel_parameters() -> tuple[int, int, int]:
    """Parameters of the kernels in the five steps that both models have at d = 256.

    Returns those of attention's projections, of QSV's field and post layers, and of QSV's perturbation networks, which
    the paper does not count.
    """
    parts, shared = paper_qsv().parameter_parts(), 1 + len(paper_qsv().cross)
    steps = shared + len(paper_qsv().rounds)
    post, perturbation = (parts[name] * shared // steps for name in ("post", "perturbation"))
    return _attention(256).parameter_parts()["projections"], parts["field"] + post, perturbation


def _radii() -> tuple[float, ...]:
    """Radius of the first and the last shell."""
    shells = paper_qsv().layout.shells
    return tuple(float(shell.positions.detach().norm(dim=-1).mean()) for shell in (shells[0], shells[-1]))


def _bound_limits() -> tuple[float, float]:
    """The learned bound at logits of -40 and 40."""
    bound: Any = copy.deepcopy(paper_qsv().fields[0].bound)
    limits = []
    for logit in (-40.0, 40.0):
        with torch.no_grad():
            bound.logit.fill_(logit)
            limits.append(float(bound.value))
    return limits[0], limits[1]


def _initial_perturbation() -> float:
    """Largest angle in radians between the field of the first step and its base before training, on noise."""
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        _, trace = paper_qsv().eval()(images, return_trace=True)
    return float(quaternion.distance(trace["field"][0], paper_qsv().fields[0].base.detach()).max())


def _graph_agreement() -> float:
    """Smallest share, over cross-shell graphs, of targets with equal Euclidean and angular neighbour sets."""
    shells = pairwise([shell.positions for shell in paper_qsv().layout.shells])
    counts = paper_qsv().layout.neighbour_counts[1:]
    return min(
        metric_agreement(target, source, k)["euclidean_geodesic"]
        for (source, target), k in zip(shells, counts, strict=True)
    )


def _half_angle_error() -> float:
    """Largest |Re(q_i* q_j) - cos(θ/2)| over random pairs, θ from the rotation matrix of r."""
    generator = torch.Generator().manual_seed(0)
    one, other = (quaternion.normalize(torch.randn(1000, 4, generator=generator).double()) for _ in range(2))
    relative = quaternion.relative(one, other)
    rotation = quaternion.to_rotation_matrix(relative)
    cosine = (rotation.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2
    half = torch.cos(torch.acos(cosine.clamp(-1, 1)) / 2)
    return float((relative[..., 0].abs() - half).abs().max())


def _rotated_share() -> float:
    """Share of feature dimensions whose value the sandwich product changes."""
    generator = torch.Generator().manual_seed(0)
    q, x = (quaternion.normalize(torch.randn(100, 4, generator=generator).double()) for _ in range(2))
    moved = (quaternion.sandwich(q, x) - x).abs() > 1e-9
    return float(moved.double().mean())


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
        lambda: tuple(paper_qsv().layout.vertex_counts), (128, 192, 256, 320, 384)),
    _claim("size.neighbours", "eq:knn-budget", "targets of the five shells have 14, 14, 16, 16 and 16 neighbours",
        lambda: tuple(paper_qsv().layout.neighbour_counts), (14, 14, 16, 16, 16)),
    _claim("size.radii", "sec:layout", "the radii fall from 1.0 to 0.4", _radii, (1.0, 0.4), 1e-6),
    _claim("size.edge_ratio", "sec:connectivity", "the graphs have about 0.05 of the edges of dense graphs",
        lambda: edge_ratio(paper_qsv().layout.vertex_counts, paper_qsv().layout.neighbour_counts), 0.05, 0.005),
    _claim("size.steps", "sec:layout",
        "the model has one step within the first shell, four between shells and two rounds on the last",
        lambda: (1, len(paper_qsv().cross), len(paper_qsv().rounds)), (1, 4, 2)),
    _claim("config.appendix", "sec:appendix-config", "the default configuration is that of the appendix",
        _default_settings, APPENDIX),
    _claim("size.channels", "sec:appendix-config", "a head has Q = d / 4H = 4 quaternion channels",
        lambda: paper_qsv().config.channels, 4),
    _claim("parameters.qsv", "tab:context", "QSV has 0.64M parameters", lambda: _millions(paper_qsv()), 0.64, 0.005),
    _claim("parameters.attention", "tab:context", "the matched attention baseline has 0.57M parameters",
        lambda: _millions(_attention()), 0.57, 0.005),
    _claim("parameters.width", "sec:exp-baseline", "within QSV's parameter budget attention has width d = 96",
        lambda: _attention().config.dim or 0, 96),
    _claim("parameters.attention_wide", "sec:exp-baseline", "attention at d = 256 has 3.97M parameters",
        lambda: _millions(_attention(256)), 3.97, 0.005),
    _claim("parameters.resnet20", "tab:context", "ResNet-20 has 0.27M parameters",
        lambda: _millions(build_model(ResNet20Config())), 0.27, 0.005),
    _claim("parameters.flat", "tab:context", "attention on the flat lattice has 0.57M parameters",
        lambda: _millions(build_model(AttentionConfig(layout="plane"))), 0.57, 0.005),
    _claim("parameters.kernel", "sec:exp-baseline",
        "QSV's kernel has about 87K parameters (field and five post layers, without the perturbation networks)",
        lambda: kernel_parameters()[1] / 1e3, 87.0, 0.5),
    _claim("parameters.projections", "sec:exp-baseline", "attention's projections have 1.32M parameters at d = 256",
        lambda: kernel_parameters()[0] / 1e6, 1.32, 0.005),
    _claim("parameters.ratio", "sec:exp-baseline",
        "QSV's kernel is 15 times smaller (3.1 times with the perturbation networks of the same five steps)",
        lambda: kernel_parameters()[0] / kernel_parameters()[1], 15.0, 0.5),
    _claim("start.beta", "sec:exp-routing", "the penalty on beta has its fixed point at beta = 0.79",
        lambda: float(paper_qsv().within.routing.beta.detach().mean()), 0.79, 0.005),
    _claim("start.bound", "eq:perturb", "the learned bound stays between 0.01 and pi/4",
        _bound_limits, (0.01, math.pi / 4), 1e-6),
    _claim("start.perturbation", "eq:perturb", "the perturbation is the identity before training",
        _initial_perturbation, 0.0, 1e-3),
    _claim("kernel.score", "eq:rel-quat", "the score is Re(r) = cos(theta / 2)", _half_angle_error, 0.0, 1e-6),
    _claim("kernel.rotated", "sec:exp-ablation", "the rotation acts on three of every four dimensions",
        _rotated_share, 0.75),
    _claim("graph.metrics_start", "sec:connectivity",
        "Euclidean and angular distance select the same neighbours before training", _graph_agreement, 1.0),
)  # fmt: skip
