"""Derivatives, graphs, constraints and losses are right, also at singular points and in every variant."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.compiled_models import VARIANTS as MODELS
from helpers.compiled_models import compare, require_equal
from helpers.kernel_inputs import DIFFERENTIABLE, make_problem
from helpers.tiny_runs import Process, tiny_config
from helpers.variants import ATTENTION_VARIANTS, QSV_VARIANTS
from soak.promises import Trials, promise
from torch import Tensor
from torch.autograd import gradcheck

from quatsphere import load
from quatsphere.config import ResNet20Config
from quatsphere.data import load_dataset
from quatsphere.export.files import export_model
from quatsphere.geometry import neighbours, plane, sphere
from quatsphere.geometry import quaternion as Q
from quatsphere.kernels import TRANSPORTS, quaternion_attention
from quatsphere.models import model_config
from quatsphere.nn.layout import Shell
from quatsphere.optim import RiemannianAdam
from quatsphere.train import Progress, Reporter, train, trainer
from quatsphere.train.provenance import numeric_environment

GOLDEN = Path(__file__).with_name("golden_losses.json")
STEPS = 52
ROUTINGS = ("alignment", "absolute", "uniform", "geometric")
SMALL = (0.0, 1e-300, 1e-20, 1e-8, 1e-4)
"""Norms of tangents at and near the singular point of exp."""


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tangent(seed: int) -> Tensor:
    """A tangent, every fifth at or near zero, norms below pi."""
    direction = normal(seed, 3)
    return direction / direction.norm() * (SMALL[seed // 5 % 5] if seed % 5 == 0 else 0.05 + 3 * (seed % 97) / 97)


def kernel(seed: int) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """The attention kernel with every routing and transport in turn, as a function of its inputs."""
    routing, transport = ROUTINGS[seed % 4], TRANSPORTS[seed // 4 % len(TRANSPORTS)]
    problem = make_problem(seed, (1, 3, 4, 2, 2, 1), routing, transport, keep=seed % 2 == 0)
    backend = ("reference", "factored", "auto")[seed % 3]

    def attend(*values: Tensor) -> Tensor:
        given = dict(zip(DIFFERENTIABLE, values, strict=True))
        return quaternion_attention(
            **given, neighbours=problem.neighbours, routing=routing, transport=transport, keep=problem.keep,
            keep_scale=problem.keep_scale, backend=backend,
        )  # fmt: skip

    return attend, tuple(getattr(problem, name) for name in DIFFERENTIABLE)


Point = Callable[[int], tuple[Callable[..., Tensor], tuple[Tensor, ...]]]
OPERATIONS: dict[str, Point] = {
    "exp": lambda seed: (Q.exp, (tangent(seed),)),
    "smooth_exp": lambda seed: (Q.smooth_exp, (tangent(seed),)),
    "log of exp": lambda seed: (lambda t: Q.log(Q.exp(t)), (tangent(seed),)),
    "multiply": lambda seed: (Q.multiply, (normal(seed, 2, 4), normal(seed + 1, 2, 4))),
    "normalize": lambda seed: (Q.normalize, (normal(seed, 2, 4) * 10.0 ** (seed % 3 - 1),)),
    "relative": lambda seed: (Q.relative, (normal(seed, 2, 4), normal(seed + 1, 2, 4))),
    "sandwich": lambda seed: (Q.sandwich, (normal(seed, 2, 4), normal(seed + 1, 2, 4))),
    "rotate": lambda seed: (Q.rotate, (normal(seed, 2, 4), normal(seed + 1, 2, 3))),
    "left_matrix": lambda seed: (Q.left_matrix, (normal(seed, 2, 4),)),
    "rotation matrix": lambda seed: (lambda q: Q.to_rotation_matrix(Q.normalize(q)), (normal(seed, 2, 4),)),
    "directions": lambda seed: (sphere.directions, (normal(seed, 2, 3),)),
    "kernel": kernel,
}


@promise(
    "Derivatives of 12 operations agree with differences in float64 at 200 points each, singular ones too", 2400, 120
)
def derivatives(trials: Trials) -> None:
    for number in range(trials.count):
        name, point = list(OPERATIONS.items())[number % len(OPERATIONS)]
        with trials.one(f"{name} at point {number // len(OPERATIONS)}"):
            function, values = point(number // len(OPERATIONS))
            assert gradcheck(function, tuple(value.clone().requires_grad_() for value in values), fast_mode=False)


@promise("Rotations compose, R(pq) = R(p) R(q), and keep norms, to 1e-12 in float64", 1000, 2)
def rotations_compose(trials: Trials) -> None:
    p, q = Q.normalize(normal(0, trials.count, 4)), Q.normalize(normal(1, trials.count, 4))
    v = normal(2, trials.count, 3)
    together, apart = Q.to_rotation_matrix(Q.multiply(p, q)), Q.to_rotation_matrix(p) @ Q.to_rotation_matrix(q)
    matrix_error = (together - apart).abs().amax((1, 2))
    norm_error = (Q.rotate(p, v).norm(dim=-1) - v.norm(dim=-1)).abs() / v.norm(dim=-1)
    good = int(((matrix_error < 1e-12) & (norm_error < 1e-12)).sum())
    trials.add(trials.count, good, f"errors up to {float(matrix_error.max()):.1e} and {float(norm_error.max()):.1e}")


@promise(
    "Quaternions keep their norm and vertices their radius to 1e-6 after each of 10,000 optimiser steps, in float32",
    10_000,
    10,
)
def norms_after_many_steps(trials: Trials) -> None:
    q = Q.normalize(normal(0, 64, 4)).float().requires_grad_()
    shell = Shell(sphere.fibonacci_sphere(64, 0.7), learned=True)
    optimisers = RiemannianAdam([q], lr=2.5e-3), torch.optim.AdamW([shell.positions], lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(trials.count):
        q.grad = torch.randn(64, 4, generator=generator)
        shell.positions.grad = torch.randn(64, 3, generator=generator)
        for optimiser in optimisers:
            optimiser.step()
        shell.project_()
        norm = float((q.detach().norm(dim=-1) - 1).abs().max())
        radius = float((shell.positions.detach().norm(dim=-1) - 0.7).abs().max())
        trials.add(1, int(max(norm, radius) <= 1e-6), f"norm off by {norm:.1e}, radius by {radius:.1e}")


def layout(number: int) -> tuple[Tensor, Tensor, int]:
    """(targets, sources, k): random points, regular grids, lattices, duplicates, spheres, points that coincide."""
    seed, kind = number // 6, number % 6
    generator = torch.Generator().manual_seed(seed)
    targets, sources = 10 + 7 * (seed % 9), 12 + 11 * (seed % 7)
    if kind < 2:
        points = torch.randn(targets + sources, 3, generator=generator)
        points = points.round() if kind else points
        made = points[:targets], points[targets:]
    elif kind == 2:
        made = plane.flat_lattice(16 * (2 + seed % 4)), plane.flat_lattice(16 * (1 + seed % 5))
    elif kind == 3:
        few = torch.randn(5, 3, generator=generator)
        made = few.repeat(4, 1), few.repeat(6, 1)
    elif kind == 4:
        made = sphere.fibonacci_sphere(targets, 0.7), sphere.fibonacci_sphere(sources)
    else:
        made = torch.zeros(targets, 3), torch.zeros(sources, 3)
    return (*made, 1 + seed % len(made[1]))


@promise("Neighbours equal a full sort by (distance, index) in float64, also on grids and duplicates", 100, 2)
def neighbour_layouts(trials: Trials) -> None:
    for number in range(trials.count):
        targets, sources, k = layout(number)
        with trials.one(number):
            square = ((targets.double()[:, None] - sources.double()) ** 2).unbind(-1)
            rows = [sorted((d, j) for j, d in enumerate(row)) for row in sum(square[1:], square[0]).tolist()]
            expected = [[j for _, j in row[:k]] for row in rows]
            assert neighbours.nearest_neighbours(targets, sources, k).tolist() == expected
            if number % 6 == 4:  # between two spheres both metrics rank alike, up to rounding of ties
                angular = neighbours.nearest_neighbours(targets, sources, k, "angular")
                chosen = torch.tensor(expected)
                distance = [(targets[:, None] - sources[index]).norm(dim=-1) for index in (angular, chosen)]
                assert torch.allclose(*distance, atol=1e-6)


VARIANTS: dict[str, Any] = {
    **{name: ("qsv", changes) for name, changes in QSV_VARIANTS.items()},
    **{name: ("attention", changes) for name, changes in ATTENTION_VARIANTS.items()},
    "resnet20": ("resnet20", {}),
}


class Losses(Reporter):
    """Collects the sums of losses after every step."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        self.found.append(progress.sums["loss"])


