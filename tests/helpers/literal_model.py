"""QSV by the paper's equations, written out edge by edge: the models are compared with it, in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quatsphere import create_model
from quatsphere.geometry import quaternion as Q
from quatsphere.geometry.sphere import lambert_uv
from quatsphere.models import QSV
from quatsphere.nn.layout import Graph
from quatsphere.nn.shell_step import ShellState, ShellStep

DEMO: dict[str, Any] = {"image_size": 8, "in_channels": 1, "base_vertices": 32, "shells": 3, "dim": 64, "heads": 4}
"""The size of the demo."""


def randomised_qsv(**changes: Any) -> QSV:
    """A model of the demo's size with noise added to its parameters, so that every part has an effect."""
    model = create_model("qsv", seed=1, **DEMO, **changes)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith((".base", ".positions")):
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    assert isinstance(model, QSV)
    return model.eval()


def interp(x: Tensor, targets: int) -> Tensor:
    """eq:residual's interpolation, as torch has it."""
    return F.interpolate(x.transpose(1, 2), size=targets, mode="linear", align_corners=False).transpose(1, 2)


def embed(model: QSV, images: Tensor) -> Tensor:
    """Bilinear samples of a 5x5 stencil of side 4/√V, one linear layer, one layer norm."""
    line = torch.linspace(-1, 1, 5, dtype=torch.float64) * 2 / math.sqrt(32)
    offsets = torch.stack((line.repeat(5), line.repeat_interleave(5)), dim=-1)
    coords = lambert_uv(model.layout.shells[0].positions)[:, None] + offsets
    grid = coords.expand(len(images), -1, -1, -1)
    samples = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    return model.embed.norm(model.embed.projection(samples.permute(0, 2, 3, 1).flatten(2)))


def perturbed_field(step: ShellStep, tokens: Tensor, state: ShellState) -> Tensor:
    """eq:perturb of one shell (B, V, H, 4)."""
    base = state.field.base.expand(len(tokens), -1, -1, -1)
    if not hasattr(step.perturbation, "inner"):
        return base
    hidden = F.gelu(step.perturbation.inner(tokens)).unflatten(2, (base.shape[2], -1))
    tangent = torch.einsum("bvhi,hic->bvhc", hidden, step.perturbation.outer_weight) + step.perturbation.outer_bias
    return Q.normalize(Q.multiply(base, Q.exp(state.field.bound.value * torch.tanh(tangent))))


def literal_step(
    step: ShellStep, tokens: Tensor, source: ShellState, target: ShellState, graph: Graph, off: Tensor | None = None
) -> Tensor:
    """eqs attn-weight and residual, edge by edge; messages of the heads (H,) in `off` are not rotated."""
    resampled = interp(tokens, target.shell.count) if source is not target else tokens
    target_field, source_field = perturbed_field(step, resampled, target), perturbed_field(step, tokens, source)
    relative = Q.relative(target_field[:, :, None], source_field[:, graph.neighbours])
    weights = torch.softmax(step.routing.beta * relative[..., 0], dim=2)
    sent = tokens.unflatten(2, (weights.shape[3], -1, 4))[:, graph.neighbours]
    messages = Q.sandwich(relative[..., None, :], sent)
    if off is not None:
        messages = torch.where(off[:, None, None], sent, messages)
    aggregated = (weights[..., None, None] * messages).sum(2)
    update = step.ffn.down(F.gelu(step.ffn.up(step.post(aggregated)))).flatten(2)
    return update + (tokens if source is target else torch.sigmoid(step.gate.logit) * resampled)


def literal_logits(model: QSV, images: Tensor, off: Mapping[int, Tensor] | None = None) -> Tensor:
    """Logits by the equations, with the mean rotation from an eigenvalue solver.

    `off` maps the number of a step to a mask (H,) of the heads without transport.
    """
    states = [ShellState(*pair) for pair in zip(model.layout.shells, model.fields, strict=True)]
    last, graph = states[-1], model.layout.last
    steps = [(model.within, states[0], states[0], model.layout.within)]
    steps += list(zip(model.cross, states, states[1:], model.layout.cross, strict=False))
    steps += [(step, last, last, graph) for step in model.rounds]
    tokens = embed(model, images)
    for number, (step, *shells) in enumerate(steps):
        tokens = literal_step(step, tokens, *shells, off=(off or {}).get(number))
    base = last.field.base.reshape(-1, 4)
    mean = torch.linalg.eigh(base.T @ base).eigenvectors[:, -1]
    direction = Q.rotate(mean, torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
    scores = (tokens.unflatten(2, (-1, 4))[..., 1:] * direction).sum((2, 3))
    return model.classifier((torch.softmax(scores, dim=1)[..., None] * tokens).sum(1))
