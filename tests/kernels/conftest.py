"""Kernels are tested with all the threads they are given, however small the problem."""

from __future__ import annotations

import pytest

from quatsphere.kernels import numba_cpu


@pytest.fixture(autouse=True)
def every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result of a single number is worth a thread."""
    if numba_cpu.available():
        monkeypatch.setattr("quatsphere.kernels.numba_threads.LEAST", 1)
