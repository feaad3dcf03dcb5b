"""Softmax regression on the first shell's samples: the same samples as QSV's patch embedding."""

from __future__ import annotations

import pytest
import torch

from quatsphere.models import create_model
from quatsphere.nn.patch_embedding import sample_image


@pytest.mark.parametrize("layout", ["sphere", "plane"])
def test_samples_are_those_of_the_patch_embedding(layout: str) -> None:
    images = torch.rand(2, 3, 32, 32)
    linear, qsv = create_model("linear", layout=layout), create_model("qsv", layout=layout)
    _, trace = linear(images, return_trace=True)
    coords = qsv.layout.image_coords().unsqueeze(1) + qsv.embed.stencil
    assert torch.equal(trace["samples"], sample_image(images, coords, False))


def test_logits_are_linear_in_the_image() -> None:
    model = create_model("linear").double()
    first, second = torch.rand(2, 3, 3, 32, 32, dtype=torch.float64)
    mixed = model(0.3 * first + 0.7 * second)
    assert torch.allclose(mixed, 0.3 * model(first) + 0.7 * model(second), atol=1e-12)


def test_parameters() -> None:
    model = create_model("linear")
    assert model.parameter_parts() == {"classifier": 128 * 25 * 3 * 10 + 10}
    assert sum(map(len, model.parameter_roles().values())) == 2
    assert model.unreachable_parameters() == set()
