"""Modules of the mathematics that annotate shapes are those whose shapes pytest checks (pyproject.toml)."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch

from quatsphere import quaternion_attention
from quatsphere.kernels import reference

ROOT = Path(__file__).parent.parent
PACKAGES = ("geometry", "kernels", "nn", "models", "optim", "data")


def test_every_annotated_module_is_checked() -> None:
    """The others are left out: inner functions would be wrapped anew at every call, which costs more than the call."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    checked = options.partition("--jaxtyping-packages=")[2].split()[0].split(",")[:-1]
    annotated = [
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for package in PACKAGES
        for path in sorted((ROOT / "src" / "quatsphere" / package).rglob("*.py"))
        if "from jaxtyping import" in path.read_text()
    ]
    assert [name for name in annotated if not any(f"{name}.".startswith(f"{known}.") for known in checked)] == []


@pytest.mark.skipif(not hasattr(quaternion_attention, "__wrapped__"), reason="shapes are not checked; -o addopts=")
def test_a_wrong_shape_is_found() -> None:
    field, features = torch.randn(1, 3, 2, 4), torch.randn(1, 3, 2, 1, 3)
    with pytest.raises(Exception, match="features") as caught:
        quaternion_attention(field, field, features, torch.zeros(3, 1, dtype=torch.int64), torch.ones(2))
    assert type(caught.value).__module__.startswith("jaxtyping")
    assert not hasattr(reference.quaternion_attention, "__wrapped__")
