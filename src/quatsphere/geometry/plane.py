"""The flat lattice of the paper's control: cell centres of a rows x columns grid on [-1, 1]²."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from quatsphere.errors import ConfigError


def flat_lattice(count: int, rows: int = 16, dtype: torch.dtype = torch.float32) -> Float[Tensor, "{count} 2"]:
    """Cell centres `(V, 2)` as (x, y), row-major, `rows` rows of V/rows columns.

    The number of rows is the same on every shell, so that interpolation along the index stays within a row and the
    vertex counts are exact (the paper does not give the shape of its lattices).
    """
    if rows < 1 or count % rows:
        nearest = max(1, round(count / max(1, rows))) * max(1, rows)
        raise ConfigError(
            f"a flat lattice of {rows} rows needs a multiple of {rows} vertices: got {count}; "
            f"nearest legal value {nearest}, or choose plane_rows that divides every shell size"
        )
    columns = count // rows
    y = (2 * torch.arange(rows, dtype=torch.float64) + 1) / rows - 1
    x = (2 * torch.arange(columns, dtype=torch.float64) + 1) / columns - 1
    grid_y, grid_x = torch.meshgrid(y, x, indexing="ij")
    return torch.stack((grid_x, grid_y), dim=-1).reshape(count, 2).to(dtype)
