"""Parts that the frozen models share."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import Tensor, nn

from quatsphere.export.sampling import PatchSampler
from quatsphere.models import QSV, AttentionNet
from quatsphere.nn.layout import Graph


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
        terms = zip(self.indices.unbind(1), self.shares.unbind(1), strict=True)
        return sum_slots([x.index_select(1, index) * share[:, None] for index, share in terms])


def constant(values: Tensor) -> nn.Parameter:
    """Return a parameter without a gradient."""
    return nn.Parameter(values.detach().contiguous().clone(), requires_grad=False)


def permuted_linear(layer: nn.Linear, rows: Tensor | None = None, columns: Tensor | None = None) -> nn.Linear:
    """Copy of a linear layer with its outputs or inputs in another order."""
    layer = copy.deepcopy(layer)
    if rows is not None:
        layer.weight, layer.bias = constant(layer.weight[rows]), constant(layer.bias[rows])
    if columns is not None:
        layer.weight = constant(layer.weight[:, columns])
    return layer


def sum_slots(terms: Sequence[Tensor]) -> Tensor:
    """Sum of tensors, one after the other."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
