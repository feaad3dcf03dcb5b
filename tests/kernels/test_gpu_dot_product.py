"""The fused dot-product attention for GPUs equals plain torch, in Triton's interpreter (started by test_gpu.py)."""

from __future__ import annotations

import pytest
import torch
from measures import relative_error

from quatsphere.kernels.backends import TORCH, select_backend
from quatsphere.kernels.gpu import attention as gpu_attention

if not gpu_attention.available() or not gpu_attention.INTERPRETED:
    pytest.skip("needs triton and TRITON_INTERPRET=1 (test_gpu.py)", allow_module_level=True)


@pytest.mark.parametrize("keep", [False, True], ids=["all", "keep"])
@pytest.mark.parametrize(("k", "channels"), [(3, 5), (10, 4)])
def test_equals_plain_torch(k: int, channels: int, keep: bool) -> None:
    """Values and gradients, also with more neighbours than fit in a chunk."""
    B, T, S, H = 1, 2, 10 if k > 3 else 4, 3
    generator = torch.Generator().manual_seed(k)
    shapes = ((B, T, H, channels), (B, S, H, channels), (B, S, H, channels))
    leaves = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    graph = torch.stack([torch.randperm(S, generator=generator)[:k] for _ in range(T)])
    mask = torch.rand(B, T, k, H, generator=generator) > 0.3 if keep else None
    found = []
    for backend in (select_backend("triton_gpu", "cpu"), TORCH):
        out = backend.dot_attention(*leaves, graph, mask, 1.25 if keep else 1.0)
        found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for value, expected in zip(*found, strict=True):
        assert relative_error(value.detach(), expected.detach()) < 1e-10
