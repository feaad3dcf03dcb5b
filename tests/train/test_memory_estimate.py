"""The memory estimate against the measured memory of a step."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny_runs import Process

from quatsphere.errors import ResourceError
from quatsphere.models import create_model
from quatsphere.train.resources import estimate_bytes, memory_errors

SMALL: dict[str, dict[str, Any]] = {
    "qsv": {"dim": 64, "heads": 4, "base_vertices": 64, "shells": 3, "backend": "factored"},
    "attention": {"dim": 48, "heads": 4, "base_vertices": 64, "shells": 3},
    "resnet20": {},
}


def test_estimate_is_linear_in_the_batch_size() -> None:
    model = create_model("qsv", **SMALL["qsv"])
    one, two, three = (estimate_bytes(model, batch) for batch in (1, 2, 3))
    assert three - two == two - one > 0
    weights = sum(p.numel() * 4 for p in model.parameters())
    assert one - (two - one) == 4 * weights


def test_estimate_does_not_depend_on_positions() -> None:
    """Positions move between an optimiser's step and the next forward pass, where memory may run out."""
    model = create_model("qsv", **SMALL["qsv"])
    before = estimate_bytes(model, 2)
    with torch.no_grad():
        for shell in model.layout.shells:
            shell.positions.mul_(1.01)
    assert estimate_bytes(model, 2) == before


def test_memory_errors_of_every_wording() -> None:
    model = create_model("resnet20", width=4)
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes")):
        with pytest.raises(ResourceError, match=r"out of memory at batch size 7 \(a step takes about 0\.0"):
            fail_with(error, model)
    with pytest.raises(RuntimeError, match="something else"):
        fail_with(RuntimeError("something else"), model)


def fail_with(error: Exception, model: Any) -> None:
    with memory_errors(model, 7):
        raise error


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", SMALL)
def test_estimate_is_within_a_factor_of_two(name: str, tmp_path: Path) -> None:
    """Compare with the growth of a process's peak resident memory over three steps."""
    batch = 64

    def work() -> None:
        model = create_model(name, **SMALL[name])
        optimiser = torch.optim.AdamW(model.parameters())
        images = torch.randn(batch, 3, 32, 32)
        model(images[:2]).sum().backward()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(3):
            model(images).square().mean().backward()
            optimiser.step()
            optimiser.zero_grad()
        used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        (tmp_path / "used").write_text(f"{used} {estimate_bytes(model, batch)}")

    process = Process(work, tmp_path / "log")
    assert process.wait() == 0, process.text
    used, estimate = map(int, (tmp_path / "used").read_text().split())
    assert 0.5 < estimate / used < 2, f"estimated {estimate / 1e6:.0f} MB, used {used / 1e6:.0f} MB"
