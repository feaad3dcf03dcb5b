"""Fixtures of the training tests."""

from __future__ import annotations

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture(scope="session", autouse=True)
def _digits_in_memory() -> None:
    """Read the digits once, so that forks of this process need not."""
    from quatsphere.data import load_dataset

    load_dataset("digits")


@pytest.fixture(scope="module")
def unchecked() -> Iterator[None]:
    """Disable the check of shapes, which doubles the time of a run; other tests enable it."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
