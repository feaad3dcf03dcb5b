"""Fixture of the kernel tests: small problems use all threads."""

from __future__ import annotations

import pytest

from quatsphere.kernels import cpu


@pytest.fixture(autouse=True)
def use_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an output of a single element justify a thread."""
    if cpu.available():
        monkeypatch.setattr("quatsphere.kernels.cpu.loops.threads.MIN_WORK_PER_THREAD", 1)
