"""Random inputs of the attention kernel, and its results compared with the reference."""

from __future__ import annotations

import torch
from measures import relative_error
from torch import Tensor

from quatsphere.geometry import quaternion as Q
from quatsphere.geometry import sphere
from quatsphere.kernels import AttentionInputs, quaternion_attention

DIFFERENTIABLE = ("target_field", "source_field", "features", "beta", "target_directions", "source_directions")


def make_problem(
    seed: int,
    sizes: tuple[int, int, int, int, int, int],
    routing: str = "alignment",
    transport: str = "sandwich",
    keep: bool = False,
    graph: Tensor | None = None,
) -> AttentionInputs:
    """A random float64 problem; sizes are (B, T, S, k, H, Q)."""
    B, T, S, k, H, channels = sizes
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if graph is None:
        graph = torch.stack([torch.randperm(S, generator=generator)[:k] for _ in range(T)])
    mask = torch.rand(B, T, k, H, generator=generator, dtype=torch.float64) > 0.3
    return AttentionInputs(
        Q.normalize(normal(B, T, H, 4)),
        Q.normalize(normal(B, S, H, 4)),
        normal(B, S, H, channels, 4),
        graph,
        normal(H).abs() + 0.1,
        routing,
        transport,
        mask if keep else None,
        sphere.directions(normal(T, 3)),
        sphere.directions(normal(S, 3)),
        1 / 0.7,
    )


def run(problem: AttentionInputs, backend: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Output and all gradients of a fixed scalar of it, by name."""
    leaves = {name: getattr(problem, name).to(dtype).requires_grad_() for name in DIFFERENTIABLE}
    out = quaternion_attention(
        **leaves,
        neighbours=problem.neighbours,
        routing=problem.routing,
        transport=problem.transport,
        keep=problem.keep,
        keep_scale=problem.keep_scale,
        backend=backend,
    )
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    gradients = torch.autograd.grad((out * probe).sum(), list(leaves.values()), allow_unused=True)
    found = {name: g for name, g in zip(leaves, gradients, strict=True) if g is not None and bool(g.abs().max() > 0)}
    return {"output": out.detach(), **found}


def assert_equal(problem: AttentionInputs, backend: str) -> None:
    exact = run(problem, "reference", torch.float64)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        fast = run(problem, backend, dtype)
        for name, expected in exact.items():
            if expected.abs().max() < 1e-12:  # cancels exactly in the mathematics, rounding noise in numbers
                continue
            assert relative_error(fast[name], expected) < tolerance, (name, dtype)
