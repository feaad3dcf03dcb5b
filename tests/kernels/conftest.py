"""Fixture of the kernel tests: small problems use all threads. Triton's interpreter is made faster."""

from __future__ import annotations

import pytest
from helpers.interpreter import prepare_once_per_launch

from quatsphere.kernels import cpu
from quatsphere.kernels.gpu import attention as gpu_attention

if gpu_attention.available() and gpu_attention.INTERPRETED:
    prepare_once_per_launch()


@pytest.fixture(autouse=True)
def use_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the work per thread to one output element, so that small problems use all threads."""
    if cpu.available():
        monkeypatch.setattr("quatsphere.kernels.cpu.loops.threads.MIN_WORK_PER_THREAD", 1)
