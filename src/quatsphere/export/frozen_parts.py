"""Parts that the frozen models share: patch sampling, interpolation, attention over neighbours, permuted layers."""

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


EXCLUDED = -1e9
"""Added to the scores of sources that are not neighbours."""
COST_OF_A_ROW = 24
"""Cost of copying a source into a block, in units of one score."""


class NeighbourBlocks(nn.Module):
    """Targets in C blocks of N near vertices, each with the W sources that are neighbours of one of them.

    Attention is then a product of small dense matrices: runtimes have no operator for edges.
    With one block nothing is copied: W is the number of sources. Constants are not part of the state.
    """

    order: Tensor
    inverse: Tensor
    window: Tensor
    slots: Tensor
    chosen: Tensor

    def __init__(self, neighbours: Tensor, sources: int, positions: Tensor) -> None:
        """Divide the targets by their positions (T, d) into the cheapest number of equal blocks."""
        super().__init__()
        targets, self.k = neighbours.shape
        counts = [count for count in (2, 4, 8, 16, 32) if targets % count == 0]
        candidates = [split_by_halving(positions, count) for count in counts]
        windows = [[neighbours[block].unique() for block in blocks] for blocks in candidates]
        widths = [max(len(window) for window in blocks) for blocks in windows]
        costs = [width * (targets + COST_OF_A_ROW * count) for width, count in zip(widths, counts, strict=True)]
        self.blocks, self.width = 1, sources
        order, rows = torch.arange(targets), [torch.arange(sources)]
        if costs and min(costs) < targets * sources:
            best = costs.index(min(costs))
            self.blocks, self.width = counts[best], widths[best]
            order, rows = torch.cat(candidates[best]), windows[best]
        window = torch.stack([torch.cat([row, row[:1].expand(self.width - len(row))]) for row in rows])  # (C, W)
        near = neighbours[order].view(self.blocks, -1, 1, self.k)  # (C, N, 1, k)
        slots = (window[:, None, :, None] == near).int().argmax(2)  # the first copy of a source that fills a window
        self.register_buffer("order", order, persistent=False)
        self.register_buffer("inverse", order.argsort(), persistent=False)
        self.register_buffer("window", window.flatten(), persistent=False)
        self.register_buffer("slots", slots, persistent=False)
        chosen = torch.zeros(*slots.shape[:2], self.width).scatter_(2, slots, 1.0)
        self.register_buffer("chosen", chosen, persistent=False)

    def of_targets(self, x: Tensor) -> Tensor:
        """(B, H, T, n) -> (B, H, C, N, n); with a single block there is no axis of blocks."""
        return x if self.blocks == 1 else x.index_select(2, self.order).unflatten(2, (self.blocks, -1))

    def of_sources(self, x: Tensor) -> Tensor:
        """(B, H, S, n) -> (B, H, C, W, n)."""
        return x if self.blocks == 1 else x.index_select(2, self.window).unflatten(2, (self.blocks, -1))

    def to_targets(self, x: Tensor) -> Tensor:
        """Inverse of `of_targets`."""
        return x if self.blocks == 1 else x.flatten(2, 3).index_select(2, self.inverse)

    @property
    def mask(self) -> Tensor:
        """0 for neighbours and `EXCLUDED` for others, (C, N, W)."""
        return self._shaped((1 - self.chosen) * EXCLUDED)

    @property
    def equal(self) -> Tensor:
        """Weights 1 / k of the neighbours, (C, N, W)."""
        return self._shaped(self.chosen / self.k)

    def at_edges(self, weights: Tensor) -> Tensor:
        """Weights (B, H, C, N, W) by edge, (B, T, k, H)."""
        slots = self._shaped(self.slots).expand(*weights.shape[:2], *[-1] * (weights.ndim - 2))
        return self.to_targets(weights.gather(-1, slots)).permute(0, 2, 3, 1)

    def from_edges(self, weights: Tensor) -> Tensor:
        """Inverse of `at_edges`."""
        by_block = self.of_targets(weights.permute(0, 3, 1, 2))
        slots = self._shaped(self.slots).expand_as(by_block)
        empty = (by_block[..., :1] * 0).expand(*by_block.shape[:-1], self.width)
        return empty.scatter(-1, slots, by_block)

    def _shaped(self, x: Tensor) -> Tensor:
        return x[0] if self.blocks == 1 else x


def split_by_halving(points: Tensor, parts: int) -> list[Tensor]:
    """Indices of points in equal parts, by repeated halving along the longest axis; `parts` is a power of two."""
    blocks = [torch.arange(len(points))]
    while len(blocks) < parts:
        blocks = [half for block in blocks for half in _halve(points, block)]
    return blocks


def _halve(points: Tensor, block: Tensor) -> tuple[Tensor, ...]:
    own = points[block]
    axis = int((own.amax(0) - own.amin(0)).argmax())
    return block[own[:, axis].argsort(stable=True)].chunk(2)


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
