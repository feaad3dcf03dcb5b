"""Self-check of the fused GPU kernels: `auto` uses them on a device only after they have equalled `factored` there.

Four small problems cover every routing and transport, with and without a keep mask, narrow features, the paper's block
sizes and odd ones. Two whole steps, one within a shell and one between two, use masks hashed in the kernels. The last
problem is the dot-product attention. Values and all gradients are compared with plain torch in float64 on the same
device, and a second run must be bit-identical.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quatsphere.geometry import quaternion
from quatsphere.geometry.neighbours import index_resampling
from quatsphere.kernels import torch_backend
from quatsphere.kernels.gpu.attention import quaternion_attention
from quatsphere.kernels.gpu.dot_product import dot_attend_gpu
from quatsphere.kernels.gpu.step import plain_step, step_gpu
from quatsphere.kernels.inputs import AttentionInputs
from quatsphere.randomness import keep_scale

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""Largest difference over largest value, by the type in which a result is stored."""
DIFFERENTIABLE = ("target_field", "source_field", "features", "beta", "target_directions", "source_directions")
PAPER_SIZES, ODD_SIZES = (1, 20, 18, 16, 16, 4), (2, 7, 9, 3, 5, 3)
CASES = (
    ("alignment", "sandwich", True, torch.float32, PAPER_SIZES),
    ("absolute", "one_sided", False, torch.bfloat16, ODD_SIZES),
    ("uniform", "identity", True, torch.float32, ODD_SIZES),
    ("geometric", "sandwich", False, torch.float32, ODD_SIZES),
)
"""(routing, transport, with a keep mask, type of the features, (B, T, S, k, H, Q))."""
STEP_CASES = ((False, (2, 20, 16, 4, 16)), (True, (2, 9, 3, 2, 5)))
"""(between two shells, (B, S, H, Q, k)) of whole steps."""
DOT_SIZES = (2, 6, 20, 16, 4, 12)
"""(B, T, S, k, H, C) of the dot-product attention."""
_log = logging.getLogger("quatsphere")
_faults: dict[torch.device, str | None] = {}


@torch.compiler.assume_constant_result
def fault_on(device: str) -> str | None:
    """Return why the fused kernel must not be used on a device, None if it passed; checked once per process and device.

    A constant for torch.compile, so that the check may run during tracing.
    """
    target = torch.device(device)
    if target.type == "cuda" and target.index is None and torch.cuda.is_available():
        target = torch.device("cuda", torch.cuda.current_device())
    if target not in _faults:
        _faults[target] = find_fault(target)
        if _faults[target] is not None:
            _log.warning(
                "quatsphere: warning: the fused kernel failed its self-check on %s (%s); the slower 'factored' runs",
                target,
                _faults[target],
            )
    return _faults[target]


def find_fault(device: torch.device) -> str | None:
    """Return the first difference or error of the problems, None if there is none."""
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        for case in CASES:
            fault = _attempt(_attention_runs, case, device)
            if fault is not None:
                return f"routing {case[0]}, transport {case[1]}: {fault}"
        for cross, sizes in STEP_CASES:
            fault = _attempt(_step_runs, cross, sizes, device)
            if fault is not None:
                return f"a step {'between two shells' if cross else 'within a shell'}: {fault}"
        fault = _attempt(_dot_runs, DOT_SIZES, device)
        if fault is not None:
            return f"dot-product attention: {fault}"
    return None


def _attempt(runs: Callable[..., tuple[dict[str, Tensor], ...]], *problem: Any) -> str | None:
    """Return what differs between the runs of a problem, or what they raise."""
    try:
        return _compare(*runs(*problem))
    except Exception as error:  # of the compiler or the driver: plain torch can still run
        return f"{type(error).__name__}: {error}".partition("\n")[0]


def _make_problem(
    routing: str, transport: str, keep: bool, dtype: torch.dtype, sizes: tuple[int, ...], device: torch.device
) -> AttentionInputs:
    """Fixed random problem in float32 with features of `dtype`."""
    B, T, S, k, H, Q = sizes
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    def unit(*shape: int) -> Tensor:
        return quaternion.random_unit(*shape, generator=generator)

    mask = torch.rand(B, T, k, H, generator=generator) > 0.3
    return AttentionInputs(
        unit(B, T, H).to(device),
        unit(B, S, H).to(device),
        normal(B, S, H, Q, 4).to(device, dtype),
        torch.stack([torch.randperm(S, generator=generator)[:k] for _ in range(T)]).to(device),
        (normal(H).abs() + 0.1).to(device),
        routing,
        transport,
        mask.to(device) if keep else None,
        unit(T)[:, 1:].to(device),
        unit(S)[:, 1:].to(device),
        1 / 0.7,
    )


