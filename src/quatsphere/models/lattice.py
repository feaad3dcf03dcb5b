"""Common parts of the models on lattices: layout, dropout keys, parameter counts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quatsphere.config import AttentionConfig, LatticeConfig, LinearConfig, QSVConfig
from quatsphere.nn.layout import Layout, Shell, plane_shells, sphere_shells
from quatsphere.nn.patch_embedding import PatchEmbedding
from quatsphere.nn.roles import parameter_roles


def build_layout(config: QSVConfig | AttentionConfig | LinearConfig) -> Layout:
    """Build the shells and graphs of a configuration."""
    builders = {"sphere": _sphere, "plane": _plane}
    shells = builders[config.layout](config, config.positions == "learned")
    counts = None if config.neighbours is None else [config.neighbours] * config.shells
    return Layout(shells, counts, config.resample, config.self_neighbour)


def build_embedding(config: LatticeConfig, dim: int, vertices: int) -> PatchEmbedding:
    """Build the patch embedding of a configuration."""
    return PatchEmbedding(config.in_channels, dim, vertices, wrap=config.wrap_longitude, stencil=config.stencil)


def _sphere(config: LatticeConfig, learned: bool) -> list[Shell]:
    return sphere_shells(config.base_vertices, config.shells, (config.outer_radius, config.inner_radius), learned)


def _plane(config: LatticeConfig, learned: bool) -> list[Shell]:
    return plane_shells(config.base_vertices, config.shells, config.plane_rows)


class LatticeModel(nn.Module):
    """A model on nested shells: image -> tokens on the first shell -> ... -> pooled vector -> logits."""

    PARTS: tuple[tuple[str, str], ...] = ()
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

    def parameter_roles(self) -> dict[str, list[str]]:
        """role -> parameter names, for the optimiser."""
        return parameter_roles(self)

    def parameter_parts(self) -> dict[str, int]:
        """part -> number of parameters."""
        return parameter_parts(self, self.PARTS)


def parameter_parts(model: nn.Module, parts: tuple[tuple[str, str], ...]) -> dict[str, int]:
    """Count parameters by the first (part, fragment of the name) that matches; every parameter must match one."""
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        part = next(part for part, fragment in parts if fragment in name)
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts
