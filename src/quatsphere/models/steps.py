"""The steps of a model on shells, in the order of a forward pass and of its trace."""

from __future__ import annotations

from typing import Any, NamedTuple

from quatsphere.models.registry import Model
from quatsphere.nn.layout import Graph


class ModelStep(NamedTuple):
    """One application of the kernel, from shell `source` to shell `target` (counted from 1)."""

    name: str
    source: int
    target: int
    module: Any
    graph: Graph


def step_names(shells: int, rounds: int) -> list[str]:
    """Return the names of the steps: `within`, `cross 1` ..., `round 1` ..."""
    return ["within", *(f"cross {i}" for i in range(1, shells)), *(f"round {i}" for i in range(1, 1 + rounds))]


def model_steps(model: Model) -> list[ModelStep]:
    """Return the steps of a model; empty for a model without shells."""
    layout: Any = getattr(model, "layout", None)
    if layout is None:
        return []
    cross: Any = model.cross
    rounds: Any = model.rounds
    last = len(layout.shells)
    ends = [(1, 1), *((i, i + 1) for i in range(1, last)), *([(last, last)] * len(rounds))]
    modules = [model.within, *cross, *rounds]
    graphs = [layout.within, *layout.cross, *([layout.last] * len(rounds))]
    names = step_names(last, len(rounds))
    return [ModelStep(n, *e, m, g) for n, e, m, g in zip(names, ends, modules, graphs, strict=True)]
