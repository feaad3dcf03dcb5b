"""Common parts of the models: base classes, the layout of a configuration, the steps on its shells."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from quatsphere.config import AttentionConfig, LatticeConfig, LinearConfig, QSVConfig
from quatsphere.nn.layout import Graph, Layout, plane_shells, sphere_shells
from quatsphere.nn.patch_embedding import PatchEmbedding
from quatsphere.nn.trace import NoTrace, Trace

ROLES = ("quaternions", "positions", "bounds", "betas", "gates", "weights")
"""Roles of parameters."""


def build_layout(config: QSVConfig | AttentionConfig | LinearConfig) -> Layout:
    """Build the shells and graphs of a configuration."""
    sizes = (config.base_vertices, config.shells)
    if config.layout == "plane":
        shells = plane_shells(*sizes, config.plane_rows)
    else:
        shells = sphere_shells(*sizes, (config.outer_radius, config.inner_radius), config.positions == "learned")
    counts = None if config.neighbours is None else [config.neighbours] * config.shells
    return Layout(shells, counts, config.resample, config.self_neighbour)


def build_embedding(config: LatticeConfig, dim: int, vertices: int) -> PatchEmbedding:
    """Build the patch embedding of a configuration."""
    return PatchEmbedding(config.in_channels, dim, vertices, wrap=config.wrap_longitude, stencil=config.stencil)


class ImageModel(nn.Module):
    """A model from images (B, C, Y, X) to logits (B, classes); by default nothing is constrained or unreachable."""

    PARTS: tuple[tuple[str, str], ...] = ()
    """(part, fragment of the names of its parameters); the first that matches counts."""

    def forward(
        self,
        images: Float[Tensor, "b c y x"],
        *,
        sample_keys: Int[Tensor, "b"] | None = None,
        return_trace: bool = False,
    ) -> Float[Tensor, "b classes"] | tuple[Float[Tensor, "b classes"], Trace]:
        """Return logits, and with `return_trace` every intermediate by name (lists have one entry per step).

        `sample_keys`, one per image, determine the dropout masks; models without dropout ignore them.
        """
        trace = Trace() if return_trace else NoTrace()
        logits = self.logits(images, sample_keys, trace)
        trace.note(lambda: {"logits": logits})
        return (logits, trace) if return_trace else logits

    def logits(
        self, images: Float[Tensor, "b c y x"], keys: Int[Tensor, "b"] | None, trace: Trace
    ) -> Float[Tensor, "b classes"]:
        """Logits of a batch; intermediates go to the trace."""
        raise NotImplementedError

    def constrain(self) -> None:
        """Restore the constraints of the parameters; call it after every optimiser step."""

    def parameter_roles(self) -> dict[str, list[str]]:
        """role -> parameter names, for the optimiser.

        Modules declare the roles of their own parameters in `roles`; all others are weights.
        """
        roles: dict[str, list[str]] = {role: [] for role in ROLES}
        for prefix, module in self.named_modules():
            declared: dict[str, str] = getattr(module, "roles", {})
            for name, _ in module.named_parameters(recurse=False):
                roles[declared.get(name, "weights")].append(f"{prefix}.{name}" if prefix else name)
        return roles

    def parameter_parts(self) -> dict[str, int]:
        """part -> number of parameters; every parameter belongs to one part."""
        counts: dict[str, int] = {}
        for name, parameter in self.named_parameters():
            part = next(part for part, fragment in self.PARTS if fragment in name)
            counts[part] = counts.get(part, 0) + parameter.numel()
        return counts

    def unreachable_parameters(self) -> set[str]:
        """Return the names of parameters that get no gradient from the task loss; all others get one."""
        return set()


class LatticeModel(ImageModel):
    """A model on nested shells: image -> tokens on the first shell -> ... -> pooled vector -> logits."""

    layout: Layout

    def sample_keys(self, images: Tensor, keys: Tensor | None) -> Tensor:
        """One int64 per image that determines its dropout masks; drawn from torch's generator if None."""
        if keys is not None:
            return keys
        if not self.training:
            return torch.zeros(images.shape[0], dtype=torch.int64, device=images.device)
        return torch.randint(2**62, (images.shape[0],), device=images.device)

    def constrain(self) -> None:
        """Project vertices onto their radii and update the graphs; call it after every optimiser step."""
        self.layout.constrain()


class ModelStep(NamedTuple):
    """One application of the kernel, from shell `source` to shell `target` (counted from 1)."""

    name: str
    source: int
    target: int
    module: Any
    graph: Graph


def step_names(shells: int, rounds: int) -> list[str]:
    """Return the names of the steps: `within`, `cross 1` ..., `round 1` ..."""
    return ["within", *(f"cross {i}" for i in range(1, shells)), *(f"round {i}" for i in range(1, 1 + rounds))]


def model_steps(model: Any) -> list[ModelStep]:
    """Return the steps of a model; empty for a model without shells."""
    layout: Any = getattr(model, "layout", None)
    if layout is None:
        return []
    cross, rounds, last = model.cross, model.rounds, len(layout.shells)
    ends = [(1, 1), *((i, i + 1) for i in range(1, last)), *([(last, last)] * len(rounds))]
    modules = [model.within, *cross, *rounds]
    graphs = [layout.within, *layout.cross, *([layout.last] * len(rounds))]
    names = step_names(last, len(rounds))
    return [ModelStep(n, *e, m, g) for n, e, m, g in zip(names, ends, modules, graphs, strict=True)]
