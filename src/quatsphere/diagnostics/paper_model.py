"""Numbers of the paper's models that need no training: sizes, parameter counts and properties before training."""

from __future__ import annotations

import copy
import functools
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


def default_settings() -> tuple[float, ...]:
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


def radii() -> tuple[float, ...]:
    """Radius of the first and the last shell."""
    shells = paper_qsv().layout.shells
    return tuple(float(shell.positions.detach().norm(dim=-1).mean()) for shell in (shells[0], shells[-1]))


def bound_limits() -> tuple[float, float]:
    """The learned bound at logits of -40 and 40."""
    bound: Any = copy.deepcopy(paper_qsv().fields[0].bound)
    limits = []
    for logit in (-40.0, 40.0):
        with torch.no_grad():
            bound.logit.fill_(logit)
            limits.append(float(bound.value))
    return limits[0], limits[1]


def initial_perturbation_angle() -> float:
    """Largest angle in radians between the field of the first step and its base before training, on noise."""
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        _, trace = paper_qsv().eval()(images, return_trace=True)
    return float(quaternion.distance(trace["field"][0], paper_qsv().fields[0].base.detach()).max())


def graph_agreement() -> float:
    """Smallest share, over cross-shell graphs, of targets with equal Euclidean and angular neighbour sets."""
    shells = pairwise([shell.positions for shell in paper_qsv().layout.shells])
    counts = paper_qsv().layout.neighbour_counts[1:]
    return min(
        metric_agreement(target, source, k)["euclidean_geodesic"]
        for (source, target), k in zip(shells, counts, strict=True)
    )


def half_angle_error() -> float:
    """Largest |Re(q_i* q_j) - cos(θ/2)| over random pairs, θ from the rotation matrix of r."""
    generator = torch.Generator().manual_seed(0)
    one, other = (quaternion.normalize(torch.randn(1000, 4, generator=generator).double()) for _ in range(2))
    relative = quaternion.relative(one, other)
    rotation = quaternion.to_rotation_matrix(relative)
    cosine = (rotation.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2
    half = torch.cos(torch.acos(cosine.clamp(-1, 1)) / 2)
    return float((relative[..., 0].abs() - half).abs().max())


def rotated_share() -> float:
    """Share of feature dimensions whose value the sandwich product changes."""
    generator = torch.Generator().manual_seed(0)
    q, x = (quaternion.normalize(torch.randn(100, 4, generator=generator).double()) for _ in range(2))
    moved = (quaternion.sandwich(q, x) - x).abs() > 1e-9
    return float(moved.double().mean())


def vertex_counts() -> tuple[float, ...]:
    """Vertices of the shells."""
    return tuple(paper_qsv().layout.vertex_counts)


def neighbour_counts() -> tuple[float, ...]:
    """Neighbours per target of the shells."""
    return tuple(paper_qsv().layout.neighbour_counts)


def step_counts() -> tuple[int, int, int]:
    """Number of steps within the first shell, between shells and on the last shell."""
    return 1, len(paper_qsv().cross), len(paper_qsv().rounds)


def edge_share() -> float:
    """Edges of the graphs as a share of those of dense graphs."""
    return edge_ratio(paper_qsv().layout.vertex_counts, paper_qsv().layout.neighbour_counts)


def channels() -> float:
    """Quaternion channels of a head."""
    return paper_qsv().config.channels


def matched_width() -> float:
    """Width of attention within QSV's parameter budget."""
    return _attention().config.dim or 0


def initial_beta() -> float:
    """Mean β of the first step before training."""
    return float(paper_qsv().within.routing.beta.detach().mean())


COUNTED: dict[str, Callable[[], Model]] = {
    "qsv": paper_qsv,
    "attention": _attention,
    "wide attention": functools.partial(_attention, 256),
    "flat": lambda: build_model(AttentionConfig(layout="plane")),
    "resnet20": lambda: build_model(ResNet20Config()),
}


def millions(name: str) -> float:
    """Parameters of a model at the paper's size, in millions."""
    return sum(parameter.numel() for parameter in COUNTED[name]().parameters()) / 1e6
