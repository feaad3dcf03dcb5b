"""Operators of the package need no compiler of torch."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import torch
from quatsphere.models import build_model
from quatsphere.config import QSVConfig
model = build_model(QSVConfig(dim=32, heads=2, base_vertices=8, shells=2, neighbours=3, backend="factored"))
model.eval()(torch.zeros(1, 3, 32, 32)).sum().backward()
from quatsphere.train.resources import estimate_bytes
estimate_bytes(model, 1)
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""


def test_a_model_and_its_memory_estimate_run_without_importing_the_compiler() -> None:
    """It takes longer to import than a prediction, which the first call of `torch.library.custom_op` would do."""
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
