"""The fused dot-product attention equals the plain one: values and gradients, any shape, any number of threads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from measures import relative_error
from torch import Tensor

from quatsphere.kernels import cpu, dot_product_weights
from quatsphere.kernels.cpu import dot_product
from quatsphere.kernels.neighbour_ops import gather_sum

pytestmark = pytest.mark.skipif(not cpu.available(), reason="numba is not installed")


def plain(
    queries: Tensor, keys: Tensor, values: Tensor, neighbours: Tensor, keep: Tensor | None, keep_scale: float
) -> Tensor:
    weights = dot_product_weights(queries, keys, neighbours)
    return gather_sum(weights if keep is None else weights * keep * keep_scale, values, neighbours)


def make(seed: int, sizes: tuple[int, ...], keep: bool) -> tuple[list[Tensor], Tensor, Tensor | None]:
    """Float64 queries, keys, values; the graph; the keep mask. Sizes are (B, T, S, k, H, C)."""
    B, T, S, k, H, C = sizes
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(B, V, H, C, generator=generator, dtype=torch.float64) for V in (T, S, S)]
    graph = torch.stack([torch.randperm(S, generator=generator)[:k] for _ in range(T)])
    mask = torch.rand(B, T, k, H, generator=generator) > 0.3
    return tensors, graph, mask if keep else None


def run(function, tensors: list[Tensor], graph: Tensor, keep: Tensor | None, dtype: torch.dtype) -> list[Tensor]:
    leaves = [x.to(dtype).requires_grad_() for x in tensors]
    out = function(*leaves, graph, keep, 1 / 0.7)
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    return [out.detach(), *torch.autograd.grad((out * probe).sum(), leaves)]


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 12), st.integers(1, 17), st.integers(1, 18)),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_equals_plain_attention(sizes: tuple[int, ...], seed: int, keep: bool) -> None:
    B, T, S, H, C = sizes
    problem = make(seed, (B, T, S, 1 + seed % S, H, C), keep)
    exact = run(plain, *problem, torch.float64)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        for value, expected in zip(run(dot_product.dot_product_attention, *problem, dtype), exact, strict=True):
            if expected.abs().max() > 1e-12:
                assert relative_error(value, expected) < tolerance


def test_bit_identical_for_any_number_of_threads() -> None:
    problem, before, found = make(0, (5, 40, 30, 6, 6, 16), True), torch.get_num_threads(), []
    for threads in (1, 2, 2, 3):
        torch.set_num_threads(threads)
        found.append(run(dot_product.dot_product_attention, *problem, torch.float32))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_opcheck() -> None:
    tensors, graph, keep = make(0, (2, 6, 5, 3, 2, 4), True)
    torch.library.opcheck(
        dot_product.dot_attend.overload, (*(x.requires_grad_() for x in tensors), graph, keep, 1 / 0.7, 0.5)
    )
