"""Attention over neighbours as products of small dense matrices: runtimes have no operator for edges."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXCLUDED = -1e9
"""Added to the scores of sources that are not neighbours."""
COST_OF_A_ROW = 24
"""Cost of copying a source into a block, in units of one score."""


class NeighbourBlocks(nn.Module):
    """Targets in C blocks of N near vertices, each with the W sources that are neighbours of one of them.

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
        candidates = [halved(positions, count) for count in counts]
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
        """(B, H, T, n) -> (B, H, C, N, n); without an axis of blocks if there is one only."""
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


def halved(points: Tensor, parts: int) -> list[Tensor]:
    """Indices of points in equal parts: halves along the longest axis, each halved again; parts is a power of two."""
    blocks = [torch.arange(len(points))]
    while len(blocks) < parts:
        blocks = [half for block in blocks for half in _halves(points, block)]
    return blocks


def _halves(points: Tensor, block: Tensor) -> tuple[Tensor, ...]:
    own = points[block]
    axis = int((own.amax(0) - own.amin(0)).argmax())
    return block[own[:, axis].argsort(stable=True)].chunk(2)
