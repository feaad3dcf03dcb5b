"""Claims that need no training: sizes, parameter counts and initial properties, computed at the paper's size."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from quatsphere.config import AttentionConfig, DataConfig, OptimConfig, QSVConfig, ResNet20Config, TrainConfig
from quatsphere.geometry import quaternion
from quatsphere.geometry.neighbours import Metric, edge_ratio, nearest_neighbours
from quatsphere.models import Model, build_model
from quatsphere.models.attention_net import AttentionNet
from quatsphere.models.qsv import QSV
from quatsphere.study.claims.claim import Claim
from quatsphere.study.claims.rules import Computed

Values = float | tuple[float, ...]
METRIC_PAIR: tuple[Metric, Metric] = ("euclidean", "angular")


@functools.cache
def _qsv() -> QSV:
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
    """Default model, schedule, optimisers, losses, augmentation and repulsion, in the order of APPENDIX."""
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


def _kernel_parameters() -> float:
    """QSV's field and the post layers of the five steps that the baseline also has, in thousands."""
    parts = _qsv().parameter_parts()
    shared = 1 + len(_qsv().cross)
    return (parts["field"] + parts["post"] * shared / (shared + len(_qsv().rounds))) / 1e3


def _projection_parameters() -> float:
    """Query, key, value and output projections of attention at d = 256, in millions."""
    return _attention(256).parameter_parts()["projections"] / 1e6


def _radii() -> tuple[float, ...]:
    """Radius of the first and the last shell."""
    shells = _qsv().layout.shells
    return tuple(float(shell.positions.detach().norm(dim=-1).mean()) for shell in (shells[0], shells[-1]))


def _bound_limits() -> tuple[float, float]:
    """The learned bound at logits of -40 and 40."""
    bound: Any = copy.deepcopy(_qsv().fields[0].bound)
    limits = []
    for logit in (-40.0, 40.0):
        with torch.no_grad():
            bound.logit.fill_(logit)
            limits.append(float(bound.value))
    return limits[0], limits[1]


@functools.cache
def _initial_perturbation() -> float:
    """Largest angle in radians between the field of the first step and its base before training, on noise."""
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        _, trace = _qsv().eval()(images, return_trace=True)
    return float(quaternion.distance(trace["field"][0], _qsv().fields[0].base.detach()).max())


@functools.cache
def _metric_agreement() -> float:
    """Smallest share, over cross-shell graphs, of targets with equal Euclidean and angular neighbour sets."""
    shells = [shell.positions.detach() for shell in _qsv().layout.shells]
    shares = []
    for source, target, k in zip(shells, shells[1:], _qsv().layout.neighbour_counts[1:], strict=False):
        one, other = (nearest_neighbours(target, source, k, metric).sort().values for metric in METRIC_PAIR)
        shares.append(float((one == other).all(1).double().mean()))
    return min(shares)


@functools.cache
def _half_angle_error() -> float:
    """Largest |Re(q_i* q_j) - cos(θ/2)| over random pairs, θ from the rotation matrix of r."""
    generator = torch.Generator().manual_seed(0)
    one, other = (quaternion.normalize(torch.randn(1000, 4, generator=generator).double()) for _ in range(2))
    relative = quaternion.relative(one, other)
    rotation = quaternion.to_rotation_matrix(relative)
    cosine = (rotation.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2
    half = torch.cos(torch.acos(cosine.clamp(-1, 1)) / 2)
    return float((relative[..., 0].abs() - half).abs().max())


@functools.cache
def _rotated_share() -> float:
    """Share of feature dimensions whose value the sandwich product changes."""
    generator = torch.Generator().manual_seed(0)
    q, x = (quaternion.normalize(torch.randn(100, 4, generator=generator).double()) for _ in range(2))
    moved = (quaternion.sandwich(q, x) - x).abs() > 1e-9
    return float(moved.double().mean())


def _claim(
    name: str, section: str, statement: str, paper: Values, compute: Callable[[], Values], rounding: float = 0.0
) -> Claim:
    """Claim decided by a function; `rounding` is half a unit of the last digit that the paper prints."""
    return Claim(name, section, statement, paper, "exact", None, Computed(compute, paper, rounding), "static")


APPENDIX = (
    256, 16, 128, 5, 128, 500, 50, 1e-4, 0.05, 1e-3, 0.1, 10, 100, 5e-5, 3, 2.5e-3, 0.1, 0.1, 0.1, 1e-3, 1e-2, 1e-5, 4,
    8, 10, 0.4,
)  # fmt: skip
"""The settings of the paper's appendix, in the order of `_default_settings`."""

STATIC: tuple[Claim, ...] = (
    _claim("size.vertices", "sec:layout", "the shells have 128, 192, 256, 320 and 384 vertices",
        (128, 192, 256, 320, 384), lambda: tuple(_qsv().layout.vertex_counts)),
    _claim("size.neighbours", "eq:knn-budget", "targets of the five shells have 14, 14, 16, 16 and 16 neighbours",
        (14, 14, 16, 16, 16), lambda: tuple(_qsv().layout.neighbour_counts)),
    _claim("size.radii", "sec:layout", "the radii fall from 1.0 to 0.4", (1.0, 0.4), _radii, 1e-6),
    _claim("size.edge_ratio", "sec:connectivity", "the graphs have about 0.05 of the edges of dense graphs", 0.05,
        lambda: edge_ratio(_qsv().layout.vertex_counts, _qsv().layout.neighbour_counts), 0.005),
    _claim("size.steps", "sec:layout",
        "the model has one step within the first shell, four between shells and two rounds on the last", (1, 4, 2),
        lambda: (1, len(_qsv().cross), len(_qsv().rounds))),
    _claim("config.appendix", "sec:appendix-config", "the default configuration is that of the appendix", APPENDIX,
        _default_settings),
    _claim("size.channels", "sec:appendix-config", "a head has Q = d / 4H = 4 quaternion channels", 4,
        lambda: _qsv().config.channels),
    _claim("parameters.qsv", "tab:context", "QSV has 0.64M parameters", 0.64, lambda: _millions(_qsv()), 0.005),
    _claim("parameters.attention", "tab:context", "the matched attention baseline has 0.57M parameters", 0.57,
        lambda: _millions(_attention()), 0.005),
    _claim("parameters.width", "sec:exp-baseline", "within QSV's parameter budget attention has width d = 96", 96,
        lambda: _attention().config.dim or 0),
    _claim("parameters.attention_wide", "sec:exp-baseline", "attention at d = 256 has 3.97M parameters", 3.97,
        lambda: _millions(_attention(256)), 0.005),
    _claim("parameters.resnet20", "tab:context", "ResNet-20 has 0.27M parameters", 0.27,
        lambda: _millions(build_model(ResNet20Config())), 0.005),
    _claim("parameters.flat", "tab:context", "attention on the flat lattice has 0.57M parameters", 0.57,
        lambda: _millions(build_model(AttentionConfig(layout="plane"))), 0.005),
    _claim("parameters.kernel", "sec:exp-baseline",
        "QSV's kernel has about 87K parameters (field and five post layers, without the perturbation networks)", 87.0,
        _kernel_parameters, 0.5),
    _claim("parameters.projections", "sec:exp-baseline", "attention's projections have 1.32M parameters at d = 256",
        1.32, _projection_parameters, 0.005),
    _claim("parameters.ratio", "sec:exp-baseline",
        "QSV's kernel is 15 times smaller (3.1 times with the perturbation networks of the same five steps)", 15.0,
        lambda: _projection_parameters() * 1e3 / _kernel_parameters(), 0.5),
    _claim("start.beta", "sec:exp-routing", "the penalty on beta has its fixed point at beta = 0.79", 0.79,
        lambda: float(_qsv().within.routing.beta.detach().mean()), 0.005),
    _claim("start.bound", "eq:perturb", "the learned bound stays between 0.01 and pi/4", (0.01, math.pi / 4),
        _bound_limits, 1e-6),
    _claim("start.perturbation", "eq:perturb", "the perturbation is the identity before training", 0.0,
        _initial_perturbation, 1e-3),
    _claim("kernel.score", "eq:rel-quat", "the score is Re(r) = cos(theta / 2)", 0.0, _half_angle_error, 1e-6),
    _claim("kernel.rotated", "sec:exp-ablation", "the rotation acts on three of every four dimensions", 0.75,
        _rotated_share),
    _claim("graph.metrics_start", "sec:connectivity",
        "Euclidean and angular distance select the same neighbours before training", 1.0, _metric_agreement),
)  # fmt: skip
