"""What the tests of training share."""

from __future__ import annotations

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture(scope="session", autouse=True)
def _digits_in_memory() -> None:
    """Read the digits once: forks of this process then find scikit-learn imported."""
    from quatsphere.data import load_dataset

    load_dataset("digits")


@pytest.fixture(scope="module")
def unchecked() -> Iterator[None]:
    """Without the check of shapes, which doubles the time of a run; other tests have it on."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
