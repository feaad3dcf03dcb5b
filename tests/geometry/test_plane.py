"""The flat lattice: exact counts, symmetric, equal cells."""

import pytest
import torch

from quatsphere.errors import ConfigError
from quatsphere.geometry.plane import flat_lattice


@pytest.mark.parametrize("count", [128, 192, 256, 320, 384])
def test_cells_of_every_shell(count: int) -> None:
    points = flat_lattice(count, dtype=torch.float64)
    columns = count // 16
    assert points.shape == (count, 2)
    assert points.mean(0).abs().max() < 1e-12
    assert torch.allclose(points[1] - points[0], torch.tensor([2 / columns, 0.0], dtype=torch.float64))
    assert torch.allclose(points[columns] - points[0], torch.tensor([0.0, 2 / 16], dtype=torch.float64))
    assert points.abs().amax(0).tolist() == pytest.approx([1 - 1 / columns, 1 - 1 / 16])


def test_impossible_counts_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match="nearest legal value 96"):
        flat_lattice(100)