def losses_of(name: str, folder: Path) -> list[float]:
    """Running sums of the loss over 52 steps of a variant."""
    kind, changes = VARIANTS[name]
    tiny = tiny_config(epochs=STEPS // 4, checkpoint_steps=None)
    if kind == "resnet20":
        model: Any = ResNet20Config(width=4)
    else:
        size = {"dim": 32, "heads": 4, "base_vertices": 16, "shells": 2, "plane_rows": 8}
        model = model_config(kind, **size | ({"backend": "factored"} if kind == "qsv" else {}) | changes)
    reporter = Losses()
    with pytest.MonkeyPatch.context() as patch:  # validation, on which no loss depends, takes a third of the time
        patch.setattr(trainer.Trainer, "measure", lambda self: (0.0, {}))
        train(dataclasses.replace(tiny, model=model), folder, reporter=reporter)
    return reporter.found


@promise("Losses of 52 steps of every variant equal the stored ones (bit for bit on the same kind of machine)", 54, 180)
def golden_losses(trials: Trials) -> None:
    """Written again with SOAK_WRITE_GOLDEN=1, after an intended change of the computation."""
    torch.set_num_threads(1)
    stored = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {"losses": {}}
    here = {key: value for key, value in numeric_environment(1).items() if key in ("torch", "processor")}
    exact = stored.get("environment") == here
    for name in list(VARIANTS)[: trials.count]:
        with trials.one(name):
            found = losses_of(name, trials.folder / name)
            if os.environ.get("SOAK_WRITE_GOLDEN"):
                stored = {"environment": here, "losses": {**stored["losses"], name: found}}
                GOLDEN.write_text(json.dumps(stored, indent=0) + "\n")
                continue
            expected = stored["losses"][name]
            assert len(found) == len(expected) == STEPS
            assert not exact or found == expected
            assert all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(found, expected, strict=True))


