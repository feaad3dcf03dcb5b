"""A trained model as one inference module in plain torch, for exporters.

Positions, sampling points, graphs, interpolation, bounds, gates, merged Hamilton weights and the pooled axis are
constants; normalisation is part of the module. It has no custom operators, no dropout and no caches.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quatsphere.export.frozen_parts import Interpolation, NeighbourBlocks, PatchSampler, permuted_linear, sampler_of
from quatsphere.export.frozen_qsv import FrozenQSV
from quatsphere.models import QSV, AttentionNet, LinearModel, Model, ResNet20
from quatsphere.models.lattice import ModelStep, model_steps
from quatsphere.nn.layout import Shell


class FrozenModel(nn.Module):
    """Images (B, C, Y, X) with levels in [0, 1] -> logits (B, classes)."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Model, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        model = copy.deepcopy(model).float().eval().requires_grad_(False)
        if isinstance(model, QSV | AttentionNet):
            model.layout.refresh()  # loaded positions have other neighbours than those of the start
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))
        self.body = FROZEN[type(model)](model)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Normalise and classify."""
        logits: Tensor = self.body((images - self.mean) / self.std)
        return logits


class FrozenAttention(nn.Module):
    """The matched baseline with the constants of its layout."""

    def __init__(self, model: AttentionNet) -> None:
        super().__init__()
        self.sampler = sampler_of(model)
        self.projection = permuted_linear(model.embed.projection, columns=self.sampler.column_order)
        self.norm = model.embed.norm
        self.steps = nn.ModuleList(FrozenAttentionStep(step, model.layout.shells) for step in model_steps(model))
        self.classifier = model.classifier

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images -> logits."""
        tokens = self.norm(self.projection(self.sampler(images)))
        for step in self.steps:
            tokens = step(tokens)
        logits: Tensor = self.classifier(tokens.mean(1))
        return logits


class FrozenAttentionStep(nn.Module):
    """Attention over the neighbours in blocks, and the feed-forward block."""

    mask: Tensor

    def __init__(self, step: ModelStep, shells: Sequence[Shell]) -> None:
        super().__init__()
        module, attention, graph = step.module, step.module.attention, step.graph
        self.heads, self.uniform = attention.heads, attention.routing == "uniform"
        positions = shells[step.target - 1].positions.detach()
        self.blocks = NeighbourBlocks(graph.neighbours, shells[step.source - 1].count, positions)
        self.register_buffer("mask", self.blocks.equal if self.uniform else self.blocks.mask)
        self.interpolation = Interpolation(graph)
        self.attention_norm, self.ffn_norm, self.ffn = module.attention_norm, module.ffn_norm, module.ffn
        self.value, self.output = attention.value, attention.output
        self.query, self.key = copy.deepcopy(attention.query), attention.key
        for parameter in self.query.parameters():
            parameter.mul_((parameter.shape[0] // self.heads) ** -0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Attention over the neighbours and feed-forward block, both with residuals."""
        target = self.interpolation(tokens)
        source = self.attention_norm(tokens)
        values = self.blocks.of_sources(self.split(self.value(source)))
        if self.uniform:
            weights = self.mask
        else:
            queries = self.blocks.of_targets(self.split(self.query(self.attention_norm(target))))
            keys = self.blocks.of_sources(self.split(self.key(source)))
            weights = torch.softmax(queries @ keys.transpose(-1, -2) + self.mask, dim=-1)
        hidden = target + self.output(self.blocks.to_targets(weights @ values).transpose(1, 2).flatten(2))
        out: Tensor = hidden + self.ffn(self.ffn_norm(hidden))
        return out

    def split(self, x: Tensor) -> Tensor:
        """(B, V, d) -> (B, H, V, C)."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class FrozenLinear(nn.Module):
    """Softmax regression on the samples."""

    def __init__(self, model: LinearModel) -> None:
        super().__init__()
        config = model.config
        self.sampler = PatchSampler(model.coords, config.image_size, config.in_channels, config.wrap_longitude)
        order = self.sampler.column_order
        columns = (torch.arange(len(model.coords))[:, None] * len(order) + order).flatten()
        self.classifier = permuted_linear(model.classifier, columns=columns)

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images -> logits."""
        logits: Tensor = self.classifier(self.sampler(images).flatten(1))
        return logits


FROZEN: dict[type, Any] = {
    QSV: FrozenQSV,
    AttentionNet: FrozenAttention,
    LinearModel: FrozenLinear,
    ResNet20: lambda model: model,
}
