"""Numbers of the paper that need no training, computed from the code at the paper's size."""

from __future__ import annotations

import copy
import functools
import math
from typing import Any

import torch

from quatsphere.config import AttentionConfig, DataConfig, OptimConfig, QSVConfig, ResNet20Config, TrainConfig
from quatsphere.geometry import quaternion
from quatsphere.geometry.neighbours import Metric, edge_ratio, nearest_neighbours
from quatsphere.models import Model, build_model
from quatsphere.models.attention_net import AttentionNet
from quatsphere.models.qsv import QSV

BOTH: tuple[Metric, Metric] = ("euclidean", "angular")


@functools.cache
def qsv() -> QSV:
    """The paper's QSV at its start."""
    model = build_model(QSVConfig(backend="factored"))
    assert isinstance(model, QSV)
    return model


@functools.cache
def attention(dim: int | None = None) -> AttentionNet:
    """The matched baseline, or one of a given width."""
    model = build_model(AttentionConfig(dim=dim))
    assert isinstance(model, AttentionNet)
    return model


@functools.cache
def resnet20() -> Model:
    """ResNet-20 for 10 classes."""
    return build_model(ResNet20Config())


@functools.cache
def flat() -> AttentionNet:
    """The matched baseline on the flat lattice."""
    model = build_model(AttentionConfig(layout="plane"))
    assert isinstance(model, AttentionNet)
    return model


def steps() -> tuple[float, ...]:
    """Steps within the first shell, between shells, and rounds on the last."""
    return 1, len(qsv().cross), len(qsv().rounds)


def appendix() -> tuple[float, ...]:
    """Model, schedule, optimisers, losses, augmentation, repulsion: the defaults, which are the paper's."""
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


def millions(model: Model) -> float:
    """Parameters in millions."""
    return sum(parameter.numel() for parameter in model.parameters()) / 1e6


def kernel_parameters() -> float:
    """QSV's field and the post layers of the five steps that the baseline also has, in thousands."""
    parts = qsv().parameter_parts()
    steps = 1 + len(qsv().cross)
    return (parts["field"] + parts["post"] * steps / (steps + len(qsv().rounds))) / 1e3


def projection_parameters() -> float:
    """Query, key, value and output projections of attention at d = 256, in millions."""
    return attention(256).parameter_parts()["projections"] / 1e6


def vertices() -> tuple[float, ...]:
    """V_1 to V_5."""
    return tuple(qsv().layout.vertex_counts)


def neighbours() -> tuple[float, ...]:
    """k_1 to k_5."""
    return tuple(qsv().layout.neighbour_counts)


def radii() -> tuple[float, ...]:
    """Radius of the first and the last shell."""
    shells = qsv().layout.shells
    return tuple(float(shell.positions.detach().norm(dim=-1).mean()) for shell in (shells[0], shells[-1]))


def edges() -> float:
    """kNN edges over dense edges."""
    return edge_ratio(qsv().layout.vertex_counts, qsv().layout.neighbour_counts)


def beta_at_zero() -> float:
    """softplus(0) + 0.1: the fixed point of the penalty on the logits."""
    return float(qsv().within.routing.beta.detach().mean())


def bound_limits() -> tuple[float, float]:
    """The learned bound at logits of -40 and 40."""
    bound: Any = copy.deepcopy(qsv().fields[0].bound)
    limits = []
    for logit in (-40.0, 40.0):
        with torch.no_grad():
            bound.logit.fill_(logit)
            limits.append(float(bound.value))
    return limits[0], limits[1]


@functools.cache
def start_perturbation() -> float:
    """Largest angle in radians between the field of the first step and its base, on noise, before training."""
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        _, trace = qsv().eval()(images, return_trace=True)
    return float(quaternion.distance(trace["field"][0], qsv().fields[0].base.detach()).max())


@functools.cache
def metrics_agree() -> float:
    """Least share of targets of all cross-shell graphs for which Euclidean and angular neighbours are the same set."""
    shells = [shell.positions.detach() for shell in qsv().layout.shells]
    shares = []
    for source, target, k in zip(shells, shells[1:], neighbours()[1:], strict=False):
        one, other = (nearest_neighbours(target, source, int(k), metric).sort().values for metric in BOTH)
        shares.append(float((one == other).all(1).double().mean()))
    return min(shares)


@functools.cache
def score_is_half_angle() -> float:
    """Largest |Re(q_i* q_j) - cos(θ/2)| over random pairs, θ from the rotation matrix of r."""
    generator = torch.Generator().manual_seed(0)
    one, other = (quaternion.normalize(torch.randn(1000, 4, generator=generator).double()) for _ in range(2))
    relative = quaternion.relative(one, other)
    rotation = quaternion.to_rotation_matrix(relative)
    cosine = (rotation.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2
    half = torch.cos(torch.acos(cosine.clamp(-1, 1)) / 2)
    return float((relative[..., 0].abs() - half).abs().max())


@functools.cache
def rotated_share() -> float:
    """Share of the feature dimensions that the sandwich product turns: those with a changed value."""
    generator = torch.Generator().manual_seed(0)
    q, x = (quaternion.normalize(torch.randn(100, 4, generator=generator).double()) for _ in range(2))
    moved = (quaternion.sandwich(q, x) - x).abs() > 1e-9
    return float(moved.double().mean())


def run_hours(images_per_second: float) -> float:
    """Hours of 500 epochs over 45,000 images."""
    return 500 * 45_000 / images_per_second / 3600


def mean_of(*values: float) -> float:
    """The mean of printed values."""
    return math.fsum(values) / len(values)
