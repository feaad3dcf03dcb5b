"""Shape checks, which the tests enable for the whole package, switched off for loops of many small calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping


@contextmanager
def without_shape_checks() -> Iterator[None]:
    """Disable the check of shapes, which doubles the time of a run; other tests enable it."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
