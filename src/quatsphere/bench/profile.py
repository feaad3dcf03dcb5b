"""Where a training step's time goes: torch's profiler, operators gathered into the parts of the model."""

from __future__ import annotations

from typing import Any

from torch.profiler import ProfilerActivity, profile

from quatsphere.bench.timing import Pass

GROUPS: list[tuple[str, tuple[str, ...]]] = [
    ("optimisers", ("Optimizer.step", "Optimizer.zero_grad")),
    ("graph", ("bench::graph",)),
    ("finite check", ("bench::finite",)),
    ("kernel", ("quatsphere::attend", "quatsphere::dot_attend", "aten::_scaled_dot_product", "quatsphere::edge_dot")),
    ("Hamilton block", ("quatsphere::feed_forward",)),
    ("field", ("quatsphere::perturb",)),
    ("dropout masks", ("quatsphere::keep_mask",)),
    ("resample", ("quatsphere::resample",)),
    ("patch sampling", ("aten::grid_sampler",)),
    ("layer norm", ("aten::native_layer_norm",)),
    ("GEMM", ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "mkldnn")),
]
"""part -> how the names of its operators begin; of nested operators the outermost that matches counts."""
WHOLE = "quatsphere::step"
"""Whole steps: what no part inside them claims is their forward pass, field, kernel and Hamilton block in one."""


def group_of(names: list[str]) -> str:
    """The part that a chain of operators (innermost first) belongs to."""
    for name in reversed(names):
        for group, starts in GROUPS:
            if name.startswith(starts):
                return group
    whole = any(name.startswith(WHOLE) for name in names)
    return "steps, forward" if whole else "rest"


def profiled(run: Pass, steps: int = 2) -> list[dict[str, Any]]:
    """Milliseconds per step and share of every part, largest first; the profiler's own cost is in it."""
    run()
    with profile(activities=[ProfilerActivity.CPU]) as record:
        for _ in range(steps):
            run()
    spent: dict[str, float] = {}
    for event in record.events() or []:
        names, at = [], event
        while at is not None:
            names.append(at.name)
            at = at.cpu_parent
        group = group_of(names)
        spent[group] = spent.get(group, 0.0) + event.self_cpu_time_total / 1000 / steps
    whole = sum(spent.values())
    ordered = sorted(spent.items(), key=lambda part: -part[1])
    return [{"part": part, "ms": ms, "share": ms / whole} for part, ms in ordered]
