"""Fused operators for CPUs (Numba): torch operators here, by subject, and their compiled loops in `loops`.

Numba is imported by the first call of an operator; importing this package neither needs it nor costs time.
"""

import importlib.util


def available() -> bool:
    """Return True if Numba is installed."""
    return importlib.util.find_spec("numba") is not None