@promise("Every variant's parameters get gradients, except exactly those it declares unreachable", 54, 150)
def gradients_reach_parameters(trials: Trials) -> None:
    trials.tests("tests/models/test_variants.py")


@promise("torch.compile equals eager in every variant: values to 1e-5, gradients to 1e-4", 54, 600)
def compiled_models(trials: Trials) -> None:
    """Forks of a process that has imported the compiler; they share a cache, so equal kernels are built once."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("no C++ compiler")
    os.environ |= {"TORCHINDUCTOR_CACHE_DIR": str(trials.folder / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    torch.set_num_threads(1)
    require_equal(compare(*MODELS["attention_uniform"]))

    def work(variant: str) -> None:
        torch.set_num_threads(2)
        require_equal(compare(*MODELS[variant]))

    for variant in list(MODELS)[: trials.count]:
        with trials.one(variant):
            process = Process(functools.partial(work, variant), trials.folder / variant)
            assert process.wait() == 0, process.text[-1000:]


@promise("ONNX files name the classes of their models, logits within 1e-4, on 1,000 CIFAR-10 test images", 4000, 105)
def exported_models(trials: Trials) -> None:
    """Four shipped models of CIFAR-10."""
    root = os.environ.get("QUATSPHERE_DATA")
    if root is None or not (Path(root) / "cifar10.zip").is_file():
        pytest.skip("QUATSPHERE_DATA does not point to a folder with cifar10.zip")
    models = ("cifar10-qsv", "cifar10-qsv-paper", "cifar10-attention", "cifar10-resnet20")
    images = load_dataset("cifar10", root=root).test.images[:: 10_000 * len(models) // trials.count]
    for name in models:
        with trials.several(name) as batch:
            batch.number = len(images)
            assert export_model(load(name), trials.folder / f"{name}.onnx", "onnx", images) <= 1e-4


@promise("Neighbour kernels are bit-equal for any number of threads", 1, 57)
def kernels_on_any_threads(trials: Trials) -> None:
    trials.tests("tests/kernels", "-k", "threads and not gpu")
