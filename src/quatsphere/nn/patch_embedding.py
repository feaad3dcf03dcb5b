"""Geodesic patch embedding: every first-shell vertex samples a 5x5 stencil of the image around where it looks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn


def make_stencil(vertices: int, side: int = 5) -> Float[Tensor, "{side}*{side} 2"]:
    """Offsets linspace(-1, 1, 5)² * 2/√V as (u, v), row by row: 2/√V is the spacing of V points on [-1, 1]²."""
    line = torch.linspace(-1, 1, side, dtype=torch.float64)
    grid_v, grid_u = torch.meshgrid(line, line, indexing="ij")
    return (torch.stack((grid_u, grid_v), dim=-1).reshape(-1, 2) * 2 / math.sqrt(vertices)).float()


def sample_image(
    images: Float[Tensor, "b c y x"], coords: Float[Tensor, "v s 2"], wrap: bool
) -> Float[Tensor, "b v s c"]:
    """Bilinear samples at image coordinates in [-1, 1]² (-1 and 1 are the outer edges of the border pixels).

    Outside the image the border pixel is repeated (paper); with `wrap` the left edge continues the right one, as in
    a panorama. Linear in the image, differentiable in the coordinates. v = -1 is the first image row.
    """
    if wrap:
        width = images.shape[-1]
        images = F.pad(images, (1, 1, 0, 0), mode="circular")
        u = torch.remainder(coords[..., 0] + 1, 2) - 1
        coords = torch.stack((u * width / (width + 2), coords[..., 1]), dim=-1)
    grid = coords.to(images.dtype).unsqueeze(0).expand(images.shape[0], -1, -1, -1)
    samples = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return rearrange(samples, "b c v s -> b v s c")


class PatchEmbedding(nn.Module):
    """Stencil samples -> Linear -> LayerNorm: (B, C, y, x) and image coordinates (V, 2) -> tokens (B, V, d)."""

    stencil: Tensor

    def __init__(self, in_channels: int, dim: int, vertices: int, *, wrap: bool = False, side: int = 5) -> None:
        super().__init__()
        self.wrap = wrap
        self.register_buffer("stencil", make_stencil(vertices, side), persistent=False)
        self.projection = nn.Linear(side * side * in_channels, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, images: Float[Tensor, "b c y x"], image_coords: Float[Tensor, "v 2"]) -> Float[Tensor, "b v d"]:
        """Patches around each vertex's place, flattened (stencil, channel), projected and normed."""
        coords = image_coords.unsqueeze(1) + self.stencil
        patches = sample_image(images, coords, self.wrap)
        return self.norm(self.projection(rearrange(patches, "b v s c -> b v (s c)")))