def _attention_runs(case: tuple[Any, ...], device: torch.device) -> tuple[dict[str, Tensor], ...]:
    """Results of plain torch in float64 and of two runs of the fused kernel."""
    problem = _make_problem(*(*case, device))

    def run(backend: Callable[[AttentionInputs], Tensor], inputs: AttentionInputs) -> dict[str, Tensor]:
        leaves = {name: getattr(inputs, name) for name in DIFFERENTIABLE}
        return _run(lambda found: backend(replace(inputs, **found)), leaves)  # type: ignore[arg-type]

    wide = {name: getattr(problem, name).double() for name in DIFFERENTIABLE}
    exact = run(torch_backend.quaternion_attention, replace(problem, **wide))
    return exact, run(quaternion_attention, problem), run(quaternion_attention, problem)


def _step_runs(cross: bool, sizes: tuple[int, ...], device: torch.device) -> tuple[dict[str, Tensor], ...]:
    """The same of a whole step, with dropout of 30 %."""
    B, S, H, Q, k = sizes
    T, d, generator = S + S // 2 if cross else S, 4 * H * Q, torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    leaves = {
        "tokens": normal(B, S, d), "first": normal(d, d) / d**0.5, "inner": normal(d),
        "weight": 0.3 * normal(H, 4 * Q, 3), "bias": 0.1 * normal(H, 3),
        "bounds": torch.tensor([0.4, 0.7][: 1 + cross]),
        "source": quaternion.random_unit(S, H, generator=generator),
        "target": quaternion.random_unit(T, H, generator=generator) if cross else None,
        "beta": normal(H).abs() + 0.1, "up": normal(H, 4 * Q, Q, 4) / 4, "down": normal(H, Q, 4 * Q, 4) / 8,
        "gate": torch.tensor(0.6) if cross else None,
    }  # fmt: skip
    leaves = {name: None if leaf is None else leaf.to(device) for name, leaf in leaves.items()}
    graph = torch.stack([torch.randperm(S, generator=generator)[:k] for _ in range(T)]).to(device)
    mixing = [None if part is None else part.to(device) for part in (index_resampling(S, T) if cross else (None, None))]
    keys, scale = torch.arange(B, device=device), keep_scale(0.3)
    rest = (graph, *mixing, keys, keys, scale, scale, 0, 0, 2**62 + 1, 3)

    def run(step: Callable[..., Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        given = {name: leaf.to(dtype) for name, leaf in leaves.items() if leaf is not None}
        return _run(lambda found: step(*(found.get(name) for name in leaves), *rest, dtype), given)

    def fused(*operands: Any) -> Tensor:
        return step_gpu(*operands)[0]

    return run(plain_step, torch.float64), run(fused, torch.float32), run(fused, torch.float32)


def _dot_runs(sizes: tuple[int, ...], device: torch.device) -> tuple[dict[str, Tensor], ...]:
    """The same of the dot-product attention, with a mask."""
    B, T, S, k, H, C = sizes
    generator = torch.Generator().manual_seed(0)
    shapes = {"queries": (B, T, H, C), "keys": (B, S, H, C), "values": (B, S, H, C)}
    leaves = {name: torch.randn(shape, generator=generator).to(device) for name, shape in shapes.items()}
    graph = torch.stack([torch.randperm(S, generator=generator)[:k] for _ in range(T)]).to(device)
    mask = (torch.rand(B, T, k, H, generator=generator) > 0.3).to(device)

    def fused(found: dict[str, Tensor]) -> Tensor:
        return dot_attend_gpu(*found.values(), graph, mask, 1 / 0.7)[0]

    def plain(found: dict[str, Tensor]) -> Tensor:
        queries, keys, values = found.values()
        return torch_backend.dot_attend(queries, keys, values, graph, mask, 1 / 0.7, C**-0.5)

    wide = {name: leaf.double() for name, leaf in leaves.items()}
    return _run(plain, wide), _run(fused, leaves), _run(fused, leaves)


def _compare(exact: dict[str, Tensor], first: dict[str, Tensor], second: dict[str, Tensor]) -> str | None:
    """Return what differs between the fused kernel and plain torch, or between two runs of the fused kernel."""
    for name, expected in exact.items():
        error = float((first[name].double() - expected).abs().max() / expected.abs().max())
        if not error < TOLERANCE[first[name].dtype]:
            return f"{name} is off by {error:.1e} of its largest value"
        if not torch.equal(first[name], second[name]):
            return f"{name} differs between two runs"
    return None


def _run(function: Callable[[dict[str, Tensor]], Tensor], given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Output and, by name, the gradients of a fixed scalar of it; without those that the routing does not reach."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in given.items()}
    out = function(leaves)
    probe = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).cos().view_as(out)
    gradients = torch.autograd.grad((out * probe).sum(), list(leaves.values()), allow_unused=True)
    found = {name: g for name, g in zip(leaves, gradients, strict=True) if g is not None}
    return {"output": out.detach(), **found}
