"""Geodesic patch embedding: every vertex of the first shell samples the image on a 5x5 stencil."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from quatsphere.torch_operators import transformed


def make_stencil(
    vertices: int, side: int = 5, reading: str = "span", dtype: torch.dtype = torch.float32
) -> Float[Tensor, "{side}*{side} 2"]:
    """Offsets linspace(-1, 1, 5)² * 2/√V as (u, v), row by row: 2/√V is the spacing of V points on [-1, 1]².

    With `pitch` it is the spacing of neighbouring samples, linspace(-2, 2, 5)² * 2/√V: a stencil twice as wide.
    """
    reach = (side - 1) / 2 if reading == "pitch" else 1
    line = torch.linspace(-reach, reach, side, dtype=torch.float64)
    grid_v, grid_u = torch.meshgrid(line, line, indexing="ij")
    return (torch.stack((grid_u, grid_v), dim=-1).reshape(-1, 2) * 2 / math.sqrt(vertices)).to(dtype)


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
    if transformed():
        return _bilinear(images, coords.to(images.dtype)).permute(0, 2, 3, 1)
    grid = coords.to(images.dtype).unsqueeze(0).expand(images.shape[0], -1, -1, -1)
    samples = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return samples.permute(0, 2, 3, 1)


def _bilinear(images: Float[Tensor, "b c y x"], coords: Float[Tensor, "v s 2"]) -> Float[Tensor, "b c v s"]:
    """`F.grid_sample` as called in `sample_image`, with forward mode and higher derivatives."""
    height, width = images.shape[-2:]
    x, y = (
        (((place + 1) * size - 1) / 2).clamp(0, size - 1)
        for place, size in ((coords[..., 0], width), (coords[..., 1], height))
    )
    left, top = x.detach().long(), y.detach().long()
    right, bottom = (left + 1).clamp(max=width - 1), (top + 1).clamp(max=height - 1)
    upper = torch.lerp(images[:, :, top, left], images[:, :, top, right], x - left)
    lower = torch.lerp(images[:, :, bottom, left], images[:, :, bottom, right], x - left)
    return torch.lerp(upper, lower, y - top)


class PatchEmbedding(nn.Module):
    """Stencil samples -> Linear -> LayerNorm: (B, C, y, x) and image coordinates (V, 2) -> tokens (B, V, d)."""

    stencil: Tensor

    def __init__(
        self, in_channels: int, dim: int, vertices: int, *, wrap: bool = False, side: int = 5, stencil: str = "span"
    ) -> None:
        super().__init__()
        self.wrap = wrap
        self.shape = (vertices, side, stencil)
        self.register_buffer("stencil", make_stencil(*self.shape), persistent=False)
        self.projection = nn.Linear(side * side * in_channels, dim)
        self.norm = nn.LayerNorm(dim)

    def extra_repr(self) -> str:
        """Vertices and samples of each."""
        return f"{self.shape[0]} vertices, {self.shape[1] ** 2} samples each"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PatchEmbedding:
        """Convert; after a change of precision recompute the stencil, since a cast would keep the old rounding."""
        before = self.stencil.dtype
        super()._apply(fn, recurse)
        if self.stencil.dtype != before:
            self.stencil = make_stencil(*self.shape, self.stencil.dtype).to(self.stencil.device)
        return self

    def forward(self, images: Float[Tensor, "b c y x"], image_coords: Float[Tensor, "v 2"]) -> Float[Tensor, "b v d"]:
        """Sample a patch around each vertex, flatten it (stencil, channel), project and normalise."""
        coords = image_coords.unsqueeze(1) + self.stencil
        patches = sample_image(images, coords, self.wrap)
        return self.norm(self.projection(patches.flatten(2)))
