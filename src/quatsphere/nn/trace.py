"""Traces: intermediate results of a forward pass by name, recorded without hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


class Trace(dict[str, Any]):
    """name -> tensor, or name -> list with one tensor per step."""

    enabled = True

    def __repr__(self) -> str:
        """Names and shapes in one line; of a list, the number of steps and the shape of the first."""
        lists = {name: value for name, value in self.items() if isinstance(value, list) and value}
        shapes = [f"{name} {len(value)} x {tuple(value[0].shape)}" for name, value in lists.items()]
        shapes += [f"{name} {tuple(value.shape)}" for name, value in self.items() if isinstance(value, Tensor)]
        return f"{type(self).__name__}({', '.join(shapes)})"

    def step(self, values: Callable[[], Mapping[str, Tensor]]) -> None:
        """Append the values of one step; `values` is a function, so that a disabled trace computes nothing."""
        if self.enabled:
            for name, value in values().items():
                self.setdefault(name, []).append(value)

    def note(self, values: Callable[[], Mapping[str, Any]]) -> None:
        """Record values that occur once in a forward pass."""
        if self.enabled:
            self.update(values())


class NoTrace(Trace):
    """A trace that records nothing."""

    enabled = False
