"""The whole model in float64 equals the paper's equations up to rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.literal_model import literal_logits, randomised_qsv
from measures import relative_error


@pytest.mark.parametrize("backend", ["auto", "factored", "reference"])
@pytest.mark.parametrize("changes", [{}, {"field": "frozen_random"}], ids=["learned", "frozen random"])
@torch.no_grad()
def test_a_double_model_is_the_equations_in_float64(changes: dict[str, Any], backend: str) -> None:
    model = randomised_qsv(**changes, backend=backend).double()
    images = torch.randn(3, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert relative_error(model(images), literal_logits(model, images)) < 1e-14
