"""Fixtures of the training tests."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _digits_in_memory() -> None:
    """Read the digits once, so that forks of this process need not."""
    from quatsphere.data import load_dataset

    load_dataset("digits")
