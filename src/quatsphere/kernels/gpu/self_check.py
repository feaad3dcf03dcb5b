"""Self-check of the fused GPU kernel: `auto` uses it on a device only after it has equalled `factored` there.

Four small problems cover every routing and transport, with and without a keep mask, narrow features, the paper's block
sizes and odd ones. Values and all gradients are compared with plain torch in float64 on the same device, and a second
run must be bit-identical.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from quatsphere.geometry import quaternion
from quatsphere.kernels import torch_backend
from quatsphere.kernels.gpu.attention import quaternion_attention
from quatsphere.kernels.inputs import AttentionInputs

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
    """Return the first difference or error of the four problems, None if there is none."""
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        for case in CASES:
            try:
                fault = _compare(_make_problem(*case, device))
            except Exception as error:  # of the compiler or the driver: plain torch can still run
                fault = f"{type(error).__name__}: {error}".partition("\n")[0]
            if fault is not None:
                return f"routing {case[0]}, transport {case[1]}: {fault}"
    return None


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


def _compare(problem: AttentionInputs) -> str | None:
    """Return what differs between the fused kernel and plain torch, or between two runs of the fused kernel."""
    wide = {name: getattr(problem, name).double() for name in DIFFERENTIABLE}
    exact = _run(torch_backend.quaternion_attention, replace(problem, **wide))
    first, second = (_run(quaternion_attention, problem) for _ in range(2))
    for name, expected in exact.items():
        error = float((first[name].double() - expected).abs().max() / expected.abs().max())
        if not error < TOLERANCE[first[name].dtype]:
            return f"{name} is off by {error:.1e} of its largest value"
        if not torch.equal(first[name], second[name]):
            return f"{name} differs between two runs"
    return None


def _run(backend: Callable[[AttentionInputs], Tensor], problem: AttentionInputs) -> dict[str, Tensor]:
    """Output and, by name, the gradients of a fixed scalar of it; without those that the routing does not reach."""
    leaves = {name: getattr(problem, name).detach().clone().requires_grad_() for name in DIFFERENTIABLE}
    out = backend(replace(problem, **leaves))
    probe = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).cos().view_as(out)
    gradients = torch.autograd.grad((out * probe).sum(), list(leaves.values()), allow_unused=True)
    found = {name: g for name, g in zip(leaves, gradients, strict=True) if g is not None}
    return {"output": out.detach(), **found}
