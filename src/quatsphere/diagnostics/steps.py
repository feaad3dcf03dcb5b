"""The steps of a model by name, with the shells they lead from and to (counted from 1, as in the paper)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from torch import nn

from quatsphere.diagnostics.shadow import shadow
from quatsphere.models import Model
from quatsphere.nn.layout import Graph
from quatsphere.nn.shell_step import ShellStep


class Step(NamedTuple):
    """One application of the kernel: tokens of shell `source` become tokens of shell `target`."""

    name: str
    source: int
    target: int
    module: Any
    graph: Graph


def steps_of(model: Model) -> list[Step]:
    """within, cross 1 ... cross L-1, round 1 ...: the order of a trace; none for a model without shells."""
    layout: Any = getattr(model, "layout", None)
    if layout is None:
        return []
    last = len(layout.shells)
    cross: Any = model.cross
    rounds: Any = model.rounds
    return [
        Step("within", 1, 1, model.within, layout.within),
        *(Step(f"cross {i}", i, i + 1, cross[i - 1], layout.cross[i - 1]) for i in range(1, last)),
        *(Step(f"round {i}", last, last, module, layout.last) for i, module in enumerate(rounds, start=1)),
    ]


@contextmanager
def part_by_part(model: Model) -> Iterator[None]:
    """Within the block no step runs in one operator: interventions and clocks reach every part."""
    with ExitStack() as stack:
        for step in steps_of(model):
            if isinstance(step.module, ShellStep):
                stack.enter_context(shadow(step.module, "fused", lambda fused: False))
        yield


def has_field(model: nn.Module) -> bool:
    """Whether the model's tokens carry quaternions."""
    return hasattr(model, "fields")
