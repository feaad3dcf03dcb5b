"""Parts that the frozen models share: patch sampling with constant coordinates, interpolation, permuted layers."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from quatsphere.models import QSV, AttentionNet
from quatsphere.nn.layout import Graph


class PatchSampler(nn.Module):
    """Bilinear samples around each vertex: images (B, C, Y, X) -> (B, V, C * 25), columns ordered (channel, sample).

    Equal to `sample_image` at `coords` (V, 25, 2): outside the image the border pixel is repeated, with `wrap` the left
    edge continues the right one.
    """

    pixels: Tensor
    shares: Tensor

    def __init__(self, coords: Tensor, size: int, channels: int, wrap: bool) -> None:
        super().__init__()
        pixels, shares = bilinear_taps(coords.detach().double(), size, wrap)
        self.shape = coords.shape[:2]
        self.channels = channels
        self.register_buffer("pixels", pixels.flatten())
        self.register_buffer("shares", shares.float())

    @property
    def column_order(self) -> Tensor:
        """Columns of a weight for (sample, channel), in the order (channel, sample)."""
        return torch.arange(self.shape[1] * self.channels).view(-1, self.channels).T.flatten()

    def forward(self, images: Tensor) -> Tensor:
        """Gather the four pixels of each sample, of all images and channels at once, and add them up."""
        rows = images.flatten(2).flatten(0, 1).T  # (Y * X, B * C)
        taps = rows.index_select(0, self.pixels).unflatten(0, (4, -1))
        samples = (taps * self.shares.unsqueeze(2)).sum(0).unflatten(0, self.shape)  # (V, 25, B * C)
        return samples.unflatten(2, (-1, self.channels)).permute(2, 0, 3, 1).flatten(2)


def bilinear_taps(coords: Tensor, size: int, wrap: bool) -> tuple[Tensor, Tensor]:
    """Pixel indices and weights, both (4, samples), of coordinates (..., 2) in a square image."""
    u, v = coords.reshape(-1, 2).unbind(1)
    y = (((v + 1) * size - 1) / 2).clamp(0, size - 1)
    x = ((torch.remainder(u + 1, 2) if wrap else u + 1) * size - 1) / 2
    x = x if wrap else x.clamp(0, size - 1)
    left, top = x.floor(), y.floor()
    right, bottom = left + 1, (top + 1).clamp(max=size - 1)
    columns = [torch.remainder(c, size) if wrap else c.clamp(max=size - 1) for c in (left, right)]
    pixels = [row * size + column for row in (top, bottom) for column in columns]
    shares = [dy * dx for dy in (1 - (y - top), y - top) for dx in (1 - (x - left), x - left)]
    return torch.stack(pixels).long(), torch.stack(shares)


def sampler_of(model: QSV | AttentionNet) -> PatchSampler:
    """Sampler of the first shell of a model."""
    config, coords = model.config, model.layout.image_coords().unsqueeze(1) + model.embed.stencil
    return PatchSampler(coords, config.image_size, config.in_channels, config.wrap_longitude)


class Interpolation(nn.Module):
    """`interp` along the vertices, (B, S, d) -> (B, T, d); the identity between shells of equal size."""

    indices: Tensor
    shares: Tensor

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        mixing = graph.mixing
        self.identity = mixing is None
        self.register_buffer("indices", None if mixing is None else mixing.indices.clone())
        self.register_buffer("shares", None if mixing is None else mixing.shares.detach().float())

    def forward(self, x: Tensor) -> Tensor:
        """Σ_m w_im x_n(i,m)."""
        if self.identity:
            return x
        slots = zip(self.indices.unbind(1), self.shares.unbind(1), strict=True)
        first, *others = (x.index_select(1, index) * share[:, None] for index, share in slots)
        return sum(others, first)


def frozen_parameter(values: Tensor) -> nn.Parameter:
    """Return a parameter without a gradient."""
    return nn.Parameter(values.detach().contiguous().clone(), requires_grad=False)


def permuted_linear(layer: nn.Linear, rows: Tensor | None = None, columns: Tensor | None = None) -> nn.Linear:
    """Copy of a linear layer with its outputs or inputs in another order."""
    layer = copy.deepcopy(layer)
    if rows is not None:
        layer.weight, layer.bias = frozen_parameter(layer.weight[rows]), frozen_parameter(layer.bias[rows])
    if columns is not None:
        layer.weight = frozen_parameter(layer.weight[:, columns])
    return layer
