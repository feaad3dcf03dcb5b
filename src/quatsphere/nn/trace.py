"""Intermediates by name, without hooks: a trace that records, and one that does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


class Trace(dict[str, Any]):
    """name -> tensor, or name -> list with one tensor per step."""

    looks = True

    def step(self, values: Callable[[], Mapping[str, Tensor]]) -> None:
        """Append one step's values; a function, so that what only a trace wants is only computed for a trace."""
        for name, value in values().items():
            self.setdefault(name, []).append(value)

    def note(self, values: Callable[[], Mapping[str, Any]]) -> None:
        """Record values that occur once in a forward pass."""
        self.update(values())


class NoTrace(Trace):
    """Records nothing."""

    looks = False

    def step(self, values: Callable[[], Mapping[str, Tensor]]) -> None:
        """Nothing."""

    def note(self, values: Callable[[], Mapping[str, Any]]) -> None:
        """Nothing."""
